"""What other means of comparison say of the same pairs.

Each is asked with its defaults, and its first answer is scored by the same `Truth` as ours:

* ``mindstudio-probe``: ``compare -da`` of the established tool, run in an environment of its own on our dumps.
* ``DebugMode``: PyTorch's hashes of the results of all operators, compared by its ``check_hash_mismatches``, call by
  call, as it names no place. Place: the innermost module, or the optimizer, that the log has around the first call
  that differs. Operators outside of both, not in the backward pass, count as right wherever the truth is there too.
* ``allclose``: ``torch.allclose`` with its default tolerances over outputs of modules, then gradients from the last
  module to the first, then parameters after the update, which are the optimizer's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch.utils._debug_mode import DebugMode

from bench.bugs.observed import GRADIENT, OUTPUT, Observed, Value, file_of
from bench.faults.answers import Answer, Nesting, Reference, Suspect
from bench.faults.scoring import score
from bench.faults.truth import Fault, Phase, Truth

DEBUG_MODE, ALL_CLOSE, PROBE = "DebugMode", "allclose", "mindstudio-probe"
_OPTIMIZER = "Optimizer.step#"
_OUTSIDE = "outside"


@dataclass(frozen=True)
class PeerAnswer:
    """Answer of a peer.

    Attributes:
        verdict: ``agree``, ``fault``, or ``failed`` if it gave no answer.
        is_first: Whether its first place is right; ``False`` of a healthy pair.
        place: Its first place, or why it gave no answer.
        seconds: Wall time of comparing, without the runs before.
    """

    verdict: str
    is_first: bool
    place: str
    seconds: float


def ask_peers(
    target: Path, golden: Path, world: int, truth: Truth | None, reference: Path | None
) -> dict[str, PeerAnswer]:
    """Ask all peers about a pair that was recorded and observed; the established tool only if its command is given."""
    ranks = range(world)
    sides = [[_read(file_of(place, rank)) for rank in ranks] for place in (golden, target)]
    pairs = list(zip(*sides, strict=True))
    answers = {DEBUG_MODE: _timed(pairs, _first_call, truth), ALL_CLOSE: _timed(pairs, _first_value, truth)}
    if reference is not None:
        answers[PROBE] = Reference(reference)(target, golden, target.with_name("probe"))
    nesting = Nesting(target, golden)
    return {name: _scored(answer, truth, nesting) for name, answer in answers.items()}


def _read(path: Path) -> Observed:
    return torch.load(path, weights_only=False)


def _scored(answer: Answer, truth: Truth | None, nesting: Nesting) -> PeerAnswer:
    first = answer.suspects[0] if answer.suspects else None
    place = "" if first is None else first.entry or first.reason
    is_first = truth is not None and score(answer, Fault("", Phase.FORWARD, (), None), truth, nesting).is_first
    return PeerAnswer(answer.verdict, is_first, place, answer.seconds)


First = Callable[[Observed, Observed, Truth | None], tuple[int, int, str] | None]


def _timed(pairs: Sequence[tuple[Observed, Observed]], first: First, truth: Truth | None) -> Answer:
    """Return the earliest answer of all ranks."""
    begin = time.perf_counter()
    found = [(*one, rank) for rank, (golden, target) in enumerate(pairs) if (one := first(golden, target, truth))]
    suspects = [Suspect(step, (rank,) if len(pairs) > 1 else (), entry) for step, _, entry, rank in sorted(found)]
    return Answer("fault" if suspects else "agree", suspects, seconds=time.perf_counter() - begin)


def _first_call(golden: Observed, target: Observed, truth: Truth | None) -> tuple[int, int, str] | None:
    """Return step, position and place of the first call whose hash differs, or that only one side has."""
    for step, logs in enumerate(zip_longest(golden.logs, target.logs, fillvalue=())):
        around: list[Any] = []
        for position, (one, two) in enumerate(zip_longest(*logs)):
            call = one or two
            while around and around[-1].call_depth >= call.call_depth:
                around.pop()
            if one is None or two is None or _differ(one, two):
                return step, position, _entry(call, around, truth)
            if hasattr(call, "tag"):
                around.append(call)
    return None


def _differ(one: Any, two: Any) -> bool:
    try:
        return bool(DebugMode.check_hash_mismatches([one], [two]))
    except ValueError:  # they are different calls
        return True


def _entry(call: Any, around: Sequence[Any], truth: Truth | None) -> str:
    """Return the place of a call, which may be that of a module, as a dump would name it."""
    is_backward = bool((getattr(call, "log", None) or {}).get("backward"))
    for one in (call, *reversed(around)) if hasattr(call, "tag") else reversed(around):
        if one.header == "nn.Mod":
            return _module(one.tag.partition(".")[2], "backward" if is_backward else "forward")
        if str(one.tag).startswith(_OPTIMIZER):
            return "optimizer"
    if is_backward:
        return f"{_OUTSIDE}.backward"
    if truth is not None and truth.calls:
        return truth.calls[0]
    return "clip_grad" if truth is not None and "clip_grad" in truth.groups else _OUTSIDE


def _module(path: str, what: str) -> str:
    return f"Module.{path}.Any.{what}.0" if path else f"Module.Any.{what}.0"


def _first_value(golden: Observed, target: Observed, _: object) -> tuple[int, int, str] | None:
    """Return step, position and place of the first value that is not close."""
    for step, values in enumerate(zip_longest(golden.values, target.values, fillvalue=())):
        for position, (one, two) in enumerate(zip_longest(*values)):
            if one is None or two is None or not _close(one, two):
                value = next(value for value in (one, two) if value is not None)
                if value.kind == OUTPUT:
                    return step, position, _module(value.path, "forward")
                gradient = _module(value.path, "parameters_grad")
                return step, position, gradient if value.kind == GRADIENT else "optimizer"
    return None


def _close(one: Value, two: Value) -> bool:
    is_same_place = (one.kind, one.path, one.name) == (two.kind, two.path, two.name)
    if not is_same_place or one.tensor.shape != two.tensor.shape:
        return False
    return torch.allclose(one.tensor.float(), two.tensor.float(), equal_nan=True)
