"""Whether the monitor sees a training: runs two steps of it with everything on, and measures some of it by other means.

What it measures itself is taken around the optimizer's method ``step`` and from hooks on the parameters, by none of the
code that finds trainers: gradients and parameters where models have them, which is where a plain trainer has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

from msprobe_core.capture.framework_choice import find_framework, listed
from msprobe_core.errors import SessionError
from msprobe_core.guard import reason_of
from msprobe_core.interception import FunctionPatch
from msprobe_core.model import Digest
from msprobe_core.monitor.collector import Collector
from msprobe_core.monitor.coverage import FILE, Seen, read_coverage
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitoring.files import read_monitored
from msprobe_core.monitoring.layout_file import Layouts, Parts, read_layout
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.protocols.capabilities import MonitoringFramework
from msprobe_core.protocols.framework import Framework

STEPS = 2
_DIGITS = 20
_TOLERANCE = 1e-5
_SMALLEST = 1e-12
_MAX_WRONG = 8


class Verdict(Enum):
    """What the self-test found."""

    GOOD = "good"
    WRONG = "wrong"
    BLIND = "blind"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One quantity.

    Attributes:
        quantity: Which.
        seen: What the monitor says of it.
        is_required: Whether to see nothing, or less than expected, is a failure.
        num_checked: Values that were measured by other means too.
        wrong: Descriptions of some that differ.
    """

    quantity: Quantity
    seen: Seen
    is_required: bool
    num_checked: int
    wrong: Sequence[str]

    @property
    def verdict(self) -> Verdict:
        """What was found of this quantity."""
        expected = self.seen.expected
        is_seen = self.seen.seen > 0 if expected is None else self.seen.seen >= expected > 0
        if self.is_required and not (is_seen and self.seen.first_step is not None):
            return Verdict.BLIND
        return Verdict.WRONG if self.wrong else Verdict.GOOD


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """The result.

    Attributes:
        trainers: Names of the trainers that were recognised.
        quantities: One for each quantity.
    """

    trainers: Sequence[str]
    quantities: Sequence[Checked]

    @property
    def verdict(self) -> Verdict:
        """The worst of the quantities'; blind is worst, because what is not seen cannot be checked."""
        found = {each.verdict for each in self.quantities}
        return next((each for each in (Verdict.BLIND, Verdict.WRONG) if each in found), Verdict.GOOD)


def run_selftest(
    given: Any, directory: Path, *, grad_acc_steps: int = 1, not_expected: Sequence[Quantity] = ()
) -> SelfTest:
    """Train two steps.

    Args:
        given: A model, an optimizer, and a function that runs one step of the training.
        directory: For the monitor's files.
        grad_acc_steps: Micro-batches of a step.
        not_expected: Quantities that this training does not have, such as second moments.

    Raises:
        SessionError: something else was given, or the training cannot be monitored or measured.
        DumpError: the monitor has written nothing that can be read.
    """
    model, optimizer, step = _parts_of(given)
    models = listed(model)
    framework = find_framework(None, next((each for each in models if each is not None), None))
    plan = MonitorPlan(
        xy_distribution=True, wg_distribution=True, mv_distribution=True, param_distribution=True,
        ndigits=_DIGITS, output=directory,
    )  # fmt: skip
    collector = Collector(plan, framework, models, optimizer, grad_acc_steps=grad_acc_steps, has_main_grad=True)
    own = _OwnMeasures(framework, models, optimizer)
    try:
        for _ in range(STEPS):
            step()
    finally:
        own.remove()
        collector.close()
    if own.failures:
        raise SessionError(f"the self-test cannot measure this training by its own means ({own.failures[0]})")
    return _judged(directory, own, plan, frozenset(not_expected))


def _parts_of(given: Any) -> tuple[Any, Any, Callable[[], object]]:
    kind, parts = type(cast("object", given)).__name__, listed(given) if isinstance(given, list | tuple) else []
    if len(parts) != 3 or not callable(parts[2]):  # as the message says
        raise SessionError(
            f"the self-test got {kind}; the function must return a model, its optimizer, and a function without "
            "arguments that runs one step of the training"
        )
    return parts[0], parts[1], parts[2]


class _OwnMeasures:
    """Norms around the method ``step`` of the optimizer, and of what arrives at parameters in backward."""

    def __init__(self, framework: Framework, models: Sequence[Any], optimizer: Any) -> None:
        """Begin to measure."""
        self._framework = framework
        self._tools = cast("MonitoringFramework", framework)  # the collector has checked it
        self._models = models
        self.norms: dict[tuple[Quantity, int, int, str], float] = {}
        self.failures: list[str] = []
        self._sums: dict[tuple[int, str], Any] = {}
        self._step = 0
        self._removals = [self._hook(place, each) for place, each in self._parameters().items()]
        self._optimizer = optimizer
        # Of several, none steps all parameters.
        self._patches = [] if isinstance(optimizer, list | tuple) else [FunctionPatch(optimizer, "step", self._handle)]
        for patch in self._patches:
            patch.install()

    def _parameters(self) -> Mapping[tuple[int, str], Any]:
        return {
            (stage, name): parameter
            for stage, model in enumerate(self._models)
            if model is not None
            for name, parameter in self._tools.parameters_of(model).items()
        }

    def _hook(self, place: tuple[int, str], parameter: Any) -> Callable[[], None] | None:
        def arrived(gradient: Any) -> None:
            with self._framework.quiet(self._note):
                known = self._sums.get(place)
                self._sums[place] = gradient * 1 if known is None else known + gradient

        return self._framework.watch_gradient(parameter, arrived)

    def _handle(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with self._framework.quiet(self._note):
            found = {(Quantity.GRADIENT_UNREDUCED, stage, name): total for (stage, name), total in self._sums.items()}
            for (stage, name), parameter in self._parameters().items():
                found[Quantity.PARAM_ORIGIN, stage, name] = parameter
                found[Quantity.GRADIENT_REDUCED, stage, name] = self._tools.gradient_of(parameter, is_main=True)
                if hasattr(self._optimizer, "state"):
                    first, second = self._tools.moments_of(self._optimizer, parameter)
                    found[Quantity.EXP_AVG, stage, name] = first
                    found[Quantity.EXP_AVG_SQ, stage, name] = second
            self._measure(found)
        result = original(*args, **kwargs)
        with self._framework.quiet(self._note):
            self._measure(
                {(Quantity.PARAM_UPDATED, stage, name): each for (stage, name), each in self._parameters().items()}
            )
        self._sums.clear()
        self._step += 1
        return result

    def _note(self, where: str, error: Exception) -> None:
        self.failures.append(f"{where}: {reason_of(error)}")

    def _measure(self, tensors: Mapping[tuple[Quantity, int, str], Any]) -> None:
        reducer = self._framework.reducer()
        digests = {place: Digest() for place, tensor in tensors.items() if tensor is not None}
        for place, digest in digests.items():
            reducer.statistics(tensors[place], digest)
        reducer.collect()
        for (quantity, stage, name), digest in digests.items():
            if digest.stats is not None and digest.stats.l2_norm is not None:
                self.norms[quantity, self._step, stage, name] = digest.stats.l2_norm

    def remove(self) -> None:
        """End."""
        for patch in self._patches:
            patch.remove()
        for remove in self._removals:
            if remove is not None:
                remove()


def _judged(directory: Path, own: _OwnMeasures, plan: MonitorPlan, not_expected: frozenset[Quantity]) -> SelfTest:
    run = read_monitored(directory)
    (rank_directory,) = {path.parent for path in directory.glob(f"*/{FILE}")}
    coverage = read_coverage(rank_directory)
    layout = read_layout(rank_directory) or Layouts(rank=0)
    columns = ["quantity", "step", "stage", "name", "norm"]
    rows = run.frame.select(columns).rows() if "norm" in run.statistics else []
    monitored = {(Quantity(quantity), step, stage or 0, name): norm for quantity, step, stage, name, norm in rows}
    found: list[Checked] = []
    for quantity in (each for each in Quantity if each in plan.quantities):
        wrong, num_checked = _compared(quantity, own.norms, monitored, layout)
        found.append(
            Checked(
                quantity=quantity,
                seen=coverage[quantity],
                is_required=quantity not in not_expected,
                num_checked=num_checked,
                wrong=wrong[:_MAX_WRONG],
            )
        )
    return SelfTest(trainers=layout.trainers, quantities=found)


_Norms = Mapping[tuple[Quantity, int, int, str], float]


def _compared(quantity: Quantity, own: _Norms, monitored: _Norms, layout: Layouts) -> tuple[list[str], int]:
    """Return descriptions of the values that differ, and how many were compared."""
    wrong: list[str] = []
    places = [place for place in own if place[0] is quantity and place in monitored]
    checked = [place for place in places if _is_comparable(place, layout)]
    for place in checked:
        expected, norm = own[place], monitored[place]
        if not math.isclose(norm, expected, rel_tol=_TOLERANCE, abs_tol=_SMALLEST):
            _, step, stage, name = place
            wrong.append(f"{stage}:{name} at step {step}: norm is {norm:.6g}, measured {expected:.6g}")
    return wrong, len(checked)


def _is_comparable(place: tuple[Quantity, int, int, str], layout: Layouts) -> bool:
    """Whether models have this value where plain trainers have it."""
    quantity, _, stage, name = place
    parts = layout.parts.get(f"{stage}:{name}", Parts())
    if quantity is Quantity.GRADIENT_UNREDUCED:
        return not {*layout.trainers} - {"ddp", "dtensor"}
    if quantity not in {Quantity.PARAM_ORIGIN, Quantity.PARAM_UPDATED}:
        return parts.value == parts.update and not {*layout.trainers} & {"megatron", "zero-1-2", "zero-3"}
    return "zero-3" not in layout.trainers
