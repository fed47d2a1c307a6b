"""The contracts of checks of one's own, as tests that each inherits."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import ClassVar

import pytest

from msprobe_core.custom_checks.asking import findings_of
from msprobe_core.findings import Finding
from msprobe_core.guard import missing_members
from msprobe_core.model import Batch, Digest, Entry, Failure, Phase, RunHeader, Stats, TensorMeta, TensorValue
from msprobe_core.protocols.checks import DumpCheck, LiveCheck
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.json_writer import JsonWriterFactory
from msprobe_core.store.reading import read_dump

_HEADER = RunHeader(task="statistics", level="mix", framework="numpy")

_FINITE = Stats(max=2.0, min=-1.0, mean=0.5, l2_norm=3.0, num_nan=0, num_inf=0)
_BROKEN = Stats(max=math.nan, min=math.nan, mean=math.nan, l2_norm=math.nan, num_nan=3, num_inf=1)

ENTRIES: dict[str, Entry] = {
    "finite": Entry(name="Functional.linear.0.forward", phase=Phase.FORWARD),
    "a module": Entry(name="Module.fc.Linear.forward.0", phase=Phase.FORWARD),
    "NaN": Entry(name="Functional.linear.1.forward", phase=Phase.FORWARD),
    "a gradient": Entry(name="Module.fc.Linear.backward.0", phase=Phase.BACKWARD),
    "gradients of parameters": Entry(name="Module.fc.Linear.parameters_grad.0", phase=Phase.PARAMETERS_GRAD),
    "no statistics": Entry(name="Tensor.view.0.forward", phase=Phase.FORWARD),
    "an empty tensor": Entry(name="Tensor.view.1.forward", phase=Phase.FORWARD),
    "a failure": Entry(name="Tensor.view.2.forward", phase=Phase.FORWARD),
    "no values": Entry(name="Tensor.view.3.forward", phase=Phase.FORWARD),
}
"""Calls of every kind, whose values `entry_of` makes."""

_STATS: dict[str, Stats | None] = {"NaN": _BROKEN, "no statistics": None, "an empty tensor": Stats()}


def entry_of(kind: str) -> Entry:
    """Return a call of a kind."""
    template = ENTRIES[kind]
    entry = Entry(name=template.name, phase=template.phase, sequence=list(ENTRIES).index(kind))
    shape = (0,) if kind == "an empty tensor" else (2, 3)
    value = TensorValue(TensorMeta("Array", "float32", shape), Digest(_STATS.get(kind, _FINITE)))
    if kind == "no values":
        return entry
    if entry.phase is Phase.PARAMETERS_GRAD:
        entry.parameters = {"weight": [value]}
    else:
        entry.inputs = [value]
        entry.outputs = [Failure("planted") if kind == "a failure" else value]
    return entry


def sample_dump(directory: Path, kinds: Sequence[str] = tuple(ENTRIES)) -> Dump:
    """Write a dump with calls of these kinds, and read it."""
    directory.mkdir(parents=True)
    writer = JsonWriterFactory().open(directory, _HEADER)
    writer.write(Batch([entry_of(kind) for kind in kinds], {}))
    writer.close()
    return read_dump(directory)


class DumpCheckContract:
    """Inherit this class and define the fixture ``check``."""

    @pytest.fixture
    def check(self) -> DumpCheck:
        """Return the offer under test."""
        raise NotImplementedError("a class that inherits DumpCheckContract defines the fixture 'check'")

    def test_it_is_what_the_core_calls(self, check: DumpCheck) -> None:
        """It has all members of the protocol, a name and a summary."""
        assert missing_members(check, DumpCheck) == []
        assert check.name.strip()
        assert check.summary.strip()

    def test_it_finds_texts_and_findings(self, check: DumpCheck, tmp_path: Path) -> None:
        """In a dump with calls of every kind, and the same when it looks again; the dump stays as it is."""
        dump = sample_dump(tmp_path / "dump")
        before = dump.frame.clone()
        found = findings_of(check, dump, check.name)
        assert all(isinstance(finding, Finding) for finding in found)
        assert findings_of(check, dump, check.name) == found
        assert dump.frame.equals(before)

    @pytest.mark.parametrize("kind", ENTRIES)
    def test_it_looks_at_any_dump(self, check: DumpCheck, tmp_path: Path, kind: str) -> None:
        """A dump may have calls of one kind only."""
        findings_of(check, sample_dump(tmp_path / "dump", [kind]), check.name)


class LiveCheckContract:
    """Inherit this class and define the fixture ``check``."""

    max_seconds: ClassVar[float] = 0.001
    """What looking at one call may take, in the median."""

    @pytest.fixture
    def check(self) -> LiveCheck:
        """Return the offer under test."""
        raise NotImplementedError("a class that inherits LiveCheckContract defines the fixture 'check'")

    def test_it_is_what_the_core_calls(self, check: LiveCheck) -> None:
        """It has all members of the protocol, and a name."""
        assert missing_members(check, LiveCheck) == []
        assert check.name.strip()

    @pytest.mark.parametrize("kind", ENTRIES)
    def test_it_finds_texts_and_findings(self, check: LiveCheck, kind: str) -> None:
        """At a call of any kind, whose values stay as they are."""
        entry = entry_of(kind)
        findings_of(check, entry, check.name)
        assert entry == entry_of(kind)

    def test_it_is_fast(self, check: LiveCheck) -> None:
        """It runs on the thread that trains, once for every recorded call."""
        entry = entry_of("finite")
        seconds: list[float] = []
        for _ in range(51):
            began = time.perf_counter()
            findings_of(check, entry, check.name)
            seconds.append(time.perf_counter() - began)
        assert median(seconds) < self.max_seconds
