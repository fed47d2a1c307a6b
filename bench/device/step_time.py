"""Chapter 5: what a step costs with the probe, by steps with and without it in turn."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from bench.device.chapters import Case, Chapter, Outcome, Proof
from bench.device.programs import LARGE, SMALL, Training, llama
from bench.device.recording import Around, Kind, monitored, recorded

TARGETS = {"L0": 1.10, "L1": 2.0, "mix": 2.1}
"""Largest factors of a step with statistics."""

_MOST_OVER_STATISTICS = 1.3
"""Largest factor of hash and sketch over statistics of the same level."""

_MONITOR_TARGET = 1.02
_MONITORS: dict[str, dict[str, Any]] = {
    "monitor: norms of gradients and parameters": {
        "wg_distribution": True, "param_distribution": True, "ops": ["norm"],
    },
    "monitor: four quantities, four operations": {
        **dict.fromkeys(("xy_distribution", "wg_distribution", "mv_distribution", "param_distribution"), True),
        "ops": ["norm", "min", "max", "mean"],
    },
}  # fmt: skip

_NUM_BEFORE, _NUM_PAIRS, _MOST_SECONDS = 2, 9, 25.0


class _Times:
    """Measured factors, by the label of what was recorded; sizes are those of the proof."""

    def __init__(self, proof: Proof) -> None:
        self._proof = proof
        self._factors: dict[str, float] = {}

    def training(self) -> Training:
        self._proof.machine.release()  # what the case before has left
        machine, size = self._proof.machine, SMALL if self._proof.is_small else LARGE
        return llama(size, torch.bfloat16 if machine.is_real else torch.float32, machine)

    def record(self, kind: Kind, target: float | None) -> Outcome:
        training = self.training()
        return self._measure(kind.label, training, recorded(kind, training, self._proof.work / "times"), target)

    def record_over_statistics(self, kind: Kind) -> Outcome:
        outcome = self.record(kind, None)
        plain = self._factors.get(Kind(kind.level).label)
        if plain is None or not self._proof.machine.is_real:
            return outcome
        return Outcome(outcome.cells, holds=self._factors[kind.label] <= _MOST_OVER_STATISTICS * plain)

    def monitor(self, name: str, target: float | None) -> Outcome:
        training = self.training()
        return self._measure(name, training, monitored(_MONITORS[name], training, self._proof.work / "times"), target)

    def _measure(
        self, label: str, training: Training, probe: AbstractContextManager[Around], target: float | None
    ) -> Outcome:
        machine = self._proof.machine
        times: tuple[list[float], list[float]] = ([], [])
        began = time.monotonic()
        with probe as around:

            def step_with_probe() -> None:
                with around():
                    training.step()

            for number in range(_NUM_BEFORE + _NUM_PAIRS):
                pair = machine.seconds(step_with_probe), machine.seconds(training.step)
                if number >= _NUM_BEFORE:
                    times[0].append(pair[0])
                    times[1].append(pair[1])
                if times[0] and time.monotonic() - began > _MOST_SECONDS:
                    break
        with_probe, bare = map(statistics.median, times)
        factor = self._factors[label] = with_probe / bare
        cells = f"{1000 * bare:.1f}", f"{1000 * with_probe:.1f}", f"{factor:.3f}", "" if target is None else str(target)
        return Outcome(cells, holds=None if target is None or not machine.is_real else factor <= target)


def _cases(proof: Proof) -> Iterator[Case]:
    times = _Times(proof)
    for level, target in TARGETS.items():
        yield Case(Kind(level).label, partial(times.record, Kind(level), target))
    for level, mode in itertools.product(TARGETS, ("hash", "sketch")):
        kind = Kind(level, mode=mode)
        yield Case(kind.label, partial(times.record_over_statistics, kind))
    for name in _MONITORS:
        target = _MONITOR_TARGET if name == next(iter(_MONITORS)) else None
        yield Case(name, partial(times.monitor, name, target))
    for kind in (Kind("L1", "acc_check"), Kind("L0", mode="xor"), Kind("L0", mode="md5"), Kind("mix", mode="md5")):
        yield Case(kind.label, partial(times.record, kind, None))


STEP_TIME = Chapter(
    "step_time",
    "Time of a step of a Llama, with and without the probe in turn",
    ("without, ms", "with, ms", "factor", "at most"),
    _cases,
    is_timed=True,
)
