"""Interception of Cells in the dynamic graph: forward hooks on every Cell of the nets, and parameter hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mindspore import Parameter, nn

from msprobe.mindspore._compiling import Compiling
from msprobe.mindspore._gradients import CallGradients, builds_graph, is_in_backward
from msprobe.mindspore._quiet import RecordingGuard
from msprobe_core.interception import (
    FoundModule,
    Handle,
    Hook,
    ModuleCalls,
    NothingPending,
    WatchHooks,
    module_stem,
    register_after,
)
from msprobe_core.plugin import CallRecorder, CallWatcher, NamedModel

PREFIX = "Cell"

_RECOMPUTE_CELL = "_recompute_cell"
"""Attribute that `Cell.recompute` adds to a Cell: it calls the Cell's own construct, which is recorded anyway."""


_HOOK_TABLES = ("_forward_pre_hook", "_forward_hook", "_forward_hook_always_called")
"""Attributes of a Cell for its hooks; releases that create them on first use keep them as ``_lazy_forward_hook``."""


class Unnamed(NamedTuple):
    """A single net; see `msprobe_core.plugin.NamedModel`."""

    model: nn.Cell
    name: str = ""


def cells_of(models: Sequence[NamedModel]) -> Iterator[FoundModule]:
    """Yield the Cells of some nets, including the roots; a Cell found twice counts once, under its first name."""
    seen: set[int] = set()
    for model in models:
        for path, cell in walk(model.model, model.name, seen):
            yield FoundModule(path, type(cell).__name__, cell)


def walk(cell: nn.Cell, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield a Cell and the Cells inside it with their paths, each once, in the order of `Cell.cells_and_names`.

    The generators of that method, one for each Cell, take twice the time.

    Args:
        cell: The Cell.
        path: Its own path.
        seen: Identities of Cells that are passed over; those that are yielded are added.
    """
    seen = set() if seen is None else seen
    ahead: list[tuple[str, Any]] = [(path, cell)]
    while ahead:
        found = path, cell = ahead.pop()
        if id(cell) in seen:
            continue
        seen.add(id(cell))
        yield found
        inner = cell._cells
        if inner:
            head = f"{path}." if path else ""
            ahead += [(head + name, each) for name, each in reversed(inner.items()) if each and name != _RECOMPUTE_CELL]


def own_parameters(cell: nn.Cell) -> dict[str, Parameter]:
    """Return the parameters of a Cell, without those of the Cells inside it, by attribute name."""
    return {name: parameter for name, parameter in cell._params.items() if parameter is not None}


class CellTraits:
    """See `msprobe_core.interception.modules.ModuleTraits`."""

    prefix = PREFIX
    quiet = RecordingGuard
    gradients = CallGradients
    builds_graph = staticmethod(builds_graph)
    is_in_backward = staticmethod(is_in_backward)

    def own_parameters(self, module: nn.Cell) -> Mapping[str, Parameter]:
        """Return the parameters of a Cell."""
        return own_parameters(module)

    def end_of_call(self, module: nn.Cell) -> None:
        """Do nothing: the parameters have their own hooks."""


class ParameterHooks:
    """Hooks that report the gradients of the parameters of some nets; ``remove`` removes every one of them.

    The hooks are absent during compilation, which would compile them too, or fail to.
    """

    def __init__(self, models: Sequence[NamedModel], recorder: CallRecorder) -> None:
        """Prepare; ``install`` begins.

        Args:
            models: Nets whose parameters report.
            recorder: Receives every gradient.
        """
        self._models = models
        self._recorder = recorder
        self._parameters: list[tuple[Parameter, Callable[[Any], None]]] = []
        self._handles: list[Handle] = []
        self._compiling = Compiling(self._step_aside, self._come_back)

    def install(self) -> None:
        """Install the hooks."""
        known: set[int] = set()
        for path, type_name, cell in cells_of(self._models):
            self._find(path, type_name, cell)
            stem = module_stem(PREFIX, path, type_name)
            hooked: list[str] = []
            for name, parameter in own_parameters(cell).items():
                if parameter.requires_grad and id(parameter) not in known:
                    known.add(id(parameter))
                    hooked.append(name)
                    self._parameters.append((parameter, self._parameter_hook(stem, name)))
            if hooked:
                self._recorder.expect_parameter_gradients(stem, hooked)
        self._come_back()
        self._compiling.install()

    def remove(self) -> None:
        """Remove all hooks."""
        self._compiling.remove()
        self._step_aside()

    def _find(self, path: str, type_name: str, cell: nn.Cell) -> None:
        """Prepare what else is hooked of a Cell."""

    def _parameter_hook(self, stem: str, name: str) -> Callable[[Any], None]:
        # Called once in each backward pass, with the sum of the gradients from all uses of the parameter.
        recorder = self._recorder

        def report(gradient: Any) -> None:
            if recorder.is_open:
                with RecordingGuard(recorder.note_failure):
                    recorder.record_parameter_gradient(stem, name, gradient)

        return report

    def _come_back(self) -> None:
        self._handles += [parameter.register_hook(hook) for parameter, hook in self._parameters]

    def _step_aside(self) -> None:
        _remove_all(self._handles)


class CellHooks(ParameterHooks):
    """All hooks in the Cells of some nets and in their parameters."""

    def __init__(
        self,
        models: Sequence[NamedModel],
        recorder: CallRecorder,
        unsettled: dict[int, Callable[[], None]],
        visit: Callable[[], Callable[[], None] | None],
    ) -> None:
        """Prepare; ``install`` begins.

        Args:
            models: Nets whose Cells are recorded.
            recorder: Receives every call.
            unsettled: See `msprobe_core.interception.gradients.GraphGradients`.
            visit: See `msprobe_core.interception.modules.ModuleCalls`.
        """
        super().__init__(models, recorder)
        self._unsettled = unsettled
        self._visit = visit
        self._traits = CellTraits()
        self._cells: list[nn.Cell] = []
        self._cell_handles: list[Handle] = []
        self._hidden = HiddenHooks(self._cells)  # sees those that `_find` adds to this very list

    def _find(self, path: str, type_name: str, cell: nn.Cell) -> None:
        calls = ModuleCalls(self._recorder, path, type_name, self._traits, self._unsettled, self._visit)
        self._cells.append(cell)
        self._cell_handles.append(cell.register_forward_pre_hook(Hook(calls.before), with_kwargs=True))
        self._cell_handles.append(register_after(cell, Hook(calls.after)))

    def remove(self) -> None:
        """Remove all hooks."""
        super().remove()
        self._hidden.show()
        _remove_all(self._cell_handles)

    def _step_aside(self) -> None:
        super()._step_aside()
        self._hidden.hide()

    def _come_back(self) -> None:
        self._hidden.show()
        super()._come_back()


class CellWatch(NothingPending):
    """Hooks for a `CallWatcher`, absent during compilation; see `msprobe_core.plugin.Removable`."""

    def __init__(self, models: Sequence[NamedModel], watcher: CallWatcher) -> None:
        """Install the hooks."""
        found = list(cells_of(models))
        self._hidden = HiddenHooks([each.module for each in found])
        self._hooks = WatchHooks(PREFIX, found, watcher)
        self._compiling = Compiling(self._hidden.hide, self._hidden.show)
        self._compiling.install()

    def detach(self) -> None:
        """Remove all hooks."""
        self._compiling.remove()
        self._hidden.show()
        self._hooks.detach()


def _remove_all(handles: list[Handle]) -> None:
    while handles:
        handles.pop().remove()


class HiddenHooks:
    """The hooks of Cells while a function is compiled."""

    def __init__(self, cells: Sequence[nn.Cell]) -> None:
        """Prepare; the hooks of all Cells that are in ``cells`` then are hidden."""
        self._cells = cells
        self._undo: list[Callable[[], None]] = []

    def hide(self) -> None:
        """Hide them."""
        self._undo = [hide_hooks(cell) for cell in self._cells]

    def show(self) -> None:
        """Show what is hidden."""
        while self._undo:
            self._undo.pop()()


def hide_hooks(cell: nn.Cell) -> Callable[[], None]:
    """Replace the tables of a Cell's hooks by copies without ours, until the returned function is called.

    The tables themselves stay as they are: a hook of the user may be running that calls the compiled function.
    """
    stored = {name: name if name in vars(cell) else f"_lazy{name}" for name in _HOOK_TABLES}
    tables: dict[str, dict[int, Any]] = {key: found for key in stored.values() if (found := vars(cell).get(key))}
    ours = {number for table in tables.values() for number, hook in table.items() if isinstance(hook, Hook)}
    for key, table in tables.items():
        others = ((number, hook) for number, hook in table.items() if number not in ours)
        object.__setattr__(cell, key, type(table)(others))

    def show() -> None:
        for key, table in tables.items():
            object.__setattr__(cell, key, table)

    return show
