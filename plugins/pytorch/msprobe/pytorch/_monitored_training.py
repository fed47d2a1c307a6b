"""One training as the monitor sees it, whatever trainer keeps its gradients, moments and parameters where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from msprobe.pytorch._master_weights import Master, master_of, zero_3_range
from msprobe.pytorch._monitor import Monitoring, moments_in
from msprobe.pytorch._monitor_measures import Measuring
from msprobe.pytorch._optimizer_steps import StepWatch, all_of, leaves_of
from msprobe.pytorch._placements import distribution_of
from msprobe.pytorch._reduce import held_by
from msprobe.pytorch._reductions import ReductionWatch, fsdp1_handles, fsdp2_groups
from msprobe_core.plugin import BeforeUpdate, Part


class Trained(Monitoring, Measuring):
    """See `msprobe_core.plugin.TrainerTools`."""

    def __init__(self, models: Sequence[nn.Module], optimizer: Any) -> None:
        """Take the models and what updates them; nothing is attached yet."""
        self._models = models
        self._optimizers = list(all_of(optimizer))
        self._leaves = leaves_of(optimizer)
        self._grad_scale: Tensor | None = None
        self._flat: dict[int, Part] = {}
        self._flat_handles: list[int] = []
        self._reducing: dict[int, tuple[int, ...]] | None = None

    @property
    def trainers(self) -> Sequence[str]:
        """Names of the trainers that the models and parameters show."""
        models = self._models
        parameters = [parameter for model in models for parameter in model.parameters()]
        modules = [module for model in models for module in model.modules()]
        signs = {
            "ddp": any(isinstance(each, nn.parallel.DistributedDataParallel) for each in modules),
            "fsdp1": any(fsdp1_handles(model) for model in models),
            "fsdp2": any(fsdp2_groups(model) for model in models),
            "dtensor": any(distribution_of(each) is not None for each in parameters),
            "megatron": any(hasattr(each, "main_grad") for each in parameters),
            "zero-1-2": any(hasattr(each, "_hp_mapping") for each in parameters),
            "zero-3": any(hasattr(each, "ds_tensor") for each in parameters),
        }  # fmt: skip
        return [name for name, is_there in signs.items() if is_there]

    def _master(self, parameter: Any) -> Master | None:
        return master_of(parameter, self._optimizers)

    def gradient_of(self, parameter: Any, *, is_main: bool) -> Tensor | None:
        """Return the gradient as the optimizer uses it: of the master if there is one, and without a scale."""
        master = self._master(parameter)
        if master is None:
            gradient = super().gradient_of(parameter, is_main=is_main)
        elif master.tensor is None:
            return None
        else:
            gradient = master.tensor.grad
            if gradient is None:
                gradient = getattr(master.tensor, "decoupled_grad", None)
            gradient = None if gradient is None else master.cut(gradient)
        gradient = _unless_empty(gradient)
        if gradient is not None and self._grad_scale is not None:
            return gradient / self._grad_scale
        return gradient

    def moments_of(self, optimizer: Any, parameter: Any) -> tuple[Any, Any]:
        """Return the moments of the master if there is one."""
        del optimizer
        master = self._master(parameter)
        updated = parameter if master is None else master.tensor
        state: Mapping[str, Any] = {}
        if updated is not None:
            state = next((leaf.state[updated] for leaf in self._all_with_state() if updated in leaf.state), {})
        first, second = moments_in(state)
        if master is not None:
            first, second = _cut(master, first), _cut(master, second)
        return _unless_empty(first), _unless_empty(second)

    def _all_with_state(self) -> Sequence[Any]:
        return self._leaves or [each for each in self._optimizers if isinstance(getattr(each, "state", None), Mapping)]

    def masters_of(self, optimizer: Any, parameters: Sequence[Any]) -> Sequence[Any]:
        """Return this rank's elements in the trainer's master, or what one of the optimizers keeps."""
        del optimizer
        found: list[Any] = [None] * len(parameters)
        for leaf in self._leaves:
            kept = super().masters_of(leaf, parameters)
            found = [one if one is not None else other for one, other in zip(found, kept, strict=True)]
        for place, parameter in enumerate(parameters):
            master = self._master(parameter)
            if master is not None and master.tensor is not None:
                found[place] = master.cut(master.tensor)
        return found

    def value_of(self, parameter: Any) -> Any:
        """Return the parameter, or this rank's partition of one that is gathered only while it is used."""
        if hasattr(parameter, "ds_tensor"):
            parameter = parameter.ds_tensor.narrow(0, 0, zero_3_range(parameter)[1])
        return _unless_empty(parameter)

    def part_of(self, parameter: Any, *, is_updated: bool) -> Part | None:
        """Return which part this rank has."""
        if is_updated and (master := self._master(parameter)) is not None:
            numel = int(getattr(parameter, "ds_numel", parameter.numel()))
            if master.tensor is None:
                return Part(whole=(numel,), offset=(0,), shape=(0,))
            if master.numel == numel:
                return None
            return Part(whole=(numel,), offset=(master.offset,), shape=(master.numel,))
        if hasattr(parameter, "ds_tensor"):
            offset, numel = zero_3_range(parameter)
            return Part(whole=(int(parameter.ds_numel),), offset=(offset,), shape=(numel,))
        spread = distribution_of(parameter)
        if spread is not None:
            return Part(whole=tuple(parameter.shape), offset=spread.local_offset, shape=spread.local_shape)
        return self._flat_part_of(parameter)

    def _flat_part_of(self, parameter: Any) -> Part | None:
        """Return the part of a parameter that shares a flat one with others."""
        handles = [handle for model in self._models for handle in fsdp1_handles(model)]
        if [id(handle) for handle in handles] != self._flat_handles:
            self._flat_handles = [id(handle) for handle in handles]
            self._flat = {key: part for handle in handles for key, part in _parts_in(handle)}
        return self._flat.get(id(parameter))

    def is_tensor_parallel(self, parameter: Any) -> bool:
        """Return Megatron's mark; distributed tensors say it by their part."""
        return bool(getattr(parameter, "tensor_model_parallel", False))

    def reducing_ranks(self, parameter: Any) -> tuple[int, ...]:
        """Return the ranks of the mesh of ``fully_shard``, or of the group of `DistributedDataParallel`."""
        if self._reducing is None:
            self._reducing = dict(_reducing_ranks(self._models))
        ranks = self._reducing.get(id(parameter), ())
        return () if not ranks or len(ranks) == torch.distributed.get_world_size() else ranks

    def ranks_of(self, group: Any) -> tuple[int, ...]:
        """Return the ranks of a process group."""
        return tuple(torch.distributed.get_process_group_ranks(group))

    def watch_reductions(
        self, model: nn.Module, report: Callable[[str, Any], None], on_failure: Callable[[str, Exception], None]
    ) -> ReductionWatch:
        """Watch the trainers that are recognised."""
        return ReductionWatch(model, report, on_failure)

    def watch_updates(self, optimizer: Any, before: BeforeUpdate, after: Callable[[], None]) -> Callable[[], None]:
        """Call ``before`` with the parameters that an optimizer is about to update."""
        is_alone = self._leaves == self._optimizers and len(self._leaves) == 1
        is_begun = False

        def begin(leaf: Any) -> None:
            nonlocal is_begun
            is_first, is_begun = not is_begun, True
            self._grad_scale = getattr(leaf, "grad_scale", None)  # of an optimizer that unscales by itself
            groups = () if is_alone else getattr(leaf, "param_groups", ())
            updated = {id(each) for group in groups for each in group["params"]}

            def is_updated(parameter: Any) -> bool:
                master = self._master(parameter)
                if master is None:
                    return id(parameter) in updated
                return is_first if master.tensor is None else id(master.tensor) in updated

            try:
                before(is_updated if updated else None)
            finally:
                self._grad_scale = None

        def finish() -> None:
            nonlocal is_begun
            is_begun = False
            after()

        return StepWatch(optimizer, begin, finish).end


def _reducing_ranks(models: Sequence[nn.Module]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the parameters of trainers that reduce gradients, by their objects, and the ranks that do it together."""
    for model in models:
        for module in model.modules():
            if isinstance(module, nn.parallel.DistributedDataParallel):
                ranks = tuple(torch.distributed.get_process_group_ranks(module.process_group))
                yield from ((id(parameter), ranks) for parameter in module.parameters())
        for group in fsdp2_groups(model):
            ranks = tuple(group.mesh_info.mesh.mesh.flatten().tolist())
            yield from ((id(each.sharded_param), ranks) for each in group.fsdp_params)


def _unless_empty(tensor: Any) -> Any:
    """Return ``None`` for what is on other ranks."""
    return None if not isinstance(tensor, Tensor) or held_by(tensor).numel() == 0 else tensor


def _cut(master: Master, moment: Any) -> Any:
    if not isinstance(moment, Tensor) or master.tensor is None or moment.numel() != master.tensor.numel():
        return moment
    return master.cut(moment)


def _parts_in(handle: Any) -> list[tuple[int, Part]]:
    flat = handle.flat_param
    if not handle._use_orig_params or not handle.uses_sharded_strategy or flat._params is None:
        return []
    found: list[tuple[int, Part]] = []
    for parameter, info, shape in zip(flat._params, flat._shard_param_infos, flat._shapes, strict=True):
        begin, numel = (info.intra_param_start_idx, info.numel_in_shard) if info.in_shard else (0, 0)
        found.append((id(parameter), Part(whole=(shape.numel(),), offset=(begin,), shape=(numel,))))
    return found
