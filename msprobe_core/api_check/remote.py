"""Compute the calls of a dump on a device, and judge them on another machine that does not have it.

The machine with the device computes each call once, in its own precision, and writes `call_records`; the other one
does the replays in float64, which need no device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from msprobe_core.api_check.call_check import MAX_ELEMENTS
from msprobe_core.api_check.call_records import Header
from msprobe_core.api_check.call_writer import CallWriter
from msprobe_core.api_check.three_way import FreshResults, check_devices, results_on
from msprobe_core.interrupts import raise_if_interrupted
from msprobe_core.model import SiteKind
from msprobe_core.protocols.capabilities import ReplayingFramework
from msprobe_core.protocols.storage import Dump
from msprobe_core.replay.frameworks import replaying_framework
from msprobe_core.replay.recorded import FILL_COLUMNS, RecordedCall, RecordedCalls
from msprobe_core.store.reading import read_dump


def store_computed(
    dump: Path,
    entries: Sequence[str],
    directory: Path,
    devices: Sequence[str],
    *,
    progress: Callable[[int, int, str], object] | None = None,
) -> int:
    """Compute calls of a dump on devices, and store them with their inputs and recorded results.

    What a call lacks, or why a device did not compute it, is stored in its place. A directory that has calls of this
    dump from these devices is continued.

    Args:
        dump: The directory of one rank of one step, or its ``dump.json``.
        entries: The calls, in the order of the dump.
        directory: Where to.
        devices: As the framework names them; at least one.
        progress: Called with the number of finished calls, the number of all, and the last one's name.

    Returns: the number of calls that were stored now.

    Raises:
        ConfigError: a device is not there.
        DumpError: the dump cannot be read, or what the directory has is damaged.
        PluginError: nothing here replays calls of its framework.
        StoreError: the directory cannot be written, or has something else.
    """
    calls = RecordedCalls(read_dump(dump), MAX_ELEMENTS)
    framework = replaying_framework(calls.dump.header.framework)
    check_devices(framework, devices)
    header = Header(framework=calls.dump.header.framework, dump=_digest(calls.dump), devices=tuple(devices))
    num_stored = 0
    with closing(CallWriter(directory, header)) as writer:
        for position, entry in enumerate(entries):
            raise_if_interrupted()
            if entry not in writer.entries:
                call = calls.read_or_missing(entry)
                writer.add(call, position, [_computed(call, framework, each) for each in devices])
                num_stored += 1
            if progress is not None:
                progress(position + 1, len(entries), entry)
    return num_stored


def _computed(call: RecordedCall, framework: ReplayingFramework, device: str) -> FreshResults:
    is_api = call.site.kind is SiteKind.API
    if call.missing is not None or (is_api and framework.why_not_replayed(call.site) is not None):
        return FreshResults(device=device)  # the other machine says why
    return results_on(call, framework, None, device, MAX_ELEMENTS)


def _digest(dump: Dump) -> str:
    """Return the SHA-256 of the records of a dump."""
    content = hashlib.sha256()
    for row in dump.frame.select(FILL_COLUMNS).iter_rows():
        content.update(repr(row).encode("utf-8", "surrogatepass"))
    return content.hexdigest()
