"""The command ``msprobe``."""

from msprobe_core.cli.main import main

__all__ = ["main"]
