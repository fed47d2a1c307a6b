"""Install points in Cells and parameters only while the compiler reads them.

Between compilations, and in the dynamic graph, the Cells are the user's own.
"""

from __future__ import annotations

import functools
import os
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mindspore as ms
from mindspore import Parameter, nn

from msprobe.mindspore._cells import Unnamed, cells_of, hide_hooks, own_parameters
from msprobe.mindspore._compiling import api
from msprobe.mindspore.graph.attempts import Attempts
from msprobe.mindspore.graph.collector import station
from msprobe.mindspore.graph.generate import construct_like
from msprobe.mindspore.graph.plan import Plan

_BARE = "msprobe_bare"
"""Suffix of the name of a graph that is compiled without points for comparison."""

_FRONT_END_ONLY = "MS_DEV_PRECOMPILE_ONLY"
"""With it MindSpore builds a graph but no kernels."""


class Compilation:
    """Patches the compiler once something is to be recorded, for the rest of the process.

    A graph that is compiled while nothing is recorded may run while something is.
    """

    def __init__(self) -> None:
        self._models: weakref.WeakSet[nn.Cell] = weakref.WeakSet()
        self._tapped: weakref.WeakSet[nn.Cell] = weakref.WeakSet()
        self._is_installed = False
        self._depth = 0
        self.num_failed = 0
        self.writes_files = ms.get_context("device_target") == "Ascend"

    def add(self, model: nn.Cell) -> None:
        """Compile points into this net from now on."""
        self._models.add(model)
        if not self._is_installed:
            self._is_installed = True
            for name in ("GraphExecutor_", "JitExecutor_"):
                if (executor := getattr(api, name, None)) is not None:
                    self._stand_before(executor)

    def has_compiled(self, model: nn.Cell) -> bool:
        """Whether a graph with points of this net has been compiled."""
        return model in self._tapped

    @property
    def has_files(self) -> bool:
        """Whether graphs may have written files."""
        return self.writes_files and len(self._tapped) > 0

    def _stand_before(self, executor: Any) -> None:
        compile_graph: Callable[..., Any] = executor.compile

        @functools.wraps(compile_graph)
        def patch(executor: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth:  # within another compilation
                return compile_graph(executor, source, *args, **kwargs)

            graph = _Graph(self, source, functools.partial(compile_graph, executor, source), executor, args, kwargs)
            result = Attempts(graph).run()
            if result.plan is None:
                self.num_failed += 1
            return result.compiled

        executor.compile = patch

    @contextmanager
    def in_place(self, source: Any, plan: Plan | None) -> Iterator[None]:
        """Return a block in which Cells and parameters have the points of a plan, and none of our hooks."""
        put = _Put(plan, _taps(writes_files=self.writes_files))
        self._depth += 1
        models = list(self._models)
        try:
            # In the dynamic graph, a Cell that is compiled by itself is called like others, and has hooks.
            skipped = source if ms.get_context("mode") == ms.PYNATIVE_MODE else None
            cells = [cell for _, _, cell in cells_of([Unnamed(model) for model in models])]
            for cell in cells:
                if hasattr(cell, "bprop"):
                    put.leave_parameters_of(cell)
            for cell in cells:
                put.into(cell, is_tapped=cell is not skipped)
            yield
            if plan is not None:
                self._tapped.update(models)
        finally:
            self._depth -= 1
            put.take_out()


class _Graph:
    """See `msprobe.mindspore.graph.attempts.Graph`."""

    def __init__(
        self,
        compilation: Compilation,
        source: Any,
        compile_graph: Callable[..., Any],
        executor: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.name = _name_of(source)
        self._compilation = compilation
        self._source = source
        self._compile_graph = compile_graph
        self._executor = executor
        self._kwargs = kwargs
        # Arguments, keyword arguments, phase and settings.
        self._before, self._phase, self._after = args[:2], args[2], args[3:]

    def compile(self, plan: Plan | None) -> Any:
        return self._compile(plan, self._phase)

    def exported(self) -> bytes:
        return self._export(self._phase)

    def exported_bare(self) -> bytes:
        phase = f"{self._phase}.{_BARE}"
        was_only = os.environ.get(_FRONT_END_ONLY)
        os.environ[_FRONT_END_ONLY] = "1"
        try:
            self._compile(None, phase)
            return self._export(phase)
        finally:
            if was_only is None:
                del os.environ[_FRONT_END_ONLY]
            self._executor.del_net_res(self._source, {phase})

    def _compile(self, plan: Plan | None, phase: str) -> Any:
        with self._compilation.in_place(self._source, plan):
            return self._compile_graph(*self._before, phase, *self._after, **self._kwargs)

    def _export(self, phase: str) -> bytes:
        return self._executor.get_func_graph_proto(phase, "mind_ir", False)


class _Put:
    """Points that are installed in Cells and parameters."""

    def __init__(self, plan: Plan | None, taps: Any) -> None:
        self._plan = plan
        self._taps = taps
        self._seen: set[int] = set()
        self._removals: list[Callable[[], object]] = []

    def into(self, cell: nn.Cell, *, is_tapped: bool) -> None:
        """Install a Cell's points, and remove its hooks, which must not be compiled."""
        if id(cell) in self._seen:
            return
        self._seen.add(id(cell))
        self._removals.append(hide_hooks(cell))
        if self._plan is None:
            return
        own = own_parameters(cell)
        for parameter in own.values():
            if self._plan.hooks(parameter.name):
                self._hook(parameter)
        if is_tapped and type(cell).construct is not nn.Cell.construct:
            self._tap(cell, own, by_call=self._plan.by_call)

    def leave_parameters_of(self, cell: nn.Cell) -> None:
        """Set no hooks on parameters used within a backward of the user: the compiler fails on them."""
        self._seen.update(id(parameter) for parameter in cell.get_parameters())

    def _hook(self, parameter: Parameter) -> None:
        if parameter.requires_grad and id(parameter) not in self._seen:
            self._seen.add(id(parameter))
            hook = self._taps.parameter_hook(station().number_of_parameter(parameter))
            self._removals.append(parameter.register_hook(hook).remove)

    def _tap(self, cell: nn.Cell, own: Mapping[str, Parameter], *, by_call: bool) -> None:
        attributes: dict[str, Any] = cell.__dict__
        kind = type(cell)
        before = attributes.get("construct")
        original: Any = cell.construct

        def take_out() -> None:
            for name in ("_msprobe_cell", "_msprobe_parameters", "_msprobe_construct", "construct"):
                attributes.pop(name, None)
            if before is not None:
                attributes["construct"] = before
            if type(cell) is not kind:
                cell.__class__ = kind

        self._removals.append(take_out)
        construct = self._taps.construct if by_call else construct_like(original, self._taps)
        if hasattr(cell, "bprop"):
            # The user's backward belongs to the user's construct, so both move to a Cell within this one.
            original = _copy_of(cell)
            cell.__class__ = _without_bprop(kind)
        attributes["_msprobe_cell"] = station().number_of_cell(cell, own)
        attributes["_msprobe_parameters"] = tuple(own.values())
        attributes["_msprobe_construct"] = original
        attributes["construct"] = types.MethodType(construct, cell)

    def take_out(self) -> None:
        """Restore everything."""
        while self._removals:
            self._removals.pop()()


def _taps(*, writes_files: bool) -> Any:
    # Importing either module creates operators, so import only the one that compiling needs.
    if writes_files:
        from msprobe.mindspore.graph import dumps

        return dumps
    from msprobe.mindspore.graph import taps

    return taps


def _copy_of(cell: nn.Cell) -> nn.Cell:
    """Return a Cell with the same class and attributes; a copy would share the same dictionary."""
    kind = type(cell)
    copy = kind.__new__(kind)
    nn.Cell.__init__(copy)
    # A Cell deletes the graphs in its cache when it ends, so the copy must not share the original's.
    own = {name: copy.__dict__.get(name) for name in ("_compile_cache", "create_time")}
    copy.__dict__.update({**cell.__dict__, **own})
    return copy


def _without_bprop(kind: type[nn.Cell]) -> type[nn.Cell]:
    """Return a class like ``kind`` that reports no ``bprop``."""

    def missing(_cell: nn.Cell) -> Any:
        raise AttributeError("bprop")

    return type(kind.__name__, (kind,), {"bprop": property(missing), "__module__": kind.__module__})


def _name_of(source: Any) -> str:
    return type(source).__name__ if isinstance(source, nn.Cell) else getattr(source, "__name__", "a function")


@functools.cache
def compilation() -> Compilation:
    """Return the compiler patch of this process."""
    return Compilation()
