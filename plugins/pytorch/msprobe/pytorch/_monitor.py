"""What the training monitor needs to know of PyTorch: parameters, their gradients, and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from msprobe.pytorch._arrivals import ArrivingNumbers
from msprobe.pytorch._collectives import Collectives
from msprobe.pytorch._compiled import modules_to_hook
from msprobe.pytorch._modules import PREFIX, type_name_of
from msprobe.pytorch._optimizer_steps import StepWatch, hook_all_steps, leaves_of
from msprobe.pytorch._parameters import ParameterGradients
from msprobe.pytorch._reduce import readable
from msprobe.pytorch._statistics import widened
from msprobe_core.interception import NothingPending, Removal, module_stem
from msprobe_core.plugin import BeforeUpdate, CallRecorder, NamedModel, Removable

_MOMENTS = (("exp_avg", "momentum_buffer"), ("exp_avg_sq",))
"""Names under which optimizers keep first and second moments."""


class Monitoring:
    """See `msprobe_core.plugin.MonitoringFramework`."""

    def parameters_of(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return the named parameters that require a gradient."""
        return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}

    def is_training(self, model: nn.Module) -> bool:
        """Return the mode of the outermost module."""
        return model.training

    def gradient_of(self, parameter: Any, *, is_main: bool) -> Tensor | None:
        """Return ``main_grad`` if the trainer has made one, else ``grad``."""
        main = getattr(parameter, "main_grad", None) if is_main else None
        return parameter.grad if main is None else main

    def moments_of(self, optimizer: Any, parameter: Any) -> tuple[Any, Any]:
        """Return the state of Adam and its like; a momentum is a first moment."""
        return moments_in(optimizer.state.get(parameter, {}))

    def share_below(self, tensor: Tensor, eps: float) -> Tensor | None:
        """Return the mean of whether elements are below."""
        values = readable(tensor)
        if values is None or not values.numel() or values.dtype is torch.bool:
            return None
        size = widened(values).abs()
        # A usual threshold is 0 in float16.
        return ((size.float() if size.dtype is torch.float16 else size) < eps).float().mean()

    def floats(self, numbers: Sequence[Tensor]) -> Sequence[float]:
        """Stack the numbers of each device and copy them at once."""
        return ArrivingNumbers(numbers, copies=False).floats()

    def fetch(self, numbers: Sequence[Tensor]) -> ArrivingNumbers | None:
        """Copy them into pinned memory."""
        found = ArrivingNumbers(numbers)
        return found if found.is_watched else None

    def watch_accumulation(self, models: Sequence[NamedModel], recorder: CallRecorder) -> _Accumulation:
        """Hook the parameters of all modules."""
        return _Accumulation(models, recorder)

    @property
    def communication_frames(self) -> Sequence[str]:
        """The files of ``torch.distributed`` that define and wrap its functions."""
        package = Path(torch.distributed.__file__).parent
        return [str(package / name) for name in ("distributed_c10d.py", "c10d_logger.py", "_functional_collectives.py")]

    def watch_communication(self, recorder: CallRecorder) -> Removable:
        """Wrap the functions of ``torch.distributed``, as recording does."""
        collectives = Collectives(recorder, {}, lambda _written: None)
        try:
            collectives.install()
        except BaseException:
            collectives.remove()
            raise
        return Removal(collectives.remove)

    def watch_updates(self, optimizer: Any, before: BeforeUpdate, after: Callable[[], None]) -> Callable[[], None]:
        """Watch the steps of one optimizer, or of several."""
        return StepWatch(optimizer, lambda _optimizer: before(), after).end

    def updated_by(self, optimizer: Any) -> Mapping[str, Any] | None:
        """Return them by the names that the optimizer was given, else by group and place."""
        leaves = [] if isinstance(optimizer, nn.Module) else leaves_of(optimizer)
        found = [each for leaf in leaves for each in _names_of(leaf)]
        by_tensor = {id(parameter): (name, parameter) for name, parameter in reversed(found)}
        return dict(reversed(by_tensor.values())) if leaves else None

    def watch_all_updates(
        self, before: Callable[[Sequence[Any]], None], after: Callable[[], None]
    ) -> Callable[[], None]:
        """Hook all optimizers of PyTorch."""
        return hook_all_steps(before, after)


def _names_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    for number, group in enumerate(optimizer.param_groups):
        named: Sequence[str] = group.get("param_names") or ()
        for place, parameter in enumerate(group["params"]):
            yield named[place] if place < len(named) else f"group{number}.{place}", parameter


def moments_in(state: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the first and second moment in an optimizer's state of a parameter; ``None`` where there is none."""
    first, second = (next((state[name] for name in names if name in state), None) for names in _MOMENTS)
    return first, second


class _Accumulation(NothingPending):
    """See `msprobe_core.plugin.Removable`."""

    def __init__(self, models: Sequence[NamedModel], recorder: CallRecorder) -> None:
        self._gradients = ParameterGradients(recorder)
        for model in models:
            for path, module, _ in modules_to_hook(model.model, model.name):
                self._gradients.hook(module, module_stem(PREFIX, path, type_name_of(module)))

    def detach(self) -> None:
        """Remove the hooks."""
        self._gradients.remove()

    def release(self) -> None:
        """Report nothing of graphs that are left."""
        self._gradients.release()
