"""What the training monitor computes from the elements of MindSpore's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindspore import Tensor, nn, ops

from msprobe.mindspore._device import COMPLEX, WITH_ARITHMETIC, is_host

_READABLE = {str(dtype) for dtype in WITH_ARITHMETIC - COMPLEX} - {"Bool"}


class Measuring:
    """See `msprobe_core.plugin.MeasuringFramework`."""

    def elements(self, tensor: Any) -> Any:
        """Return the tensor itself."""
        return tensor if isinstance(tensor, Tensor) and tensor.size and str(tensor.dtype) in _READABLE else None

    def sampled(self, tensors: Sequence[Any], stride: int) -> Sequence[Any] | None:
        """Return them in the order of their indices."""
        if any(self.elements(each) is None or each.shape != tensors[0].shape for each in tensors):
            return None
        vectors = [each.reshape(-1) for each in tensors]
        return vectors if stride == 1 else [each[::stride] for each in vectors]

    def kth_smallest(self, values: Any, ranks: Sequence[int]) -> Sequence[Any]:
        """Sort."""
        ordered = ops.sort(values.float())[0]
        return [ordered[rank - 1] for rank in ranks]

    def are_on_host(self, numbers: Sequence[Any]) -> bool:
        """Ask for the device that this process uses."""
        return not numbers or is_host()

    def masters_of(self, optimizer: Any, parameters: Sequence[Any]) -> Sequence[Any]:
        """Return those that the optimizer has."""
        updated = {id(parameter) for parameter in getattr(optimizer, "parameters", ())}
        return [parameter if id(parameter) in updated else None for parameter in parameters]

    def modules_of(self, model: nn.Cell) -> Mapping[str, nn.Cell]:
        """Return the Cells."""
        return dict(model.cells_and_names())
