"""What the training monitor computes from the elements of PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from msprobe.pytorch._reduce import readable
from msprobe.pytorch._statistics import WITHOUT_VALUES, widened

_MASTERS = ("master_param",)
"""Names under which optimizers keep float32 copies of parameters: Transformer Engine's fused Adam."""


class Measuring:
    """See `msprobe_core.plugin.MeasuringFramework`."""

    def elements(self, tensor: Any) -> Tensor | None:
        """Return the tensor or its local shard."""
        values = readable(tensor)
        if values is None or not values.numel() or values.dtype in WITHOUT_VALUES or values.dtype is torch.bool:
            return None
        return None if values.is_complex() else widened(values)

    def sampled(self, tensors: Sequence[Any], stride: int) -> Sequence[Tensor] | None:
        """Return them in the order of the first in memory."""
        found: list[Tensor] = []
        for tensor in tensors:
            values = self.elements(tensor)
            if values is None or (found and values.shape != found[0].shape):
                return None
            found.append(values)
        strides = found[0].stride()
        order = sorted(range(len(strides)), key=strides.__getitem__, reverse=True)
        return [values.permute(order).reshape(-1)[::stride] for values in found]

    def kth_smallest(self, values: Tensor, ranks: Sequence[int]) -> Sequence[Tensor]:
        """Select each."""
        wide = values if values.dtype is torch.float64 else values.float()
        return [torch.kthvalue(wide, rank).values for rank in ranks]

    def are_on_host(self, numbers: Sequence[Tensor]) -> bool:
        """Ask each."""
        return all(number.is_cpu for number in numbers)

    def masters_of(self, optimizer: Any, parameters: Sequence[Any]) -> Sequence[Any]:
        """Look into the optimizer's state and groups."""
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}

        def master_of(parameter: Any) -> Any:
            state: Mapping[str, Any] = optimizer.state.get(parameter, {})
            master = next((state[name] for name in _MASTERS if isinstance(state.get(name), Tensor)), None)
            return parameter if master is None and id(parameter) in updated else master

        return [master_of(parameter) for parameter in parameters]

    def modules_of(self, model: nn.Module) -> Mapping[str, nn.Module]:
        """Return the named modules."""
        return dict(model.named_modules())
