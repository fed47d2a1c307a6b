"""Chapter 4: how often the host waits inside a step, and the memory that recording takes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from bench.device.chapters import Case, Chapter, Outcome, Proof
from bench.device.programs import MEDIUM, SMALL, llama
from bench.device.recording import LEVELS, Kind, recorded

MODES = ("statistics", "hash", "sketch", "xor", "md5")
KINDS = [Kind(level, mode=mode) for level, mode in itertools.product(LEVELS, MODES)]

_NUM_BEFORE = 3
"""Windows before the one that is looked at: a kernel proves itself, and buffers grow to their size."""


def _compare(kind: Kind, proof: Proof) -> Outcome:
    machine, size = proof.machine, SMALL if proof.is_small else MEDIUM
    training = llama(size, torch.bfloat16 if machine.is_real else torch.float32, machine)
    waits: list[Sequence[str] | None] = []
    peaks: list[int | None] = []
    with recorded(kind, training, proof.work / "waits") as around:
        for _ in range(_NUM_BEFORE):
            training.step()
            with around():
                training.step()
        waits.append(machine.waits_in(training.step))
        peaks.append(machine.peak_bytes(training.step))
        with around():
            waits.append(machine.waits_in(training.step))
        with around():
            peaks.append(machine.peak_bytes(training.step))
    machine.release()
    # Copies for md5 may be larger than what is held until the window ends; then the host waits, as is documented.
    return Outcome((*map(_said, waits), *_memory(peaks)), holds=None if kind.mode == "md5" else _holds(waits))


def _said(waits: Sequence[str] | None) -> str:
    if waits is None:
        return "not counted"
    return ", ".join(f"{count} {name}" for name, count in Counter(waits).items()) or "0"


def _memory(peaks: Sequence[int | None]) -> tuple[str, ...]:
    bare, with_probe = peaks
    if bare is None or with_probe is None:
        return ("", "")
    return f"{bare / 2**20:,.1f}", f"{(with_probe - bare) / 2**20:,.1f}"


def _holds(waits: Sequence[Sequence[str] | None]) -> bool | None:
    bare, with_probe = waits
    return None if bare is None or with_probe is None else len(with_probe) <= len(bare)


def _cases(proof: Proof) -> Iterator[Case]:
    for kind in KINDS[::4] if proof.is_small else KINDS:
        yield Case(kind.label, partial(_compare, kind, proof))


WAITS = Chapter(
    "waits",
    "Waits of the host inside a step, and memory",
    ("waits without the probe", "with it", "peak without it, MiB", "more with it, MiB"),
    _cases,
    is_timed=True,
)
