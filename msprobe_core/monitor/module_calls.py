"""What modules are given and make, and the gradients of parameters as they are accumulated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msprobe_core import names
from msprobe_core.capture.passing_recorder import PASSED_OVER, PassedOver, PassingRecorder
from msprobe_core.capture.recorded_call import as_results
from msprobe_core.capture.values import ValueBuilder
from msprobe_core.guard import kept
from msprobe_core.model import GradientSlot, Value
from msprobe_core.monitor.training import Take
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.protocols.framework import Framework


class ModuleCall:
    """A call of a module; implements `msprobe_core.plugin.Call`.

    Attributes:
        path: Of the module.
        name: Of this call: the path, and ``#1`` and so on of further ones in a micro-batch.
        micro_step: Micro-batch.
    """

    __slots__ = ("micro_step", "name", "observers", "path", "takes_gradients", "wants_forward", "wants_gradients")

    def __init__(
        self,
        path: str,
        name: str,
        micro_step: int,
        *,
        wants_forward: bool,
        takes_gradients: bool,
        observers: Sequence[CallObserver] = (),
    ) -> None:
        self.path = path
        self.name = name
        self.micro_step = micro_step
        self.wants_forward = wants_forward
        self.takes_gradients = takes_gradients
        self.wants_gradients = takes_gradients or any(each.wants_gradients for each in observers)
        self.observers = observers


class CallObserver:
    """Looks at calls of some modules for what is no quantity of one tensor. What it raises is logged.

    Attributes:
        wants_gradients: Whether to be told of gradients.
    """

    wants_gradients = False

    def wants(self, path: str) -> bool:
        """Whether to be told of calls of the module at a path; asked for each call."""
        raise NotImplementedError

    def see_inputs(self, call: ModuleCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Look at what a module is given, before it runs."""

    def see_output(self, call: ModuleCall, output: Any) -> None:
        """Look at what it makes."""

    def see_gradient(self, call: ModuleCall, side: str, place: int, gradient: Any) -> None:
        """Look at the gradient of one of the tensors that it was given or has made.

        Args:
            call: Of the module.
            side: ``input`` or ``output``.
            place: Of the tensor among those of this side.
            gradient: A tensor.
        """


class _Slot(GradientSlot, gc=False):
    """The gradient of one tensor of a call, by the name that its reading will have."""

    name: str = ""
    side: str = ""
    place: int = 0


def _never(_name: str) -> bool:
    return False


class MonitorRecorder(PassingRecorder):
    """Receives calls of the modules of one model; a `msprobe_core.plugin.CallRecorder`."""

    def __init__(
        self,
        framework: Framework,
        take: Take,
        stage: int,
        *,
        quantities: Collection[Quantity],
        selects_module: Callable[[str], bool],
        selects_parameter: Callable[[str], bool],
        is_training: Callable[[], bool],
        grad_acc_steps: int,
        every_micro_batch: bool,
        on_failure: Callable[[str, Exception], None],
        observers: Sequence[CallObserver] = (),
    ) -> None:
        """Begin a step.

        Args:
            framework: Knows its tensors.
            take: Reads a tensor.
            stage: Position of the model in a list of models.
            quantities: Those to take.
            selects_module: Whether to take values of the module at a path.
            selects_parameter: Whether to take the gradients of a parameter.
            is_training: Whether the model trains; what it does otherwise is not monitored.
            grad_acc_steps: Micro-batches of a step.
            every_micro_batch: Whether gradients of parameters are taken in every micro-batch instead of the last.
            on_failure: Called with what could not be read, and why.
            observers: Of calls.
        """
        self.observers = observers
        super().__init__(on_failure)
        self._take = take
        self._stage = stage
        self._takes_gradient = framework.takes_gradient
        self._values = ValueBuilder(framework, on_failure, tensors_only=True)
        self._takes_forward = Quantity.ACTIVATION in quantities
        self._takes_backward = Quantity.ACTIVATION_GRADIENT in quantities
        self._takes_accumulated = Quantity.GRADIENT_UNREDUCED in quantities
        self._selects_module = selects_module
        self._selects_parameter = selects_parameter
        self._is_training = is_training
        self._grad_acc_steps = max(grad_acc_steps, 1)
        self._every_micro_batch = every_micro_batch
        self._num_calls: dict[str, int] = {}
        self._num_whole = 0
        self._calls_of_micro_batch = 1
        self._num_backwards = 0
        self._is_backward_new = False
        self._num_accumulated: dict[str, int] = {}
        self.is_reported_elsewhere: Callable[[str], bool] = _never
        """Whether the trainer reduces the gradient of a parameter before it is accumulated; see `record_unreduced`."""

    def restart(self) -> None:
        """Begin a new step: count calls from 0 again."""
        self._note_backward()
        self._calls_of_micro_batch = self._found_calls()
        self._num_calls.clear()
        self._num_whole = self._num_backwards = 0
        self._num_accumulated.clear()

    def _note_backward(self) -> None:
        """Count a backward that gradients have shown since the last call of the whole model."""
        self._num_backwards += self._is_backward_new
        self._is_backward_new = False

    def _found_calls(self) -> int:
        """Return how often a micro-batch calls the whole model, as far as the step before shows it.

        More calls than micro-batches are several calls of each, as of a preference loss, if there are no more backwards
        than micro-batches; otherwise the program has more micro-batches than it has told.
        """
        calls, is_uneven = divmod(self._num_whole, self._grad_acc_steps)
        return calls if calls > 1 and not is_uneven and 0 < self._num_backwards <= self._grad_acc_steps else 1

    # --- calls --------------------------------------------------------------------------------------------------

    def open_module(
        self, prefix: str, path: str, type_name: str, *, is_recomputed: bool = False
    ) -> ModuleCall | PassedOver:
        """Begin a call of a module; a recomputed one has been seen before."""
        del prefix, type_name
        if is_recomputed or not self.is_open:
            return PASSED_OVER
        if not path and self._is_training():
            self._note_backward()
            if self._num_whole % self._calls_of_micro_batch == 0:
                self._num_calls.clear()
            self._num_whole += 1
        is_selected = self._selects_module(path)
        observers = [each for each in self.observers if each.wants(path)]
        if not (is_selected or observers) or not self._is_training():
            return PASSED_OVER
        name, micro_step = self._place_of(path)
        return ModuleCall(
            path,
            name,
            micro_step,
            wants_forward=is_selected and self._takes_forward,
            takes_gradients=is_selected and self._takes_backward,
            observers=observers,
        )

    def _place_of(self, path: str) -> tuple[str, int]:
        """Return the name and the micro-batch of a call.

        Each call of the whole model begins a micro-batch, or each second one if a micro-batch calls it twice; in it,
        further calls of one module are ``fc1#1``, ``fc1#2`` and so on. Where parts of the model are called by
        themselves, each call of a module is one of its micro-batches.
        """
        number = self._num_calls.get(path, 0)
        self._num_calls[path] = number + 1
        num_whole = self._num_whole
        if not num_whole:
            return path, number % self._grad_acc_steps
        micro_batch = (num_whole - 1) // self._calls_of_micro_batch
        return (f"{path}#{number}" if number else path), micro_batch % self._grad_acc_steps

    def record_inputs(
        self, call: ModuleCall, args: Sequence[Any], kwargs: Mapping[str, Any], unset: Sequence[Any] = ()
    ) -> None:
        """Take what a module is given."""
        del unset
        if call.wants_forward:
            self._take_all(call, self._inputs(call, args, kwargs))
        for observer in call.observers:
            self._tell(call, observer.see_inputs, args, kwargs)

    def record_outputs(self, call: ModuleCall, output: Any, unset: Sequence[Any] = ()) -> None:
        """Take what a module makes."""
        del unset
        if call.wants_forward:
            self._take_all(call, self._outputs(call, output))
        for observer in call.observers:
            self._tell(call, observer.see_output, output)

    def _tell(self, call: ModuleCall, see: Callable[..., None], *what: Any) -> None:
        try:
            see(call, *what)
        except BaseException as caught:  # noqa: BLE001  # the other observers, and gradients, are to follow
            self._on_failure(f"module {call.path}", kept(caught))

    def _take_all(self, call: ModuleCall, named: Iterable[tuple[str, Any]]) -> None:
        for name, tensor in named:
            self._take.tensor(Quantity.ACTIVATION, name, tensor, stage=self._stage, micro_step=call.micro_step)

    def _inputs(self, call: ModuleCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return the tensors among the arguments by name.

        They are numbered as by the established monitor, ``fc1.input_0``, or ``fc1.input`` if there is one. A tensor in
        a container has its path: ``fc1.input.cache.0``.
        """
        direct: list[Any] = []
        nested: list[tuple[str, Any]] = []
        stem = f"{call.name}.input"

        def leaf(tensor: Any, path: str) -> Value:
            if "." in path:
                nested.append((f"{stem}.{path}", tensor))
            else:
                direct.append(tensor)
            return None

        self._values.positional(args, leaf)
        self._values.named(kwargs, leaf)
        if len(direct) == 1:
            return [(stem, direct[0]), *nested]
        return [*((f"{stem}_{number}", tensor) for number, tensor in enumerate(direct)), *nested]

    def _outputs(self, call: ModuleCall, output: Any) -> list[tuple[str, Any]]:
        """Return the tensors in the result by name: ``fc1.output``, or ``fc1.output_1`` by position in a tuple."""
        results = as_results(output)
        found: list[tuple[str, Any]] = []
        stem = f"{call.name}.output"

        def leaf(tensor: Any, path: str) -> Value:
            found.append((stem + path[1:] if len(results) == 1 else f"{stem}_{path}", tensor))
            return None

        self._values.positional(results, leaf)
        return found

    # --- gradients ----------------------------------------------------------------------------------------------

    def input_gradients(
        self, call: ModuleCall, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[tuple[GradientSlot, Any]]:
        """Return a slot for each tensor among the arguments that takes a gradient."""
        return self._slots("input", self._inputs(call, args, kwargs))

    def output_gradients(self, call: ModuleCall, output: Any) -> list[tuple[GradientSlot, Any]]:
        """Return a slot for each tensor in the result that takes a gradient."""
        return self._slots("output", self._outputs(call, output))

    def _slots(self, side: str, named: Iterable[tuple[str, Any]]) -> list[tuple[GradientSlot, Any]]:
        return [
            (_Slot(name=name, side=side, place=place), tensor)
            for place, (name, tensor) in enumerate(named)
            if self._takes_gradient(tensor)
        ]

    def record_gradient(self, call: ModuleCall, slot: Any, gradient: Any, backward_pass: int = -1) -> None:
        """Take one gradient."""
        del backward_pass
        self._is_backward_new = True
        if self.is_open and call.takes_gradients:
            self._take.tensor(
                Quantity.ACTIVATION_GRADIENT, slot.name, gradient, stage=self._stage, micro_step=call.micro_step
            )
        for observer in call.observers if self.is_open else ():
            self._tell(call, observer.see_gradient, slot.side, slot.place, gradient)

    def record_parameter_gradient(self, stem: str, name: str, gradient: Any, contribution: Any = None) -> None:
        """Take the gradient of a parameter as this rank has accumulated it, before ranks exchange it."""
        del contribution
        self._is_backward_new = True
        if not self.is_open or not self._takes_accumulated:
            return
        path = names.split_module(stem)[1]
        whole = f"{path}.{name}" if path else name
        if not self._selects_parameter(whole) or self.is_reported_elsewhere(whole):
            return
        number = self._num_accumulated.get(whole, 0)
        self._num_accumulated[whole] = number + 1
        micro_step = number % self._grad_acc_steps
        if self._every_micro_batch:
            self._take.tensor(Quantity.GRADIENT_UNREDUCED, whole, gradient, stage=self._stage, micro_step=micro_step)
        elif micro_step == self._grad_acc_steps - 1:  # the sum of all, which is of the whole step
            self._take.tensor(Quantity.GRADIENT_UNREDUCED, whole, gradient, stage=self._stage)

    def record_unreduced(self, name: str, gradient: Any) -> None:
        """Take the gradient of a parameter that the trainer is about to reduce.

        Some trainers reduce once a step, others in each micro-batch, so the last reduction of a step is the one that
        counts, but all of them add up to what is reduced.
        """
        if not self.is_open or not self._takes_accumulated or not self._selects_parameter(name):
            return
        micro_step = self._grad_acc_steps - 1
        if self._every_micro_batch:
            micro_step = self._num_accumulated.get(name, 0)
            self._num_accumulated[name] = micro_step + 1
        self._take.tensor(
            Quantity.GRADIENT_UNREDUCED, name, gradient, stage=self._stage, micro_step=micro_step, adds=True
        )
