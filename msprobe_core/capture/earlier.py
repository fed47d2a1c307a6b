"""The dump of an earlier run, for what is compared with it, or computed from it, while another run is recorded."""

from __future__ import annotations

from pathlib import Path

from msprobe_core.errors import DumpError
from msprobe_core.guard import plugin_call
from msprobe_core.plugins import registry
from msprobe_core.protocols.storage import Dump


def read_earlier(directory: Path) -> Dump:
    """Return the dump in the directory of a rank, in whatever format it is.

    Raises:
        DumpError: there is none, or it cannot be read.
        PluginError: a plugin's reader fails.
    """
    for reader in registry().readers():
        with plugin_call(registry().described("reader", reader.name), f"reading {directory}"):
            if reader.recognises(directory):
                return reader.read(directory)
    raise DumpError(f"{directory}: is no dump that is known here")
