"""The flight recorder for PyTorch: hooks on modules and gradients, extremes on the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from msprobe.pytorch._arrivals import HostCopy
from msprobe.pytorch._framework import PyTorchFramework
from msprobe.pytorch._quiet import RecordingGuard
from msprobe.pytorch._reduce import readable
from msprobe.pytorch._statistics import WITHOUT_VALUES, widened
from msprobe.pytorch._torch_releases import is_compiling
from msprobe_core.plugin import Framework, Phase, Role
from msprobe_core.recording import FlightRecorder as AnyFlightRecorder
from msprobe_core.recording import FlightStep, Seen, Tape, first_tensors


class TorchTape:
    """See `msprobe_core.capture.ring_recorder.Tape`."""

    def __init__(self) -> None:
        """Begin empty."""
        self._waiting: dict[tuple[torch.device, torch.dtype], tuple[list[int], list[Tensor]]] = {}
        self._sealed: list[tuple[list[int], HostCopy]] = []
        self._num_places = 0
        self._read: list[tuple[float, float]] | None = None
        self._is_sealed = False

    def put(self, tensor: Tensor) -> int | None:
        """Enqueue the reduction of a tensor; ``None`` for one without floating-point elements."""
        values = readable(tensor)
        if values is None or self._is_sealed:
            return None
        if values.is_complex():
            values = torch.view_as_real(values.resolve_conj())
        if not values.is_floating_point() or values.dtype in WITHOUT_VALUES or not values.numel():
            return None
        values = widened(values)
        place = self._num_places
        self._num_places += 1
        places, extremes = self._waiting.setdefault((values.device, values.dtype), ([], []))
        low, high = torch.aminmax(values)
        places.append(place)
        extremes += (high, low)
        return place

    def seal(self) -> None:
        """Start the copy of all results to the host, without waiting."""
        if self._is_sealed:
            return
        self._is_sealed = True
        for places, extremes in self._waiting.values():
            # float64 represents the numbers of all dtypes. Not every device has it; float32 is enough else.
            stacked = torch.stack(extremes)
            stacked = stacked if stacked.dtype is torch.float64 else stacked.float()
            self._sealed.append((places, HostCopy(stacked)))
        self._waiting.clear()

    def extremes(self, *, waits: bool) -> Sequence[tuple[float, float]] | None:
        """Return maximum and minimum by place, if they have arrived."""
        if self._read is None:
            if not waits and not all(copy.has_arrived() for _, copy in self._sealed):
                return None
            found = [(0.0, 0.0)] * self._num_places
            for places, copy in self._sealed:
                numbers: list[float] = copy.values().tolist()
                for number, place in enumerate(places):
                    found[place] = numbers[2 * number], numbers[2 * number + 1]
            self._read = found
            self._sealed.clear()
        return self._read


class FlightRecorder(AnyFlightRecorder):
    """See `msprobe_core.capture.flight_recorder.FlightRecorder`.

    Gradients of weights are those that the optimizer is about to use. Calls are seen by plain hooks, which cost less
    than those of recording.
    """

    def _new_framework(self) -> Framework:
        return PyTorchFramework()

    def _new_tape(self) -> Tape:
        return TorchTape()

    def _attach(self, model: nn.Module, *, has_weights: bool) -> Callable[[], None]:
        self._describe = self._framework.describe
        self._last: tuple[weakref.ref[Tensor], FlightStep, int, int] | None = None
        self._weights_of: FlightStep | None = None
        self._own = {id(parameter): place for parameter, place in _places_of(model)} if has_weights else {}
        self._model = model
        handles: list[Any] = []
        for path_of_module, module in model.named_modules():
            run = partial(self._on_output, path_of_module, type(module).__name__)
            handles.append(module.register_forward_hook(run))
        begin = partial(self._on_input, type(model).__name__)
        handles.append(model.register_forward_pre_hook(begin, with_kwargs=True))
        if has_weights:
            handles.append(register_optimizer_step_pre_hook(self._on_optimizer))

        def detach() -> None:
            while handles:
                handles.pop().remove()
            self._last = None

        return detach

    def step(self) -> None:
        """End a step: call it after the optimizer's step."""
        self._last = None
        super().step()

    # --- hooks ------------------------------------------------------------------------------------------------------

    def _on_input(self, type_name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del module
        if is_compiling():
            return
        with RecordingGuard(self._ring.note_failure):
            step = self._ring.step
            index = step.counts.get("", 0)
            for tensor in first_tensors((args, kwargs), self._framework.is_tensor):
                self._see(step, "", type_name, Phase.FORWARD, index, Role.INPUT, tensor)
            if self._own and self._weights_of is not step:
                self._weights_of = step
                for parameter in self._model.parameters():
                    place = self._own.get(id(parameter))
                    if place is not None:
                        owner, kind, name = place
                        self._see(step, owner, kind, Phase.FORWARD, 0, Role.PARAMETERS, parameter, name)

    def _on_output(self, path: str, type_name: str, module: nn.Module, args: Any, output: Any) -> None:
        del module, args
        if is_compiling():
            return
        with RecordingGuard(self._ring.note_failure):
            step = self._ring.step
            index = step.counts.get(path, 0)
            step.counts[path] = index + 1
            for tensor in first_tensors(output, self._framework.is_tensor):
                self._see(step, path, type_name, Phase.FORWARD, index, Role.OUTPUT, tensor)
                if tensor.requires_grad and tensor.grad_fn is not None:
                    tensor.register_hook(partial(self._on_gradient, step, path, type_name, index))

    def _on_gradient(self, step: FlightStep, path: str, type_name: str, index: int, gradient: Tensor) -> None:
        if is_compiling():
            return
        with RecordingGuard(self._ring.note_failure):
            self._see(step, path, type_name, Phase.BACKWARD, index, Role.INPUT, gradient)

    def _on_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        with RecordingGuard(self._ring.note_failure):
            step = self._ring.step
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    place = self._own.get(id(parameter))
                    if place is not None and parameter.grad is not None:
                        path, type_name, name = place
                        self._see(
                            step, path, type_name, Phase.PARAMETERS_GRAD, 0, Role.PARAMETERS_GRAD, parameter.grad, name
                        )

    def _see(
        self,
        step: FlightStep,
        path: str,
        type_name: str,
        phase: Phase,
        index: int,
        role: Role,
        tensor: Tensor,
        name: str = "",
    ) -> None:
        place: int | None = None
        last = self._last
        version = 0 if tensor.is_inference() else tensor._version
        if last is not None and last[0]() is tensor and last[1] is step and last[2] == version:
            place = last[3]  # a parent usually returns what its last child returned
        else:
            place = step.tape.put(tensor)
        if place is None:
            return
        if role is Role.OUTPUT:
            self._last = weakref.ref(tensor), step, version, place
        step.seen.append(Seen(path, type_name, phase, index, role, name, place, self._describe(tensor)))


def _places_of(model: nn.Module) -> list[tuple[nn.Parameter, tuple[str, str, str]]]:
    """Return, for each parameter, path and class of its module, and its name there."""
    found: dict[int, tuple[nn.Parameter, tuple[str, str, str]]] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            found.setdefault(id(parameter), (parameter, (path, type(module).__name__, name)))
    return list(found.values())
