"""Run directories: written during training, read by all later commands."""

from msprobe_core.store.json_reader import JsonDump, read_json_dump
from msprobe_core.store.layout import Unit, find_units

__all__ = ["JsonDump", "Unit", "find_units", "read_json_dump"]
