"""Find the points that a graph can be compiled with without changing its results."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import mindspore as ms
import numpy as np
from mindspore.common.seed import _KERNEL_SEED

from msprobe.mindspore.graph.collector import station
from msprobe.mindspore.graph.made import Made, has_points, read_made
from msprobe.mindspore.graph.plan import Plan, Point, Tap
from msprobe_core.plugin import reason_of

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """A compiled graph.

    Attributes:
        compiled: What the compiler returned.
        plan: The points in it; ``None`` if there are none.
    """

    compiled: Any
    plan: Plan | None


class Graph(Protocol):
    """A graph to be compiled."""

    name: str

    def compile(self, plan: Plan | None) -> Any:
        """Compile it with some points, or with none, and return the compiler's result."""
        ...

    def exported(self) -> bytes:
        """Return the latest compiled graph, in the form that `read_made` reads."""
        ...

    def exported_bare(self) -> bytes:
        """Return the compiler's graph without points; the latest compiled one stays."""
        ...


class Attempts:
    """Compiles one graph with as many points as possible."""

    def __init__(self, graph: Graph) -> None:
        """Begin.

        Args:
            graph: The graph to compile.
        """
        self._graph = graph
        self._bare: Made | None = None
        self._seeds = _Seeds()
        self._is_first = True

    def run(self) -> Result:
        """Compile.

        Raises:
            Exception: the graph cannot be compiled without points either.
        """
        # In the dynamic graph the gradient of a compiled function may be taken outside of it.
        first = Plan(tap=Tap.CELL if ms.get_context("mode") == ms.GRAPH_MODE else Tap.OPERATOR)
        try:
            return self._settle(first)
        except _ComputesOtherwiseError as error:
            return self._without_points(reason_of(error))
        except Exception as error:  # noqa: BLE001  # ours or the user's
            reason = reason_of(error)
        self._compile(None)  # an error of the user's is raised here
        for plan in self._lesser(first):
            try:
                return self._settle(plan)
            except Exception:  # noqa: PERF203  # only the first one is reported
                _logger.debug("%s: cannot be compiled with %s", self._graph.name, plan, exc_info=True)
        return self._without_points(reason)

    def _without_points(self, reason: str) -> Result:
        compiled = self._compile(None)
        _logger.warning(
            "%s: compiled without the points that record, since with them it cannot be (%s); nothing of this "
            "graph is recorded", self._graph.name, reason,
        )  # fmt: skip
        return Result(compiled, None)

    def _lesser(self, first: Plan) -> Iterator[Plan]:
        """Yield further plans to try for a graph."""
        used = self._made_bare().parameters
        for plan in (first, first.without_taps()):
            # The compiler fails over hooks of parameters that take no part, and sometimes over any.
            yield plan.hooking(used)
            yield plan.by_signature()
            yield plan.by_signature().hooking(used)
            yield plan.hooking(frozenset())
            yield plan.by_signature().hooking(frozenset())

    def _settle(self, plan: Plan) -> Result:
        """Compile with fewer and fewer points until the graph computes the same as without them."""
        while True:
            compiled = self._compile(plan)
            exported = self._graph.exported()
            if not has_points(exported):
                return Result(compiled, plan)
            made = read_made(exported)
            if not made.regrouped and made.computes_as(self._made_bare()):
                self._say(plan)
                return Result(compiled, plan)
            plan = _less(plan, made.regrouped)

    def _made_bare(self) -> Made:
        if self._bare is None:
            self._seeds.restore()
            self._bare = read_made(self._graph.exported_bare())
        return self._bare

    def _say(self, plan: Plan) -> None:
        if plan.hooked == frozenset():
            _logger.warning(
                "%s: no gradients of its parameters are recorded: with points for them it cannot be compiled "
                "as it is without",
                self._graph.name,
            )
        if plan.tap is Tap.NONE or plan.untapped:
            which = "the" if plan.tap is Tap.NONE else str(len(plan.untapped))
            _logger.warning(
                "%s: %s gradients of inputs and results of its Cells are not recorded: with points for them, sums and "
                "products would be computed in another order, and rounded otherwise", self._graph.name, which,
            )  # fmt: skip

    def _compile(self, plan: Plan | None) -> Any:
        if not self._is_first:
            self._seeds.restore()
        self._is_first = False
        station().plan = plan or Plan()
        return self._graph.compile(plan)


def _less(plan: Plan, regrouped: frozenset[Point]) -> Plan:
    """Return the plan to try after one with which the graph computes differently."""
    if regrouped:
        return plan.without(regrouped)
    if plan.tap is not Tap.NONE:
        return plan.without_taps()
    if plan.hooked != frozenset():
        return plan.hooking(frozenset())
    raise _ComputesOtherwiseError("sums and products would be computed in another order, and rounded otherwise")


class _ComputesOtherwiseError(Exception):
    """A graph whose points only read values computes differently."""


class _Seeds:
    """Random state that compilation changes: every compilation of a graph must begin with the same state."""

    def __init__(self) -> None:
        self._of_operators = dict(_KERNEL_SEED)
        self._of_numpy = np.random.get_state()  # MindSpore draws from it

    def restore(self) -> None:
        """Restore it."""
        _KERNEL_SEED.clear()
        _KERNEL_SEED.update(self._of_operators)
        np.random.set_state(self._of_numpy)
