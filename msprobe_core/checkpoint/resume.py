"""What a job lost when it was resumed: the checkpoint it started from beside the one it saved next.

An equal loss at the first step after a resume proves nothing, since moments, step counts and the order of the data take
effect at the second. So they are compared themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from msprobe_core.checkpoint.boxes import boxes_of, read_values, whole_box
from msprobe_core.checkpoint.contents import Checkpoint, Kind, LogicalTensor
from msprobe_core.checkpoint.difference_codes import DifferenceCode
from msprobe_core.checkpoint.pair_pass import chunk_elements, compare_pair
from msprobe_core.compare.tensor_metrics import Workspace
from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding, Level
from msprobe_core.manifest.facts import Scalar

_STEP_NAME = re.compile(r"(^|[./_])(step|steps|num_steps|iteration|global_step|last_epoch|_step_count)$")
_STATES: Mapping[str, re.Pattern[str]] = {
    "scheduler": re.compile(r"sched|num_warmup|last_epoch", re.IGNORECASE),
    "random state": re.compile(r"rng|random", re.IGNORECASE),
    "data position": re.compile(r"consumed|dataloader|sampler|data_state|(?<!last_)epoch|cursor", re.IGNORECASE),
}
"""States besides tensors of the model, and by what names of tensors and settings they are recognised."""

_LEAST_DECAY = 0.9
"""Smallest factor per step by which a sound second moment shrinks, of common settings of beta2; see `_was_reset`."""


@dataclass(frozen=True, kw_only=True)
class ResumeResult:
    """What a resumed job kept.

    Attributes:
        before: The checkpoint that was loaded.
        after: The one that was saved next.
        num_steps: Steps between them; ``None`` if one does not say its step.
        findings: What is missing, was reset or changed; the worst first.
    """

    before: Path
    after: Path
    num_steps: int | None
    findings: Sequence[Finding]

    @property
    def is_sound(self) -> bool:
        """Whether nothing was lost."""
        return not any(finding.level is Level.ERROR for finding in self.findings)


def compare_resumed(before: Checkpoint, after: Checkpoint) -> ResumeResult:
    """Compare the checkpoint that a job loaded with the one that it saved next.

    Args:
        before: The loaded one.
        after: The saved one: best without a step in between, or after few.
    """
    num_steps = None if before.step is None or after.step is None else after.step - before.step
    found: list[Finding] = []
    if num_steps is not None and num_steps < 0:
        found.append(Finding.of(DifferenceCode.RESUME_STEP, Level.ERROR, before=before.step, after=after.step))
    for kind, what in ((Kind.WEIGHT, "weights"), (Kind.MASTER, "master weights"), (Kind.MOMENT, "moments")):
        found += _of_kind(before, after, kind, what, num_steps)
    found += _step_counts(before, after, num_steps)
    for what, pattern in _STATES.items():
        found += _state(before, after, what, pattern)
    if not any(finding.level is Level.ERROR for finding in found):
        found.append(Finding(DifferenceCode.RESUME_FINE))
    found.append(Finding(DifferenceCode.RESUME_FIRST_STEP))
    order = list(Level)
    found.sort(key=lambda finding: order.index(finding.level))
    return ResumeResult(before=before.path, after=after.path, num_steps=num_steps, findings=found)


def _of_kind(before: Checkpoint, after: Checkpoint, kind: Kind, what: str, num_steps: int | None) -> list[Finding]:
    own = {name: tensor for name, tensor in before.tensors.items() if tensor.kind is kind}
    other = {name: tensor for name, tensor in after.tensors.items() if tensor.kind is kind}
    found = _lost(own, other, what)
    shared = [(name, own[name], other[name]) for name in own if name in other]
    sound = [each for each in shared if each[1].damage is None and each[2].damage is None]
    if kind is Kind.MOMENT:
        reset = _first(sound, lambda first, second: _was_reset(first, second, num_steps or 0))
        if reset is not None:
            found.append(Finding.of(DifferenceCode.RESUME_ZERO, Level.ERROR, what=what, name=reset))
            return found
    if num_steps == 0:
        changed = [name for name, first, second in sound if not _is_same(first, second)]
        if changed:
            fields = {"what": what, "count": len(changed), "name": changed[0]}
            found.append(Finding(DifferenceCode.RESUME_CHANGED, Level.ERROR, fields))
    return found


def _lost(before: Collection[str], after: Collection[str], what: str) -> list[Finding]:
    """Return a finding if there was nothing before, or if some of it is missing after."""
    if not before:
        return [Finding.of(DifferenceCode.RESUME_NO_STATE, Level.NOTE, what=what)]
    count = sum(name not in after for name in before)
    return [Finding.of(DifferenceCode.RESUME_MISSING, Level.ERROR, what=what, count=count)] if count else []


def _first(
    pairs: Iterable[tuple[str, LogicalTensor, LogicalTensor]], is_it: Callable[[LogicalTensor, LogicalTensor], bool]
) -> str | None:
    return next((name for name, first, second in pairs if is_it(first, second)), None)


def _is_same(first: LogicalTensor, second: LogicalTensor) -> bool:
    if first.shape != second.shape:
        return False
    try:
        return compare_pair(first, second, Workspace(), measures=False).is_same
    except DumpError:
        return False


def _was_reset(before: LogicalTensor, after: LogicalTensor, num_steps: int) -> bool:
    """Whether a moment began again at zero.

    Each step keeps a second moment at ``beta2`` times what it was at least, and adds a square; one that is far below
    was reset. A first moment may shrink, so only zeros count.
    """
    try:
        own, other = _sum_of_magnitudes(before), _sum_of_magnitudes(after)
    except DumpError:
        return False
    if own == 0:
        return False
    is_second = before.name.endswith(("exp_avg_sq", "moment2", "v")) or "exp_avg_sq" in before.name
    return other == 0 or (is_second and other < own * _LEAST_DECAY**num_steps / 2)


def _sum_of_magnitudes(tensor: LogicalTensor) -> float:
    total = 0.0
    for box, _ in boxes_of(tensor.shape, chunk_elements(tensor)):
        total += float(np.abs(read_values(tensor, box).astype(np.float64)).sum())
    return total


def _step_counts(before: Checkpoint, after: Checkpoint, num_steps: int | None) -> list[Finding]:
    own, other = _counts(before), _counts(after)
    found: list[Finding] = []
    for name, value in own.items():
        now = other.get(name)
        expected = None if num_steps is None else value + num_steps
        if now is not None and (now < value or (expected is not None and name in before.tensors and now != expected)):
            found.append(Finding.of(DifferenceCode.RESUME_STEPS, Level.ERROR, name=name, before=value, after=now))
    lost = [name for name in own if name not in other]
    if lost:
        found.append(Finding.of(DifferenceCode.RESUME_MISSING, Level.ERROR, what="step counts", count=len(lost)))
    return found[:_MOST_COUNTS]


_MOST_COUNTS = 5


def _counts(checkpoint: Checkpoint) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in checkpoint.settings.items():
        if _STEP_NAME.search(name) and isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = int(value)
    for name, tensor in checkpoint.tensors.items():
        if tensor.kind is Kind.STATE and _STEP_NAME.search(name) and tensor.numel == 1 and tensor.damage is None:
            try:
                found[name] = int(np.ravel(read_values(tensor, whole_box(tensor.shape)))[0])
            except (DumpError, ValueError, OverflowError):
                continue
    return found


def _state(before: Checkpoint, after: Checkpoint, what: str, pattern: re.Pattern[str]) -> list[Finding]:
    own, other = _named(before, pattern), _named(after, pattern)
    found = _lost(own, other, what)
    for name, value in own.items():
        now = other.get(name)
        if is_number(value) and is_number(now) and "consumed" in name and float(now or 0) < float(value or 0):
            found.append(Finding.of(DifferenceCode.RESUME_STEPS, Level.ERROR, name=name, before=value, after=now))
    return found


def is_number(value: Scalar) -> bool:
    """Whether a setting is a number; ``True`` and ``False`` are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _named(checkpoint: Checkpoint, pattern: re.Pattern[str]) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {name: value for name, value in checkpoint.settings.items() if pattern.search(name)}
    found |= {
        name: None for name, tensor in checkpoint.tensors.items() if tensor.kind is Kind.STATE and pattern.search(name)
    }
    return found
