"""Calls that are not recorded: those inside a call that is being recorded, and our own."""

from __future__ import annotations

from msprobe_core.interception import Inside

inside = Inside()
"""One per process: many patches share it, and calls that they make internally are not the user's."""
