"""Interception of modules: observers of every module of the given models, and hooks of their parameters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from msprobe.pytorch._compiled import how_it_runs, modules_to_hook, original_of
from msprobe.pytorch._gradients import CallGradients, is_in_backward
from msprobe.pytorch._parameters import ParameterGradients, own_parameters
from msprobe.pytorch._quiet import RecordingGuard
from msprobe.pytorch._slots import Observation
from msprobe_core.interception import FoundModule, ModuleCalls, module_stem
from msprobe_core.plugin import CallRecorder, NamedModel

PREFIX = "Module"

Visit = Callable[[], Callable[[], None] | None]
"""Installs something on the calling thread, unless it is installed, and returns how to remove it again."""


class ModuleHooks:
    """All observers and hooks of the modules of some models and their parameters; ``remove`` removes them."""

    def __init__(
        self,
        models: Sequence[NamedModel],
        recorder: CallRecorder,
        unsettled: dict[int, Callable[[], None]],
        say: Callable[[str], None],
        visit: Visit,
    ) -> None:
        """Prepare; ``install`` begins.

        Args:
            models: Models whose modules are recorded, including the roots. A module found twice counts once, under its
                first name; so does a parameter.
            recorder: Receives every call.
            unsettled: See `CallGradients`.
            say: Informs the user, once, about what is not recorded.
            visit: Called on threads where a module runs, so that APIs are recorded there too.
        """
        self._models = models
        self._recorder = recorder
        self._unsettled = unsettled
        self._say = say
        self._visit = visit
        self.parameters = ParameterGradients(recorder)
        self._traits = _Traits(self.parameters)
        self._observations: list[Observation] = []
        self._compiled = _Compiled()

    def install(self) -> None:
        """Install the hooks."""
        seen_modules: set[int] = set()
        for model in self._models:
            for path, module, is_visible in modules_to_hook(model.model, model.name):
                if id(module) not in seen_modules:
                    seen_modules.add(id(module))
                    self._hook_module(path, module, is_visible=is_visible)
                    self.parameters.hook(module, module_stem(PREFIX, path, type_name_of(module)))
        self._observe_calls()

    def remove(self) -> None:
        """Remove all hooks; graphs of recorded calls still report gradients of parameters, until ``release``."""
        for observation in self._observations:
            observation.remove()
        self.parameters.remove()

    def release(self) -> None:
        """Stop reporting gradients of parameters."""
        self.parameters.release()

    def step_aside(self) -> Callable[[], None]:
        """Observe no calls until the returned function is called: a compiled function runs, and may call modules.

        For a module that runs compiled there is nothing to remove, since nothing inside it was hooked.
        """
        if self._compiled.num_running:
            return lambda: None
        for observation in self._observations:
            observation.remove()
        return self._observe_calls

    def _observe_calls(self) -> None:
        for observation in self._observations:
            observation.begin()

    def _hook_module(self, path: str, module: nn.Module, *, is_visible: bool) -> None:
        if not is_visible:
            return
        running = ModuleCalls(self._recorder, path, type_name_of(module), self._traits, self._unsettled, self._visit)
        if (reason := how_it_runs(module)) is not None:
            self._say(reason)
            running.compiled = self._compiled
        self._observations.append(Observation(module, running.before, running.after))


def type_name_of(module: nn.Module) -> str:
    """Return the class of a module; for a compiled or scripted one, that of the original module."""
    original = original_of(module)
    return getattr(module, "original_name", None) or type(original or module).__name__


class Visits:
    """Installs something on each thread where a module of some models runs, while it runs; records nothing."""

    def __init__(self, models: Sequence[NamedModel], visit: Visit) -> None:
        """Prepare; ``install`` begins.

        Args:
            models: Their modules.
            visit: See `ModuleHooks`.
        """
        self._models = models
        self._visit = visit
        self._left = _Left()
        self._observations: list[Observation] = []

    def install(self) -> None:
        """Begin."""
        for _, _, module in modules_to_watch(self._models):
            self._observations.append(Observation(module, self._before, self._after))
            self._observations[-1].begin()

    def remove(self) -> None:
        """End; what was installed on a thread stays until the module that runs there has ended."""
        while self._observations:
            self._observations.pop().remove()

    def step_aside(self) -> Callable[[], None]:
        """See `msprobe.pytorch._compiled.StepsAside`."""
        self.remove()
        return self.install

    def _before(self, *_: Any) -> None:
        self._left.leave.append(self._visit())

    def _after(self, *_: Any) -> None:
        leave = self._left.leave.pop()
        if leave is not None:
            leave()


class _Left(threading.local):
    """How to leave a thread, for each module that runs there."""

    def __init__(self) -> None:
        self.leave: list[Callable[[], None] | None] = []


class _Compiled(threading.local):
    """Number of compiled modules that are running on this thread."""

    num_running = 0


def modules_to_watch(models: Sequence[NamedModel]) -> Iterator[FoundModule]:
    """Yield the modules of some models that can be observed, each once."""
    seen: set[int] = set()
    for model in models:
        for path, module, is_visible in modules_to_hook(model.model, model.name):
            if is_visible and id(module) not in seen:
                seen.add(id(module))
                yield FoundModule(path, type_name_of(module), module)


class _Traits:
    """See `msprobe_core.interception.modules.ModuleTraits`."""

    prefix = PREFIX
    quiet = RecordingGuard
    gradients = CallGradients
    builds_graph = staticmethod(torch.is_grad_enabled)
    is_in_backward = staticmethod(is_in_backward)

    def __init__(self, parameters: ParameterGradients) -> None:
        self._parameters = parameters

    def own_parameters(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the module's parameters."""
        return own_parameters(module)

    def end_of_call(self, module: nn.Module) -> None:
        """Report gradients of the module's parameters even after the window."""
        self._parameters.note_call(module)
