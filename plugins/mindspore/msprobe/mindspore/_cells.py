"""Interception of Cells in the dynamic graph: forward hooks on every Cell of the nets, and parameter hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mindspore import Parameter, nn

from msprobe.mindspore._compiling import Compiling
from msprobe.mindspore._gradients import CallGradients, builds_graph, is_in_backward
from msprobe.mindspore._quiet import RecordingGuard
from msprobe_core.interception import FoundModule, Handle, Hook, ModuleCalls, module_stem, register_after
from msprobe_core.plugin import CallRecorder, NamedModel

PREFIX = "Cell"

_RECOMPUTE_CELL = "_recompute_cell"
"""Attribute that `Cell.recompute` adds to a Cell: it calls the Cell's own construct, which is recorded anyway."""


def cells_of(models: Sequence[NamedModel]) -> Iterator[FoundModule]:
    """Yield the Cells of some nets, including the roots; a Cell found twice counts once, under its first name."""
    seen: set[int] = set()
    for model in models:
        for path, cell in model.model.cells_and_names(name_prefix=model.name):
            if id(cell) not in seen and _RECOMPUTE_CELL not in path:
                seen.add(id(cell))
                yield FoundModule(path, type(cell).__name__, cell)


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


class CellHooks:
    """All hooks in the Cells of some nets; ``remove`` removes every one of them.

    The hooks are absent during compilation, which would compile them too, or fail to.
    """

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
        self._models = models
        self._recorder = recorder
        self._unsettled = unsettled
        self._visit = visit
        self._cells: list[tuple[nn.Cell, ModuleCalls]] = []
        self._parameters: list[tuple[Parameter, Callable[[Any], None]]] = []
        self._handles: list[Handle] = []
        self._compiling = Compiling(self._take_out, self._put_in)

    def install(self) -> None:
        """Install the hooks."""
        traits = CellTraits()
        known: set[int] = set()
        for path, type_name, cell in cells_of(self._models):
            calls = ModuleCalls(self._recorder, path, type_name, traits, self._unsettled, self._visit)
            self._cells.append((cell, calls))
            stem = module_stem(PREFIX, path, type_name)
            hooked: list[str] = []
            for name, parameter in own_parameters(cell).items():
                if parameter.requires_grad and id(parameter) not in known:
                    known.add(id(parameter))
                    hooked.append(name)
                    self._parameters.append((parameter, self._parameter_hook(stem, name)))
            if hooked:
                self._recorder.expect_parameter_gradients(stem, hooked)
        self._put_in()
        self._compiling.install()

    def remove(self) -> None:
        """Remove all hooks."""
        self._compiling.remove()
        self._take_out()

    def _parameter_hook(self, stem: str, name: str) -> Callable[[Any], None]:
        # Called once in each backward pass, with the sum of the gradients from all uses of the parameter.
        recorder = self._recorder

        def report(gradient: Any) -> None:
            if recorder.is_open:
                with RecordingGuard(recorder.note_failure):
                    recorder.record_parameter_gradient(stem, name, gradient)

        return report

    def _put_in(self) -> None:
        for cell, calls in self._cells:
            self._handles.append(cell.register_forward_pre_hook(Hook(calls.before), with_kwargs=True))
            self._handles.append(register_after(cell, Hook(calls.after)))
        self._handles += [parameter.register_hook(hook) for parameter, hook in self._parameters]

    def _take_out(self) -> None:
        while self._handles:
            self._handles.pop().remove()
