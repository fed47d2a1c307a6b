"""The RL trainer verl, recorded stage by stage. Not built yet: it registers, and says so when it is used."""

from __future__ import annotations

__version__ = "0.1.0"
