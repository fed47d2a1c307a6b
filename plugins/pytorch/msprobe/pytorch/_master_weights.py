"""Where optimizers keep what they update in place of a parameter: copies in float32, flattened and cut over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Master(NamedTuple):
    """The elements of a parameter in a tensor that the optimizer updates.

    Attributes:
        tensor: That tensor; ``None`` if it is on other ranks.
        start: First element of the parameter in the flattened tensor.
        numel: Number of elements that are there.
        offset: The first of them in the flattened parameter.
    """

    tensor: Tensor | None
    start: int = 0
    numel: int = 0
    offset: int = 0

    def cut(self, values: Tensor) -> Tensor:
        """Return the parameter's elements of a tensor that is like the master."""
        if self.start == 0 and self.numel == values.numel():
            return values
        return values.reshape(-1).narrow(0, self.start, self.numel)


def master_of(parameter: Any, optimizers: Iterable[Any]) -> Master | None:
    """Return where the optimizers keep a parameter; ``None`` if they update the parameter itself.

    Args:
        parameter: Of the model.
        optimizers: All that are wrapped in each other.
    """
    for finder in FINDERS:
        found = finder(parameter, optimizers)
        if found is not None:
            return found
    return None


def _of_distributed_optimizer(parameter: Any, optimizers: Iterable[Any]) -> Master | None:
    """Megatron's distributed optimizer: a range of the flattened parameter, of which it has a copy or a view."""
    if not hasattr(parameter, "main_grad"):
        return None
    for optimizer in optimizers:
        places = getattr(optimizer, "model_param_group_index_map", None)
        if places is None:
            continue
        if parameter in places:
            group, order = places[parameter]
            shard = optimizer.optimizer.param_groups[group]["params"][order]
            begin = optimizer._get_model_param_range_map(parameter)["param"].start
            return Master(shard, 0, shard.numel(), int(begin))
        if any(parameter in group for group in _grad_ranges(optimizer)):
            return Master(None)
    return None


def _grad_ranges(optimizer: Any) -> Sequence[Any]:
    """Return the parameters of the buffers that a distributed optimizer shares with other ranks."""
    return [getattr(buffer, "param_index_map", ()) for buffer in getattr(optimizer, "buffers", ())]


def _of_mixed_precision(parameter: Any, optimizers: Iterable[Any]) -> Master | None:
    """Megatron's other optimizers: a whole copy in float32."""
    del optimizers
    main = getattr(parameter, "main_param", None)
    if not isinstance(main, Tensor) or getattr(parameter, "main_param_sharded", False):
        return None
    return Master(main, 0, main.numel())


def _of_zero_1_and_2(parameter: Any, optimizers: Iterable[Any]) -> Master | None:
    """DeepSpeed's stages 1 and 2: a piece of a flat partition."""
    if not hasattr(parameter, "_hp_mapping"):
        return None
    mapping = parameter._hp_mapping
    if mapping is None:
        return Master(None)
    for optimizer in optimizers:
        for name in ("single_partition_of_fp32_groups", "fp32_groups_flat_partition"):
            partitions = getattr(optimizer, name, None)
            if partitions is not None:
                own, within = mapping.hp_fragment_address, mapping.lp_fragment_address
                return Master(partitions[mapping.param_group_index], own.start, own.numel, within.start)
    return None


def _of_zero_3(parameter: Any, optimizers: Iterable[Any]) -> Master | None:
    """DeepSpeed's stage 3: a piece of a flat partition, padded at the end of the last rank's."""
    if not hasattr(parameter, "ds_tensor"):
        return None
    for optimizer in optimizers:
        places = getattr(optimizer, "grad_position", None)
        if places is None:
            continue
        group, start, _ = places[optimizer.get_param_id(parameter)]
        offset, numel = zero_3_range(parameter)
        if numel == 0:
            return Master(None)
        return Master(optimizer.fp32_partitioned_groups_flat[group], start, numel, offset)
    return None


def zero_3_range(parameter: Any) -> tuple[int, int]:
    """Return the first element of the flattened parameter that this rank has, and how many, without padding."""
    size = int(parameter.partition_numel())
    rank = int(parameter.ds_process_group.rank())
    begin = min(rank * size, int(parameter.ds_numel))
    return begin, min(size, int(parameter.ds_numel) - begin)


FINDERS: Sequence[Callable[[Any, Iterable[Any]], Master | None]] = (
    _of_distributed_optimizer,
    _of_mixed_precision,
    _of_zero_1_and_2,
    _of_zero_3,
)
