"""The flight recorder of a model: what its modules make, its gradients and its weights go into the ring."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from msprobe_core import names
from msprobe_core.capture.passing_recorder import PASSED_OVER, PassedOver, PassingRecorder
from msprobe_core.capture.ring_recorder import DEFAULT_SIGNALS, Emergency, FlightRing, FlightStep, Seen, Tape
from msprobe_core.capture.window import Interception, Model
from msprobe_core.model import GradientSlot, Level, Phase, RiskLevel, Role
from msprobe_core.protocols.framework import Framework

if TYPE_CHECKING:
    from typing_extensions import Self

_MAX_LEAVES = 16
"""Maximum number of tensors per result that are reduced."""


class FlightRecorder(ABC):
    """Keeps the extremes of module outputs, gradients and weights of the last steps.

    ::

        with FlightRecorder(model, "flight") as recorder:
            for batch in batches:
                ...  # forward, backward, optimizer
                recorder.step()

    They are written as dumps, which ``msprobe overflow_check`` reads, when NaN or Inf is found, when the training
    raises, on a signal, and optionally at exit. Computed values do not change, and nothing waits for a device inside a
    step.

    Plugins of frameworks derive from it: they give the framework and a tape, and may see calls in a way of their own.
    """

    prefix: ClassVar[str] = "Module"
    """First part of the names of calls of the framework's modules."""

    def __init__(
        self,
        model: Any,
        path: str | os.PathLike[str] = "flight",
        *,
        steps: int = 8,
        weights: bool = True,
        signals: Sequence[int] = DEFAULT_SIGNALS,
        at_exit: bool = False,
    ) -> None:
        """Begin to record.

        Args:
            model: The model whose modules are recorded.
            path: Output directory; existing dumps of earlier steps are replaced.
            steps: Number of steps to keep.
            weights: Whether to record weights at the beginning of each step, and their gradients.
            signals: Signals that trigger writing: SIGTERM and SIGUSR1 by default; existing handlers run too.
            at_exit: Whether to write when the program ends, even if nothing was wrong.

        Raises:
            ConfigError: ``steps`` is not a positive number.
            SessionError: calls of the model's modules cannot be seen.
        """
        self._framework = framework = self._new_framework()
        self._ring = FlightRing(
            Path(path), self._new_tape, framework=framework.name, prefix=self.prefix, rank=framework.rank, size=steps
        )
        self._emergency = Emergency(self._ring, signals, at_exit=at_exit)
        self._detach_hooks = self._attach(model, has_weights=weights)
        self._emergency.install()

    @abstractmethod
    def _new_framework(self) -> Framework:
        """Return the framework of the model."""

    @abstractmethod
    def _new_tape(self) -> Tape:
        """Return an empty tape for one step."""

    def _attach(self, model: Any, *, has_weights: bool) -> Callable[[], None]:
        """Begin to see calls of the model's modules; return what ends it."""
        calls = FlightCalls(self._ring, self._framework, has_weights=has_weights)
        options = Interception(Level.L0, RiskLevel.CORE.value, (), inside_graphs=False)
        attachment = self._framework.attach([Model("", model)], options, calls)

        def detach() -> None:
            calls.is_open = False
            attachment.detach()
            attachment.release()

        return detach

    @property
    def steps(self) -> Sequence[FlightStep]:
        """The kept steps, oldest first."""
        return self._ring.steps

    def step(self) -> None:
        """End a step: call it after the optimizer's step."""
        with self._framework.quiet(self._ring.note_failure):
            self._ring.end_step()

    def write(self, reason: str = "asked to") -> None:
        """Write the kept steps now."""
        with self._framework.quiet(self._ring.note_failure):
            self._ring.write(reason, waits=True)

    def close(self) -> None:
        """End recording: check the last steps, and remove all hooks."""
        with self._framework.quiet(self._ring.note_failure):
            self._ring.finish()
        self._detach()

    def _detach(self) -> None:
        self._detach_hooks()
        self._emergency.remove()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End recording, and write if the training has failed."""
        if kind is None or not issubclass(kind, Exception):
            self.close()
            return
        with self._framework.quiet(self._ring.note_failure):
            self._ring.write(f"{kind.__name__} in the training", waits=True)
        self._ring.retire()
        self._detach()


class _Call:
    """A call of a module; implements `msprobe_core.plugin.Call`."""

    __slots__ = ("index", "path", "step", "type_name")
    wants_forward = True
    wants_gradients = True

    def __init__(self, step: FlightStep, path: str, type_name: str, index: int) -> None:
        self.step = step
        self.path = path
        self.type_name = type_name
        self.index = index


class FlightCalls(PassingRecorder):
    """Puts what a framework's interception of modules reports into a ring; a `msprobe_core.plugin.CallRecorder`."""

    def __init__(self, ring: FlightRing, framework: Framework, *, has_weights: bool) -> None:
        """Begin.

        Args:
            ring: Takes the values.
            framework: Knows its tensors.
            has_weights: Whether to take parameters, when their module is first called in a step, and their gradients.
        """
        super().__init__(ring.note_failure)
        self._ring = ring
        self._framework = framework
        self._has_weights = has_weights

    def open_module(self, prefix: str, path: str, type_name: str, *, is_recomputed: bool = False) -> _Call | PassedOver:
        """Begin a call of a module; a recomputed one has been seen before."""
        del prefix
        if is_recomputed:
            return PASSED_OVER
        step = self._ring.step
        return _Call(step, path, type_name, _number(step, path))

    def record_inputs(
        self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any], unset: Sequence[Any] = ()
    ) -> None:
        """Take what the whole model is given."""
        del unset
        if isinstance(call, _Call) and not call.path:
            self._see(call, Phase.FORWARD, Role.INPUT, first_tensors((args, kwargs), self._framework.is_tensor))

    def record_parameters(self, call: Any, parameters: Mapping[str, Any]) -> None:
        """Take weights as the step finds them."""
        if isinstance(call, _Call) and self._has_weights and not call.index:
            for name, parameter in parameters.items():
                self._see(call, Phase.FORWARD, Role.PARAMETERS, [parameter], name)

    def record_outputs(self, call: Any, output: Any, unset: Sequence[Any] = ()) -> None:
        """Take what a module makes."""
        del unset
        if isinstance(call, _Call):
            self._see(call, Phase.FORWARD, Role.OUTPUT, first_tensors(output, self._framework.is_tensor))

    def output_gradients(self, call: Any, output: Any) -> list[tuple[GradientSlot, Any]]:
        """Return a slot for each tensor in the result that takes a gradient."""
        del call
        found = first_tensors(output, self._framework.is_tensor)
        return [(GradientSlot(), tensor) for tensor in found if self._framework.takes_gradient(tensor)]

    def record_gradient(self, call: Any, slot: Any, gradient: Any, backward_pass: int = -1) -> None:
        """Take the gradient of what a module has made."""
        del slot, backward_pass
        self._see(call, Phase.BACKWARD, Role.INPUT, [gradient])

    def record_parameter_gradient(self, stem: str, name: str, gradient: Any, contribution: Any = None) -> None:
        """Take the gradient of a parameter, of each backward pass of a step."""
        del contribution
        if self._has_weights:
            _, path, type_name = names.split_module(stem)
            step = self._ring.step
            call = _Call(step, path, type_name, _number(step, (stem, name)))
            self._see(call, Phase.PARAMETERS_GRAD, Role.PARAMETERS_GRAD, [gradient], name)

    def _see(self, call: _Call, phase: Phase, role: Role, tensors: Sequence[Any], name: str = "") -> None:
        if not self.is_open:
            return
        step = call.step
        for tensor in tensors:
            place = step.tape.put(tensor)
            if place is not None:
                meta = self._framework.describe(tensor)
                step.seen.append(Seen(call.path, call.type_name, phase, call.index, role, name, place, meta))


def _number(step: FlightStep, counted: Hashable) -> int:
    """Count, and return how often this has been counted in the step before."""
    number = step.counts.get(counted, 0)
    step.counts[counted] = number + 1
    return number


def first_tensors(value: Any, is_tensor: Callable[[object], bool]) -> list[Any]:
    """Return the tensors of a result, which may be nested; the first 16 of them."""
    found: list[Any] = []
    waiting: list[Any] = [value]
    while waiting and len(found) < _MAX_LEAVES:
        item = waiting.pop()
        if is_tensor(item):
            found.append(item)
        elif isinstance(item, list | tuple):
            waiting.extend(reversed(cast("Sequence[Any]", item)))
        elif isinstance(item, dict):
            waiting.extend(reversed(list(cast("dict[Any, Any]", item).values())))
        elif hasattr(item, "__dataclass_fields__"):
            waiting.extend(reversed([getattr(item, name, None) for name in item.__dataclass_fields__]))
    return found
