"""Single modules in a finer format while a step is repeated; see `msprobe_core.plugin.RaisedModules`.

A raised module takes its arguments, parameters and buffers in the finer format, and computes in it whatever its own
code says: casts to a coarser format are to the finer one, and mixed precision is off. Modules that it calls are
separate: one that is not raised takes and computes what it did in the unchanged step, which has been watched. What a
raised module returns stays fine if its caller is raised too. Gradients pass through all casts, so parameters keep
their gradients, and what is attached to them, in their own format.

A framework casts, swaps parameters, switches mixed precision and intercepts functions; which call is raised is here.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msprobe_core.interception.modules import FoundModule, Handle, Observe
from msprobe_core.interception.perturbation import converted, map_values, value_leaves
from msprobe_core.model import OUTSIDE, RaisedModule, ReferenceFormat

FORMATS = {ReferenceFormat.FP32: "float32", ReferenceFormat.FP64: "float64"}
"""Name of each format that modules are raised to, as `RaisingModules.format_of` gives it."""

COARSER = {"float32": ("bfloat16", "float16"), "float64": ("bfloat16", "float16", "float32")}
"""Names of the formats that are raised to each."""


@dataclass(slots=True)
class _Call:
    """What a call of a module was in the unchanged step.

    Attributes:
        taken: Formats of the floating-point tensors among its arguments.
        mixed: How mixed precision was switched.
        caller: Path of the module that called it; ``None`` for code outside of modules.
        given: Formats of the tensors that it returned.
    """

    taken: tuple[str, ...]
    mixed: Any
    caller: str | None
    given: tuple[str, ...] = ()


@dataclass(slots=True)
class _Frame:
    """A call of a module that runs."""

    path: str
    call: _Call | None
    is_raised: bool = False
    is_in_raised: bool = False
    undo: ExitStack = field(default_factory=ExitStack)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.frames: list[_Frame] = []


class RaisingModules(ABC):
    """See `msprobe_core.plugin.RaisedModules`; a framework's class says how its tensors and modules are changed."""

    def __init__(self, modules: Iterable[FoundModule], observe: Observe) -> None:
        """Prepare; nothing is attached.

        Args:
            modules: All modules of the models, each once.
            observe: Observes calls of one. What its functions return replaces arguments and results.
        """
        self.found = list(modules)
        self._observe = observe
        self._thread = _Thread()
        self._calls: dict[str, list[_Call]] = defaultdict(list)
        self._numbers: Counter[str] = Counter()
        self._raised: Container[str] = ()
        self.fine = FORMATS[ReferenceFormat.FP64]
        self.is_learning = False
        self._error: BaseException | None = None
        self.failed: str | None = None
        self.modules: list[RaisedModule] = []

    @property
    def formats(self) -> set[str]:
        """Formats of floating-point tensors that modules took, gave or hold."""
        calls = [call for calls in self._calls.values() for call in calls]
        own = (tensor for each in self.found for tensor in self.own_tensors(each.module).values())
        return {name for call in calls for name in (*call.taken, *call.given)} | {self.format_of(each) for each in own}

    @contextmanager
    def watched(self) -> Generator[None, None, None]:
        """Watch the unchanged step."""
        self.is_learning = True
        with self.around_step(), self._attached():
            yield
        self.is_learning = False
        kinds = {each.path: each.type_name for each in self.found}
        self.modules = [RaisedModule(path, kinds[path]) for path in self._calls]

    @contextmanager
    def raised(self, modules: Container[str], reference: ReferenceFormat) -> Generator[None, None, None]:
        """Raise modules; without any, the step is the unchanged one."""
        self._raised, self.fine = modules, FORMATS[reference]
        self._forget_failure()
        try:
            with self.around_step(), self._attached():
                yield
        except Exception as error:
            if self.failed is None and self._error is not error and OUTSIDE in modules:
                self.failed = OUTSIDE
            raise

    def _forget_failure(self) -> None:
        self._error = self.failed = None

    @contextmanager
    def _attached(self) -> Generator[None, None, None]:
        self._numbers.clear()
        self._thread.frames.clear()
        handles: list[Handle] = []
        try:
            for path, _, module in self.found:
                handles.append(self._observe(module, partial(self._before, path), partial(self._after, path)))
            yield
        finally:
            while handles:
                handles.pop().remove()
            self._end_calls()

    def _end_calls(self) -> None:
        """End calls that have raised where a framework does not say so."""
        frames, error = self._thread.frames, sys.exc_info()[1]
        while frames:
            frame = frames.pop()
            frame.undo.close()
            if error is not None:
                self._blame(frame, error)

    # --- one call ---------------------------------------------------------------------------------------------

    def _before(self, path: str, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        frames = self._thread.frames
        number = self._numbers[path]
        self._numbers[path] += 1
        if self.is_learning:
            call = _Call(self.formats_of((args, kwargs)), self.mixed_precision(), frames[-1].path if frames else None)
            self._calls[path].append(call)
            frames.append(_Frame(path, call))
            return None
        calls = self._calls[path]
        call = calls[min(number, len(calls) - 1)] if calls else None
        # In a recompute nothing has called it; what calls it in the forward decides.
        is_in_raised = frames[-1].is_raised if frames else (self.caller_of(path) or OUTSIDE) in self._raised
        frame = _Frame(path, call, path in self._raised, is_in_raised)
        frames.append(frame)
        if frame.is_raised:
            args, kwargs = converted((args, kwargs), self.finer)
            frame.undo.enter_context(self.computing_fine(module))
            if not any(outer.is_raised for outer in frames[:-1]):
                frame.undo.enter_context(self.intercepting())
        elif is_in_raised:
            args, kwargs = converted((args, kwargs), self._as_before(() if call is None else call.taken))
            if call is not None:
                frame.undo.enter_context(self.with_mixed_precision(call.mixed))
        return args, kwargs

    def _after(self, path: str, module: Any, args: Any, kwargs: Any, output: Any) -> Any:  # noqa: ARG002
        frames = self._thread.frames
        if not frames:
            return None
        frame = frames.pop()
        frame.undo.close()
        if output is None and (error := sys.exc_info()[1]) is not None:
            self._blame(frame, error)
        elif self.is_learning and frame.call is not None:
            frame.call.given = self.formats_of(output)
        elif frame.is_in_raised:
            return map_values(output, self.is_floating, self.finer)
        elif frame.is_raised:
            given = () if frame.call is None else frame.call.given
            return map_values(output, self.is_floating, self._as_before(given))
        return None

    def _blame(self, frame: _Frame, error: BaseException) -> None:
        if error is not self._error:
            self._error, self.failed = error, None
        if self.failed is None and frame.is_raised:
            self.failed = frame.path

    # --- for the framework ------------------------------------------------------------------------------------

    @property
    def is_inside(self) -> bool:
        """Whether this thread runs the own code of a raised module."""
        frames = self._thread.frames
        return bool(frames) and frames[-1].is_raised

    def is_raised(self, path: str) -> bool:
        """Whether a module is raised in the step that runs."""
        return path in self._raised

    def caller_of(self, path: str) -> str | None:
        """Return the path of the module that has called a module first; ``None`` if none has."""
        calls = self._calls.get(path)
        return calls[0].caller if calls else None

    def finer(self, value: Any) -> Any:
        """Return a coarser tensor in the finer format, and anything else as it is."""
        is_coarse = self.is_floating(value) and self.format_of(value) in COARSER[self.fine]
        return self.cast(value, self.fine) if is_coarse else value

    def formats_of(self, value: Any) -> tuple[str, ...]:
        """Return the formats of the floating-point tensors in a value."""
        return tuple(self.format_of(tensor) for tensor in value_leaves(value) if self.is_floating(tensor))

    def _as_before(self, formats: Sequence[str]) -> Callable[[Any], Any]:
        """Return what casts tensors, in the order in which they are met, to the given formats."""
        left = iter(formats)

        def cast(value: Any) -> Any:
            if not self.is_floating(value):
                return value
            name = next(left, None)
            return value if name is None or name == self.format_of(value) else self.cast(value, name)

        return cast

    @abstractmethod
    def is_floating(self, value: Any) -> bool:
        """Whether a value is a tensor of floating-point numbers."""

    @abstractmethod
    def format_of(self, tensor: Any) -> str:
        """Return the name of a tensor's dtype, such as ``bfloat16``."""

    @abstractmethod
    def cast(self, tensor: Any, name: str) -> Any:
        """Return a tensor in another format; gradients pass through, and no interception sees it."""

    @abstractmethod
    def own_tensors(self, module: Any) -> Mapping[str, Any]:
        """Return the floating-point parameters and buffers of a module, without those of its submodules."""

    @abstractmethod
    def mixed_precision(self) -> Any:
        """Return how mixed precision is switched for what is called now."""

    @abstractmethod
    def with_mixed_precision(self, state: Any) -> AbstractContextManager[Any]:
        """Return the block in which it is switched as `mixed_precision` has said."""

    @abstractmethod
    def computing_fine(self, module: Any) -> AbstractContextManager[Any]:
        """Return the block of a raised call: its own tensors are fine, and mixed precision is off."""

    @abstractmethod
    def intercepting(self) -> AbstractContextManager[Any]:
        """Return the block in which functions that raised code calls keep to the finer format.

        Functions that other code calls in it are called as they are, see `is_inside`.
        """

    @abstractmethod
    def around_step(self) -> AbstractContextManager[Any]:
        """Return the block around a whole step, the unchanged one included."""
