"""Reading of an earlier run's dump during recording, to compare with it or to replay its values."""

from __future__ import annotations

from pathlib import Path

from msprobe_core.errors import DumpError
from msprobe_core.guard import plugin_call
from msprobe_core.plugins import registry
from msprobe_core.protocols.storage import Dump


def read_earlier(directory: Path) -> Dump:
    """Return the dump in the directory of a rank, in any format that a plugin reads.

    Raises:
        DumpError: there is no dump, or it cannot be read.
        PluginError: a plugin's reader fails.
    """
    for reader in registry().readers():
        with plugin_call(registry().described("reader", reader.name), f"reading {directory}"):
            if reader.recognises(directory):
                return reader.read(directory)
    raise DumpError(f"{directory}: is no dump that is known here")
