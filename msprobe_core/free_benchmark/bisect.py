"""Which module of a training explains a value of its step: runs the step with the precision of modules raised."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from msprobe_core.errors import ConfigError, SessionError
from msprobe_core.findings import Finding, Level, noted
from msprobe_core.free_benchmark.bisect_codes import BisectCode
from msprobe_core.free_benchmark.bisection import Array, Bisection, Contribution, default_pairs
from msprobe_core.free_benchmark.raised_steps import TrainingStep, Trials
from msprobe_core.free_benchmark.step_function import step_of
from msprobe_core.model import ReferenceFormat

_NUM_TOLD = 5


class BisectVerdict(str, Enum):
    """What a bisection answers."""

    FOUND = "found"
    """One module explains the change of the value."""
    SHARED = "shared"
    """Several modules do."""
    SPREAD = "spread"
    """None does beyond rounding, to which all contribute."""
    NO_DIFFERENCE = "no_difference"
    """Raising all modules does not change the value."""
    NOT_REPEATED = "not_repeated"
    """Two equal runs differ by too much to tell."""


class PartOfModules(msgspec.Struct, frozen=True, kw_only=True):
    """The contribution of one module, or of several that were not told apart.

    Attributes:
        modules: What they are called, in the order in which the step calls them first.
        share: Of the change from the unchanged step to the one with all modules raised; may be negative.
        change: Norm of the change that raising just these makes to the value.
        times: The share in units of noise.
        is_inferred: Whether it is what the rest leaves, because the step fails with just these raised.
        is_joint: Whether it has this share only as a whole, and neither half of it has.
        loss: That the step returns with just these raised; ``None`` if it returns none, or was not run so.
    """

    modules: tuple[str, ...]
    share: float
    change: float
    times: float
    is_inferred: bool = False
    is_joint: bool = False
    loss: float | None = None

    @property
    def label(self) -> str:
        """The module, or the first and the last one with their number."""
        if len(self.modules) == 1:
            return self.modules[0]
        return f"{self.modules[0]} … {self.modules[-1]}: {len(self.modules)} modules"


class BisectResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a bisection has found.

    Attributes:
        target: Name of the value.
        reference: Format that modules were raised to.
        verdict: The answer.
        headline: The answer as a finding.
        notes: What else is to be known.
        num_modules: Number of modules that could be raised.
        value: Of the unchanged step; the norm of a tensor.
        raised_value: With all modules raised.
        loss: Of the unchanged step; ``None`` if it returns none.
        raised_loss: With all modules raised.
        difference: Norm of the difference of the two.
        repeat_difference: Between two runs of the unchanged step.
        noise: Share of the difference that raising any modules has.
        parts: The largest contribution first; together they are all modules.
        measured: All sets that were measured, in this order.
        num_pairs: Number of pairs of steps.
        num_steps: Number of steps, with the unchanged one before.
        seconds: That all of this took.
    """

    target: str
    reference: ReferenceFormat
    verdict: BisectVerdict
    headline: Finding
    notes: tuple[Finding, ...]
    num_modules: int
    value: float
    raised_value: float
    loss: float | None
    raised_loss: float | None
    difference: float
    repeat_difference: float
    noise: float
    parts: tuple[PartOfModules, ...]
    measured: tuple[PartOfModules, ...]
    num_pairs: int
    num_steps: int
    seconds: float


def bisect_step(
    step: Callable[[], Any], model: Any, optimizer: Any = None, *, target: str | None = None,
    reference: str | None = None, pairs: int | None = None,
) -> BisectResult:  # fmt: skip
    """Find which module of a model explains a value of a training step, in the training's own process.

    ::

        if number == 1200:
            result = bisect_step(lambda: train_step(batch), model, [optimizer, scheduler])
            print(result.headline)

    The step is run about twenty times for 200 modules, each time with other modules computing in a finer format, and
    from the same parameters, buffers, gradients, optimizer and random states. Afterwards the training is in the state
    that one unchanged run of the step has left it in, to the bit.

    Args:
        step: Runs one step, with its optimizer's step or without. Returns the loss or, to choose among several values,
            a mapping; tensors are values, too.
        model: The model, or several.
        optimizer: Everything else with a state that the step changes: an optimizer, or a list of optimizers,
            schedulers, scalers.
        target: ``gradients``, ``grad_norm``, ``loss``, or the name of a returned value; by default the gradients if
            there are any, else the loss.
        reference: ``fp32`` or ``fp64``; by default ``fp32`` for a training in half precision, else ``fp64``.
        pairs: Maximum number of pairs of steps.

    Raises:
        ConfigError: an argument is wrong.
        SessionError: the step cannot be repeated.
    """
    return bisect(step_of(step, model, optimizer), target=target, reference=reference, pairs=pairs)


def bisect(
    step: TrainingStep, *, target: str | None = None, reference: str | None = None, pairs: int | None = None,
    progress: Callable[[int], object] = lambda _pairs: None,
) -> BisectResult:  # fmt: skip
    """Find which module explains a value of a step; see `bisect_step`.

    Args:
        step: The step.
        target: See `bisect_step`.
        reference: See `bisect_step`.
        pairs: See `bisect_step`.
        progress: Called with the number of pairs of steps that were run.
    """
    begin = time.perf_counter()
    if pairs is not None and (isinstance(pairs, bool) or pairs < 1):
        raise ConfigError(f"bisect: 'pairs' is {pairs!r}, but must be an integer from 1")
    with Trials(step, target, _format_of(reference)) as trials:
        base, loss = trials.unchanged(), trials.loss
        repeated = trials.again()
        whole, raised_loss = trials.with_all_raised(), trials.loss
        progress(1)
        paths = trials.modules
        losses: dict[range, float | None] = {range(len(paths)): raised_loss}

        def measure(part: range) -> Array | None:
            value = trials.with_raised(frozenset(paths[i] for i in part))
            losses[part] = trials.loss
            return None if value is None else _alike(value.numbers, base.numbers, trials.target)

        first, last, second = (_alike(value.numbers, base.numbers, trials.target) for value in (base, whole, repeated))
        search = Bisection(
            len(paths),
            first,
            last,
            second,
            base.resolution,
            pairs or default_pairs(len(paths)),
            _counted(measure, progress),
        )
        search.run()
        return _Told(search, trials, losses, loss).result(time.perf_counter() - begin)


def _counted(measure: Callable[[range], Array | None], progress: Callable[[int], object]) -> Any:
    num_steps = 2

    def measured(part: range) -> Array | None:
        nonlocal num_steps
        found = measure(part)
        num_steps += 1
        progress(num_steps // 2)
        return found

    return measured


def _format_of(reference: str | None) -> ReferenceFormat | None:
    try:
        return None if reference is None else ReferenceFormat(reference)
    except ValueError:
        known = ", ".join(each.value for each in ReferenceFormat)
        raise ConfigError(f"bisect: 'reference' is {reference!r}; known: {known}") from None


def _alike(numbers: Array, base: Array, target: str) -> Array:
    if numbers.shape != base.shape:
        raise SessionError(f"{target!r} has {numbers.size} elements in one run of the step and {base.size} in another")
    if not np.isfinite(numbers).all():
        raise SessionError(f"{target!r} is not finite; `msprobe overflow_check` finds where NaN and Inf come from")
    return numbers


# --- the answer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Told:
    """Tells what a search has found."""

    search: Bisection
    trials: Trials
    losses: Mapping[range, float | None]
    loss: float | None

    def result(self, seconds: float) -> BisectResult:
        search, trials = self.search, self.trials
        return BisectResult(
            target=trials.target, reference=trials.reference, verdict=self._verdict, headline=self._headline,
            notes=tuple(self._notes), num_modules=len(trials.modules), value=_size(search.base),
            raised_value=_size(search.whole), loss=self.loss, raised_loss=self.losses[range(len(trials.modules))],
            difference=search.distance, repeat_difference=search.repeat_distance, noise=search.noise,
            parts=self._parts, measured=tuple(map(self._part, search.measured)), num_pairs=search.num_pairs,
            num_steps=trials.num_steps, seconds=seconds,
        )  # fmt: skip

    @cached_property
    def _parts(self) -> tuple[PartOfModules, ...]:
        return tuple(map(self._part, self.search.ranked))

    def _part(self, found: Contribution) -> PartOfModules:
        labels, paths = self.trials.labels, self.trials.modules
        return PartOfModules(
            modules=tuple(labels[paths[i]] for i in found.modules), share=found.share, change=found.change,
            times=self.search.times(found), is_inferred=found.is_inferred, is_joint=found.is_joint,
            loss=self.losses.get(found.modules),
        )  # fmt: skip

    @property
    def _verdict(self) -> BisectVerdict:
        if not self.search.has_difference:
            return BisectVerdict.NO_DIFFERENCE
        if not self.search.is_repeatable:
            return BisectVerdict.NOT_REPEATED
        if self.search.single is not None:
            return BisectVerdict.FOUND
        return BisectVerdict.SHARED if self.search.sharers else BisectVerdict.SPREAD

    @property
    def _headline(self) -> Finding:
        search, verdict = self.search, self._verdict
        fields: dict[str, Any] = {
            "target": self.trials.target, "format": self.trials.reference.value, "difference": search.distance,
        }  # fmt: skip
        if verdict is BisectVerdict.NO_DIFFERENCE:
            return Finding(BisectCode.NO_DIFFERENCE, fields=fields | {"resolution": search.resolution})
        if verdict is BisectVerdict.NOT_REPEATED:
            return Finding(BisectCode.NOT_REPEATED, Level.WARNING, fields | {"repeat": search.repeat_distance})
        if verdict is BisectVerdict.FOUND:
            first = self._parts[0]
            found = {"module": first.label, "percent": 100 * first.share, "times": first.times}
            return Finding(BisectCode.FOUND, Level.ERROR, fields | found)
        is_shared = verdict is BisectVerdict.SHARED
        told = [_told(self._part(each)) for each in (search.sharers or search.ranked)[:_NUM_TOLD]]
        code, level = (BisectCode.SHARED, Level.WARNING) if is_shared else (BisectCode.SPREAD, Level.NOTE)
        return Finding(code, level, fields | {"parts": told})

    @property
    def _notes(self) -> Iterator[Finding]:
        search = self.search
        if search.measured:
            total = 100 * sum(part.share for part in self._parts)
            yield Finding(BisectCode.CONTRIBUTIONS, fields={"percent": total, "count": len(self._parts)})
            if not search.noise:
                yield Finding(BisectCode.NO_NOISE)
            if search.is_cancelling and search.base.size == 1:
                yield Finding(BisectCode.CANCELLING, fields={"target": self.trials.target})
        largest = max((len(part.modules) for part in search.sharers), default=1)
        if self._verdict is BisectVerdict.SHARED and largest > 1:
            yield Finding(BisectCode.UNSPLIT, fields={"pairs": search.num_pairs, "count": largest})
        for path, why in self.trials.refused.items():
            fields = {"module": self.trials.labels[path], "why": noted(why)}
            yield Finding(BisectCode.NOT_RAISED, Level.WARNING, fields)


def _size(numbers: Array) -> float:
    return float(numbers[0]) if numbers.size == 1 else float(np.linalg.norm(numbers))


def _told(part: PartOfModules) -> Finding:
    return Finding(BisectCode.PART, fields={"modules": part.label, "percent": 100 * part.share, "times": part.times})
