"""Writes the sketches of gradients, for ``msprobe monitor reduction-check``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from msprobe_core.fingerprint.distance import decoded
from msprobe_core.model import Digest
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitor.readings import Reading, Step
from msprobe_core.monitor.sinks import Sink
from msprobe_core.monitoring.quantities import Op, Quantity
from msprobe_core.monitoring.sketch_files import SketchedTensor, SketchFile, sketch_file_name
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory


class SketchLog(Sink):
    """Writes a file for each range of steps."""

    def __init__(self, plan: MonitorPlan, directory: Path, rank: int) -> None:
        """Begin without a file.

        Args:
            plan: Says how many steps are in a file.
            directory: Of the files; may not exist yet.
            rank: Of this process.
        """
        self._directory = directory
        self._rank = rank
        self._steps_per_file = plan.step_count_per_record
        self._rows: list[tuple[int, Reading, bytes]] = []
        self._steps: list[int] = []

    def add(self, step: Step) -> None:
        """Take the sketches of a step, and write the file that it completes.

        Raises:
            StoreError: it cannot be written.
        """
        self._steps.append(step.number)
        self._rows += [(step.number, *each) for each in _whole(step)]
        if len(self._steps) >= self._steps_per_file:
            self.close()

    def close(self) -> None:
        """Write what is not written yet.

        Raises:
            StoreError: it cannot be written.
        """
        steps, self._steps = self._steps, []
        rows, self._rows = self._rows, []
        if not rows:
            return
        places: dict[SketchedTensor, int] = {}
        content = SketchFile(
            rank=self._rank,
            steps=[number for number, _, _ in rows],
            places=[places.setdefault(_tensor_of(each), len(places)) for _, each, _ in rows],
            norms=[_norm(each, sketch) for _, each, sketch in rows],
            sketches=b"".join(sketch for _, _, sketch in rows),
            tensors=list(places),
        )
        make_directory(self._directory)
        with whole_file(self._directory / sketch_file_name(steps[0], steps[-1])) as file:
            file.write(msgspec.msgpack.encode(content))


def _whole(step: Step) -> Iterator[tuple[Reading, bytes]]:
    """Yield the last reading of each gradient in a step, and the sketch of the sum if several add up."""
    found: dict[tuple[Quantity, int, str], tuple[Reading, list[Digest]]] = {}
    for reading in step.readings.values():
        place = reading.quantity, reading.stage, reading.name
        earlier = found[place][1] if reading.adds and place in found else []
        found[place] = reading, [*earlier, *reading.summands, reading.digest]
    for reading, digests in found.values():
        sketches = [each.sketch for each in digests if each.sketch]
        if len(sketches) == len(digests):
            yield reading, sketches[0] if len(sketches) == 1 else decoded(sketches).sum(axis=0).astype("<f4").tobytes()


def _norm(reading: Reading, sketch: bytes) -> float:
    """Return the norm, which is not known of a sum."""
    return float(reading.value(Op.NORM)) if sketch == reading.digest.sketch else math.nan


def _tensor_of(reading: Reading) -> SketchedTensor:
    meta = reading.meta
    shape, begin = (() if meta is None else meta.shape), None
    spread = None if meta is None else meta.distribution
    if spread is not None and spread.local_shape != shape:
        shape = spread.local_shape
        begin = spread.local_offset or ()  # parts that are no block have no beginning
    dtype = "" if meta is None else meta.dtype
    return SketchedTensor(reading.quantity, reading.stage, reading.name, dtype, math.prod(shape), begin)
