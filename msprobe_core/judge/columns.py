"""Columns of the frames that are judged, and the values that some of them hold."""

from __future__ import annotations

from enum import Enum


class Match(str, Enum):
    """Which sides have a row."""

    BOTH = "both"
    TARGET = "only target"
    GOLDEN = "only golden"


SKETCH_ERROR = "sketch_error"
SKETCH_LOW = "sketch_low"
