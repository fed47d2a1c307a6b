"""Outputs of modules in two stages, sample by sample: their differences, and where the stages diverge first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.errors import NothingInCommonError
from msprobe_core.findings import Finding as Said
from msprobe_core.judge.limits import Precision
from msprobe_core.judge.verdict import Verdict
from msprobe_core.model import Role
from msprobe_core.rl.floors import Floor, Score, module_floor, module_score, precision_named
from msprobe_core.rl.module_outputs import ModuleValue, StageTensors, common_samples, matched
from msprobe_core.rl.recorded import Progress
from msprobe_core.rl.rl_codes import ModuleCode

Array: TypeAlias = NDArray[Any]
Pair: TypeAlias = tuple[ModuleValue, ModuleValue]
Baseline: TypeAlias = Mapping[tuple[str, str, str], Floor]
"""Floors from a healthy run, by path and place of an output, and by phase."""

Flips: TypeAlias = dict[tuple[str, str], dict[int, bool]]
"""By sample and phase: for each position, whether a router chose other experts."""

PREFILL, DECODE = "prefill", "decode"
"""Phases of the rollout; a stage of training has only the first."""

ROUTERS = ("gate", "router")
"""Last parts of the paths of modules whose output chooses experts."""


@dataclass
class _Sums:
    """Sums over samples."""

    difference: float = 0.0
    golden: float = 0.0
    max_abs: float = 0.0
    positions: int = 0
    samples: set[str] = field(default_factory=set[str])
    is_equal: bool = True
    is_finite: bool = True
    worst: tuple[float, str, int] = (-1.0, "", -1)
    routed: int = 0
    flipped: int = 0

    @property
    def error(self) -> float:
        """Norm of the difference over the norm of the golden values; 0 if they are bitwise equal."""
        if self.is_equal:
            return 0.0
        if not self.is_finite:
            return math.inf
        return math.sqrt(self.difference / self.golden) if self.golden else math.inf


@dataclass(frozen=True, kw_only=True)
class ModuleDifference:
    """One output of a module in one phase; a row of the table.

    Attributes:
        step: The trainer's step.
        order: Index of the output in execution order, from 0.
        module: Name of the module in reports.
        output: Position of the value in the call.
        phase: `PREFILL` or `DECODE`.
        error: Norm of the difference over the norm of the golden values.
        floor: Error that rounding explains.
        score: The error over the floor.
        limit: Limit of the score.
        verdict: ``ERROR`` if the score exceeds the limit, else ``PASS``.
        is_equal: Whether all elements are bitwise equal.
        growth: The error over that of the previous output; ``None`` for the first, and after an equal one.
        max_abs: Largest difference of an element.
        positions: Number of compared positions.
        samples: Number of samples.
        worst_sample: Id of the sample whose position has the largest error; ``None`` if all are equal.
        worst_position: That position.
        flip_rate: For a router, share of positions for which it chooses other experts; ``None`` for other modules.
        reason: How large the error is, in words; ``None`` if rounding explains it.
    """

    step: int
    order: int
    module: str
    output: str
    phase: str
    error: float
    floor: float
    score: float
    limit: float
    verdict: Verdict
    is_equal: bool
    growth: float | None
    max_abs: float
    positions: int
    samples: int
    worst_sample: str | None
    worst_position: int | None
    flip_rate: float | None
    reason: Said | None

    @property
    def is_over(self) -> bool:
        """Whether rounding does not explain it."""
        return self.verdict is Verdict.ERROR


@dataclass(frozen=True, kw_only=True)
class StageDifference:
    """The comparison of two stages.

    Attributes:
        step: The trainer's step.
        modules: In execution order; phases of one output follow each other.
        pairs: The two compared values, by ``order`` of the modules.
        samples: Number of samples in both.
        lone_target: Number of samples only in the target.
        lone_golden: Number of samples only in golden.
        unmatched: Outputs of the target that the golden stage lacks.
        experts: Number of experts that a router is assumed to choose.
        flipped_tokens: Share of positions where at least one router chooses other experts; ``None`` without routers.
    """

    step: int
    modules: Sequence[ModuleDifference]
    pairs: Sequence[Pair]
    samples: int
    lone_target: int
    lone_golden: int
    unmatched: Sequence[str]
    experts: int
    flipped_tokens: float | None = None

    def first(self, phase: str | None = None) -> ModuleDifference | None:
        """Return the first output (of a phase) that rounding does not explain; children end before their parents."""
        return next((m for m in self.modules if m.is_over and phase in {None, m.phase}), None)

    @property
    def phases(self) -> list[str]:
        """Phases that were compared."""
        return [phase for phase in (PREFILL, DECODE) if any(m.phase == phase for m in self.modules)]

    @property
    def is_equal(self) -> bool:
        """Whether everything is bitwise equal."""
        return all(module.is_equal for module in self.modules)


def compare_modules(
    target: StageTensors,
    golden: StageTensors,
    step: int,
    *,
    experts: int = 1,
    baseline: Baseline | None = None,
    progress: Progress | None = None,
) -> StageDifference:
    """Compare the outputs of all modules that both stages have, for the samples that both have.

    Args:
        target: One stage.
        golden: The other; in a rollout, prompts and decoded tokens are separate phases.
        step: The trainer's step.
        experts: Number of experts that a router chooses.
        baseline: Floors from a healthy run.
        progress: Called after each module.

    Raises:
        CompareError: the stages have no sample or no module in common.
        DumpError: a tensor cannot be read.
    """
    samples = common_samples(target, golden)
    pairs = matched(target, golden)
    if not pairs:
        raise NothingInCommonError(
            f"{target.label} and {golden.label} have no module in common; are they of one model?"
        )
    sums: list[dict[str, _Sums]] = []
    flipped: Flips = {}
    for number, (own, other) in enumerate(pairs):
        if progress is not None:
            progress(number, len(pairs), own.path or own.type_name)
        sums.append(_compared(target, golden, own, other, samples, experts, flipped))
    if not any(sums):
        raise NothingInCommonError(
            f"{target.label} and {golden.label} have no position of a sample in common: no tensor has the positions "
            "that samples.json names; was it written by this recording?"
        )
    paired = {part for value, _ in pairs for part in (value, *value.parts)}
    return StageDifference(
        step=step,
        modules=list(_judged(step, pairs, sums, target, golden, baseline or {})),
        pairs=pairs,
        samples=len(samples),
        lone_target=len(target.places) - len(samples),
        lone_golden=len(golden.places) - len(samples),
        unmatched=[value.path for value in target.values if value not in paired],
        experts=experts,
        flipped_tokens=_share_of(flipped),
    )


def _share_of(flipped: Flips) -> float | None:
    flips = [there for places in flipped.values() for there in places.values()]
    return sum(flips) / len(flips) if flips else None


def _compared(
    target: StageTensors,
    golden: StageTensors,
    own: ModuleValue,
    other: ModuleValue,
    samples: Sequence[str],
    experts: int,
    flipped: Flips,
) -> dict[str, _Sums]:
    found: dict[str, _Sums] = {}
    is_router = own.role == Role.OUTPUT.value and own.path.rpartition(".")[2] in ROUTERS
    for sample in samples:
        left, right = target.gather(own, sample), golden.gather(other, sample)
        common = np.intersect1d(left.number, right.number, assume_unique=True)
        if not common.size or left.values.shape[1:] != right.values.shape[1:]:
            continue
        left, right = left.at(common), right.at(common)
        for phase, chosen in ((PREFILL, ~right.is_decoded), (DECODE, right.is_decoded)):
            if not chosen.any():
                continue
            sums = found.setdefault(phase, _Sums())
            sides = left.values[chosen], right.values[chosen]
            _add(sums, *sides, sample, common[chosen])
            if is_router and sides[0].ndim == 2 and sides[0].shape[1] > experts:
                flips = (chosen_experts(sides[0], experts) != chosen_experts(sides[1], experts)).any(axis=1)
                sums.routed += flips.size
                sums.flipped += int(flips.sum())
                places = flipped.setdefault((sample, phase), {})
                for position, flips_there in zip(common[chosen].tolist(), flips.tolist(), strict=True):
                    places[position] = places.get(position, False) or flips_there
    return found


def chosen_experts(scores: Array, number: int) -> Array:
    """Return the indices of the ``number`` experts with the highest scores, ``[tokens, number]``.

    Args:
        scores: ``[tokens, experts]``.
        number: Number of chosen experts.
    """
    return np.sort(np.argsort(-scores, axis=-1, kind="stable")[:, :number], axis=-1)


def _add(sums: _Sums, target: Any, golden: Any, sample: str, positions: Array) -> None:
    """Add the positions of one sample, ``[n, …]`` on both sides."""
    sums.positions += positions.size
    sums.samples.add(sample)
    is_complex = golden.dtype.kind == "c"
    wide = np.complex128 if is_complex else np.float64
    own, other = (side.reshape(positions.size, -1).astype(wide) for side in (target, golden))
    same = (own == other) | (np.isnan(own) & np.isnan(other))
    sizes = np.where(np.isfinite(other), np.abs(other), 0.0)
    whole = np.einsum("ij,ij->i", sizes, sizes)
    sums.golden += float(whole.sum())
    if same.all():
        return
    sums.is_equal = False
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(own - other))
    norms = np.einsum("ij,ij->i", difference, difference)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.sqrt(norms / whole)
    relative = np.where(np.isnan(relative), np.where(norms == 0, 0.0, np.inf), relative)
    worst = int(relative.argmax())
    sums.worst = max(sums.worst, (float(relative[worst]), sample, int(positions[worst])))
    if not np.isfinite(norms).all():
        sums.is_finite = False
        return
    sums.difference += float(norms.sum())
    sums.max_abs = max(sums.max_abs, float(difference.max()))


def _judged(
    step: int,
    pairs: Sequence[Pair],
    sums: Sequence[dict[str, _Sums]],
    target: StageTensors,
    golden: StageTensors,
    baseline: Baseline,
) -> Iterator[ModuleDifference]:
    number = sum(len(own) for own in sums)
    precision = Precision.FLOAT64
    before: dict[str, float] = {}
    for order, ((value, other), own) in enumerate(zip(pairs, sums, strict=True)):
        # Precision never improves: values rounded in an earlier module stay rounded.
        precision = max(precision, *(precision_named(dtype) for dtype in (target.dtype(value), golden.dtype(other))))
        for phase, sum_ in own.items():
            floor = baseline.get((value.path, value.place, phase)) or module_floor(precision, order + 1)
            score = module_score(sum_.error, floor, precision, number)
            last = before.get(phase)
            before[phase] = score.value
            worst = sum_.worst[1:] if sum_.worst[1] else (None, None)
            yield ModuleDifference(
                step=step,
                order=order,
                module=value.path or f"{value.type_name} (the whole model)",
                output=value.place,
                phase=phase,
                error=score.value,
                floor=score.floor,
                score=score.score,
                limit=score.limit,
                verdict=score.verdict,
                is_equal=sum_.is_equal,
                growth=score.value / last if last else None,
                max_abs=sum_.max_abs,
                positions=sum_.positions,
                samples=len(sum_.samples),
                worst_sample=worst[0],
                worst_position=worst[1],
                flip_rate=sum_.flipped / sum_.routed if sum_.routed else None,
                reason=_reason(score, sum_.worst) if score.is_over else None,
            )


def _reason(score: Score, worst: tuple[float, str, int]) -> Said:
    where = [Said.of(ModuleCode.WORST, position=worst[2], sample=worst[1][:12])] if worst[1] else []
    if not math.isfinite(score.value):
        return Said.of(ModuleCode.NOT_FINITE, where=where)
    return Said.of(ModuleCode.OFF, error=score.value, floor=score.floor, source=score.source, where=where)


def is_given_wrong(
    one: StageDifference, first: ModuleDifference, target: StageTensors, golden: StageTensors
) -> bool | None:
    """Return whether the module's inputs already differ, so that the fault is between modules.

    ``None`` if its inputs are not recorded, or cannot be matched.

    Raises:
        DumpError: a tensor cannot be read.
    """
    own, other = (replace(value, role=Role.INPUT.value, place="0", parts=()) for value in one.pairs[first.order])
    if not target.has(own) or not golden.has(other):
        return None
    found = _compared(target, golden, own, other, common_samples(target, golden), 1, {}).get(first.phase)
    return None if found is None else found.error > first.limit * first.floor
