"""The outputs of modules of two stages, sample by sample: how far they are apart, and where they part first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from msprobe.verl._compare.floors import Floor, Score, module_floor, module_score, precision_named
from msprobe.verl._compare.outcome import VERDICT
from msprobe.verl._compare.stage_tensors import ModuleValue, StageTensors, common_samples, matched
from msprobe_core.judge.limits import Precision
from msprobe_core.judge.verdict import Verdict
from msprobe_core.plugin import CompareError, Role

Array: TypeAlias = NDArray[Any]
Progress: TypeAlias = Callable[[int, int, str], None]
Baseline: TypeAlias = Callable[[str, str, str], Floor | None]
"""Path and place of an output, and phase, to the floor that a healthy run has there."""

Flips: TypeAlias = dict[tuple[str, str], dict[int, bool]]
"""By sample and phase, for each position whether a router chose other experts."""

PREFILL, DECODE = "prefill", "decode"
"""Phases of the rollout; a stage of training has the first only."""

ROUTERS = ("gate", "router")
"""Last part of a path of modules whose output chooses experts."""

_SCHEMA: dict[str, Any] = {
    "step": pl.Int64, "order": pl.Int64, "module": pl.String, "output": pl.String, "phase": pl.String,
    "error": pl.Float64, "floor": pl.Float64, "score": pl.Float64, "limit": pl.Float64, VERDICT: pl.String,
    "is_equal": pl.Boolean, "growth": pl.Float64, "max_abs": pl.Float64, "positions": pl.Int64, "samples": pl.Int64,
    "worst_sample": pl.String, "worst_position": pl.Int64, "flip_rate": pl.Float64, "reason": pl.String,
}  # fmt: skip


@dataclass
class _Sums:
    """What is added up over samples."""

    difference: float = 0.0
    golden: float = 0.0
    max_abs: float = 0.0
    positions: int = 0
    samples: set[str] = field(default_factory=set)
    is_equal: bool = True
    is_finite: bool = True
    worst: tuple[float, str, int] = (-1.0, "", -1)
    routed: int = 0
    flipped: int = 0

    @property
    def error(self) -> float:
        """Norm of the difference over the norm of the golden values; 0 where they are equal to the bit."""
        if self.is_equal:
            return 0.0
        if not self.is_finite:
            return math.inf
        return math.sqrt(self.difference / self.golden) if self.golden else math.inf


@dataclass(frozen=True, kw_only=True)
class ModuleDifference:
    """One output of a module in one phase.

    Attributes:
        order: Place of the output in the order of execution, from 0.
        target: Which value.
        golden: Which value it was compared with.
        phase: `PREFILL` or `DECODE`.
        score: Its error against the floor.
        is_equal: Whether all elements are equal to the bit.
        max_abs: Largest difference of an element.
        positions: How many positions of samples were compared.
        samples: How many samples.
        worst: Id of the sample and position with the largest error.
        flip_rate: Of a router, share of positions for which it chooses other experts; ``None`` of other modules.
    """

    order: int
    target: ModuleValue
    golden: ModuleValue
    phase: str
    score: Score
    is_equal: bool
    max_abs: float
    positions: int
    samples: int
    worst: tuple[str, int]
    flip_rate: float | None = None

    @property
    def name(self) -> str:
        """What reports call the module."""
        return self.target.path or f"{self.target.type_name} (the whole model)"


@dataclass(frozen=True, kw_only=True)
class StageDifference:
    """The comparison of two stages.

    Attributes:
        step: Of the trainer.
        modules: In the order of execution, phases beside each other.
        samples: How many both have.
        lone_target: Samples that only the target has.
        lone_golden: Likewise.
        unmatched: Outputs of the target that the golden stage lacks.
        experts: How many experts are taken for chosen by a router.
        flipped_tokens: Share of positions for which at least one router chooses others; ``None`` without routers.
    """

    step: int
    modules: Sequence[ModuleDifference]
    samples: int
    lone_target: int
    lone_golden: int
    unmatched: Sequence[str]
    experts: int
    flipped_tokens: float | None = None

    def first(self, phase: str | None = None) -> ModuleDifference | None:
        """Return the first output, of a phase, that rounding does not explain; children end before their parents."""
        return next((m for m in self.modules if m.score.is_over and phase in {None, m.phase}), None)

    @property
    def phases(self) -> list[str]:
        """Phases that were compared."""
        return [phase for phase in (PREFILL, DECODE) if any(m.phase == phase for m in self.modules)]

    @property
    def is_equal(self) -> bool:
        """Whether all is equal to the bit."""
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
        golden: The other; of a rollout, whose prompt is apart from what was decoded.
        step: Of the trainer.
        experts: How many experts a router chooses.
        baseline: Floors that a healthy run has.
        progress: Told how many modules are done.

    Raises:
        CompareError: no sample, or no module, is in both.
        DumpError: a tensor cannot be read.
    """
    samples = common_samples(target, golden)
    pairs = matched(target, golden)
    if not pairs:
        raise CompareError(f"{target.label} and {golden.label} have no module in common; are they of one model?")
    sums: list[dict[str, _Sums]] = []
    flipped: Flips = {}
    for number, (own, other) in enumerate(pairs):
        if progress is not None:
            progress(number, len(pairs), own.path or own.type_name)
        sums.append(_compared(target, golden, own, other, samples, experts, flipped))
    if not any(sums):
        raise CompareError(
            f"{target.label} and {golden.label} have no position of a sample in common: no tensor has the positions "
            "that samples.json names; was it written by this recording?"
        )
    paired = {part for value, _ in pairs for part in (value, *value.parts)}
    return StageDifference(
        step=step,
        modules=list(_judged(pairs, sums, target, golden, baseline)),
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
    """Return the ``number`` experts with the highest scores, ``[tokens, number]``, by their own number.

    Args:
        scores: ``[tokens, experts]``.
        number: How many are chosen.
    """
    return np.sort(np.argsort(-scores, axis=-1, kind="stable")[:, :number], axis=-1)


def _add(sums: _Sums, target: Array, golden: Array, sample: str, positions: Array) -> None:
    """Add the positions of a sample, ``[n, …]`` on both sides."""
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
    pairs: Sequence[tuple[ModuleValue, ModuleValue]],
    sums: Sequence[dict[str, _Sums]],
    target: StageTensors,
    golden: StageTensors,
    baseline: Baseline | None,
) -> Iterator[ModuleDifference]:
    number = sum(len(own) for own in sums)
    precision = Precision.FLOAT64
    for order, ((value, other), own) in enumerate(zip(pairs, sums, strict=True)):
        # What was rounded once stays rounded.
        precision = max(precision, *(precision_named(dtype) for dtype in (target.dtype(value), golden.dtype(other))))
        for phase, sum_ in own.items():
            floor = None if baseline is None else baseline(value.path, value.place, phase)
            floor = floor or module_floor(precision, order + 1)
            yield ModuleDifference(
                order=order,
                target=value,
                golden=other,
                phase=phase,
                score=module_score(sum_.error, floor, precision, number),
                is_equal=sum_.is_equal,
                max_abs=sum_.max_abs,
                positions=sum_.positions,
                samples=len(sum_.samples),
                worst=sum_.worst[1:],
                flip_rate=sum_.flipped / sum_.routed if sum_.routed else None,
            )


def is_given_wrong(
    first: ModuleDifference, target: StageTensors, golden: StageTensors, samples: Sequence[str]
) -> bool | None:
    """Return whether the module was given something else already, so that the fault is between modules.

    ``None`` if its inputs are not recorded, or cannot be matched.

    Raises:
        DumpError: a tensor cannot be read.
    """
    own = ModuleValue(first.target.path, first.target.type_name, Role.INPUT.value, "0")
    other = ModuleValue(first.golden.path, first.golden.type_name, Role.INPUT.value, "0")
    if not target.has(own) or not golden.has(other):
        return None
    found = _compared(target, golden, own, other, samples, 1, {}).get(first.phase)
    if found is None:
        return None
    return found.error > first.score.limit * first.score.floor


def table_of(differences: Sequence[StageDifference]) -> pl.DataFrame:
    """Return a row per module and phase; ``growth`` is the error over that of the module before."""
    rows: list[dict[str, Any]] = []
    for one in differences:
        before: dict[str, float] = {}
        for m in one.modules:
            error = m.score.value
            last = before.get(m.phase)
            rows.append(
                {
                    "step": one.step, "order": m.order, "module": m.name, "output": m.target.place, "phase": m.phase,
                    "error": error, "floor": m.score.floor, "score": m.score.score, "limit": m.score.limit,
                    VERDICT: (Verdict.ERROR if m.score.is_over else Verdict.PASS).value, "is_equal": m.is_equal,
                    "growth": error / last if last else None, "max_abs": m.max_abs, "positions": m.positions,
                    "samples": m.samples, "worst_sample": m.worst[0] or None,
                    "worst_position": m.worst[1] if m.worst[0] else None, "flip_rate": m.flip_rate,
                    "reason": reason_of(m) if m.score.is_over else None,
                }
            )  # fmt: skip
            before[m.phase] = error
    return pl.DataFrame(rows, schema=_SCHEMA)


def reason_of(module: ModuleDifference) -> str:
    """Return in words how far a module is off."""
    s = module.score
    worst = f"; the worst at position {module.worst[1]} of sample {module.worst[0][:12]}" if module.worst[0] else ""
    if not math.isfinite(s.value):
        return f"NaN or Inf on one side, or nothing but zeros{worst}"
    return f"{s.value:.2g} off, relative, where rounding explains {s.floor:.2g} ({s.source.value}){worst}"
