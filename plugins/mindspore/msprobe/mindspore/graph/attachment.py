"""Interception of static graphs within a recording window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
from mindspore import Parameter, nn

from msprobe.mindspore._cells import PREFIX, cells_of, own_parameters
from msprobe.mindspore._compiling import api
from msprobe.mindspore._quiet import executor
from msprobe.mindspore.graph.collector import station
from msprobe.mindspore.graph.point_installation import compilation
from msprobe.mindspore.graph.recording import Recording
from msprobe.mindspore.graph.tensordump import arrivals
from msprobe_core.interception import Function, FunctionPatch, module_stem
from msprobe_core.plugin import (
    AttachOptions,
    CallRecorder,
    CallWatcher,
    ConfigError,
    NamedModel,
    SessionError,
    TensorMeta,
)


def graph_mode() -> bool:
    """Whether whole nets are compiled, rather than only decorated functions."""
    return ms.get_context("mode") == ms.GRAPH_MODE


def check_level(options: AttachOptions) -> None:
    """Check that the level is possible in the current mode.

    Raises:
        ConfigError: the level includes APIs and the mode is GRAPH_MODE, where a graph has no API calls.
    """
    if options.level.has_apis and graph_mode():
        raise ConfigError(
            f"'level' is {options.level.value}, but in GRAPH_MODE there are no calls of APIs that could be recorded; "
            "take L0 for Cells or L2 for kernels, or run with ms.set_context(mode=ms.PYNATIVE_MODE)"
        )


def check_calls(need: str, advice: str = "run") -> None:
    """Check that Cells are called in Python; the error begins with who needs this, and ends with what to do.

    Raises:
        SessionError: there are no such calls, because whole nets are compiled.
    """
    if graph_mode():
        raise SessionError(
            f"{need} in Python, and in GRAPH_MODE there are none; {advice} with ms.set_context(mode=ms.PYNATIVE_MODE)"
        )


def prepare(models: Sequence[nn.Cell], options: AttachOptions) -> None:
    """Compile points into these nets from now on, whether or not the current step is recorded.

    Raises:
        ConfigError: see `check_level`; the mode may have changed since the debugger was constructed.
    """
    check_level(options)
    if options.level.has_modules:
        for model in models:
            compilation().add(model)


class GraphTaps:
    """Records runs of compiled graphs of some nets; see `msprobe_core.plugin.Removable`."""

    def __init__(
        self,
        models: Sequence[NamedModel],
        recorder: CallRecorder,
        describe: Callable[[Parameter], TensorMeta],
        say: Callable[[str], None],
        watchers: Sequence[CallWatcher] = (),
    ) -> None:
        """Begin; graphs compiled from now on have points, even if ``prepare`` has not been called before.

        Args:
            models: Nets whose Cells are recorded.
            recorder: Receives every call.
            describe: See `msprobe_core.plugin.Framework.describe`.
            say: Informs the user, once, about what is not recorded.
            watchers: See `msprobe.mindspore.graph.recording.Recording`.
        """
        self._models = models
        self._say = say
        self._num_failed = compilation().num_failed
        for model in models:
            compilation().add(model.model)
        cells: dict[int, tuple[str, str]] = {}
        parameters: dict[int, tuple[str, str, TensorMeta]] = {}
        for path, type_name, cell in cells_of(models):
            own = own_parameters(cell)
            cells[station().number_of_cell(cell, own)] = path, type_name
            for name, parameter in own.items():
                number = station().number_of_parameter(parameter)
                parameters.setdefault(number, (module_stem(PREFIX, path, type_name), name, describe(parameter)))
        self._recorder = recorder
        self._recording = Recording(recorder, cells, parameters, watchers)
        if compilation().has_files:
            arrivals().drop()
        station().add(self._recording)
        self._functions = FunctionPatch(api._JitExecutor, "__call__", self._run)
        if not graph_mode():
            self._functions.install()

    def _run(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._recording.around = self._recorder.nesting()
        try:
            result = function(*args, **kwargs)
            # Wait on the host, so that the graph's calls are recorded within this call, before later calls of the
            # program. Do not wait for a device: its files are read at the end of the window.
            if not compilation().writes_files:
                executor.sync()
        finally:
            self._recording.around = ()
        return result

    def detach(self) -> None:
        """Wait until running graphs have finished, and record no new calls."""
        self._functions.remove()
        try:
            # Errors of a graph that runs asynchronously surface here; they are the training's own, so let them pass.
            executor.sync()
            if compilation().has_files:
                self._replay()
        finally:
            station().end_runs()
            self._recording.shut()
        if graph_mode() and not self._recording.num_calls and compilation().num_failed == self._num_failed:
            self._complain()

    def _replay(self) -> None:
        try:
            arrivals().replay(station().layouts, self._recording)
        except Exception as error:  # noqa: BLE001  # of a device or a disk
            self._recorder.note_failure("a static graph", error)

    def _complain(self) -> None:
        for model in self._models:
            name = type(model.model).__name__
            if not compilation().has_compiled(model.model):
                self._say(
                    f"{name}: nothing of it was recorded, since no graph of it has been compiled after start(); an "
                    "older graph holds no points: call start(model) before the net, or a function that calls it, runs "
                    "for the first time"
                )

    def settle(self) -> None:
        """Do nothing: nothing is pending."""

    def release(self) -> None:
        """Stop recording gradients."""
        station().remove(self._recording)
