"""PyTorch as the core sees it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.overrides
from torch import Tensor, nn

from msprobe.pytorch._apis import ApiTable
from msprobe.pytorch._functions import ApiMode, BackwardEngine, FastPathCheck
from msprobe.pytorch._modules import ModuleHooks
from msprobe.pytorch._quiet import Quiet
from msprobe.pytorch._reduce import TorchReducer, readable
from msprobe_core.config import RiskLevel
from msprobe_core.hookspecs import Attachment, AttachOptions, CallRecorder, NamedModel, Reducer
from msprobe_core.model import Argument, TensorContent, TensorMeta
from msprobe_core.store.layout import create_file

_PLAIN_TYPES = (Tensor, nn.Parameter)


class PyTorchFramework:
    """See `msprobe_core.hookspecs.Framework`."""

    name = "pytorch"
    tensor_suffix = ".pt"
    hidden_frames = (str(Path(__file__).parent), str(torch.overrides.__file__))

    def __init__(self) -> None:
        self._dtypes: dict[torch.dtype, str] = {}
        self._apis: dict[RiskLevel, ApiTable] = {}

    def is_tensor(self, value: object) -> bool:
        """Whether ``value`` is a ``torch.Tensor``."""
        return isinstance(value, Tensor)

    def is_model(self, value: object) -> bool:
        """Whether ``value`` is a ``torch.nn.Module``."""
        return isinstance(value, nn.Module)

    def rank(self) -> int | None:
        """Return the rank in the process group or, before there is one, the rank that the launcher gave."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank()
        launched = os.environ.get("RANK", "")
        return int(launched) if launched.isdecimal() and "WORLD_SIZE" in os.environ else None

    def describe(self, tensor: Any) -> TensorMeta:
        """Describe a tensor without reading it."""
        dtype = self._dtypes.get(tensor.dtype)
        if dtype is None:
            dtype = self._dtypes[tensor.dtype] = str(tensor.dtype)
        kind = type(tensor)
        name = "torch.Tensor" if kind in _PLAIN_TYPES else f"{kind.__module__}.{kind.__qualname__}"
        shape = () if tensor.is_nested else tuple(int(size) for size in tensor.shape)
        return TensorMeta(name, dtype, shape, tensor.requires_grad)

    def takes_gradient(self, tensor: Any) -> bool:
        """Whether the tensor requires a gradient."""
        return tensor.requires_grad

    def describe_argument(self, value: Any) -> Argument | None:
        """Describe a size, dtype, device, layout, memory format, process group or reduce operation."""
        kind = type(value)
        if kind is torch.Size:
            # Symbolic sizes, and the tensors that tracing puts there, are no numbers.
            return Argument("torch.Size", [size if type(size) is int else type(size).__name__ for size in value])
        if kind in (torch.dtype, torch.layout):
            return Argument(f"torch.{kind.__name__}", str(value))
        if kind is torch.device:
            return Argument("torch.device", f"{value.type}:{value.index}")
        if kind is torch.memory_format:
            return Argument("torch.memory_format", None, {"format": str(value)})
        return _describe_distributed(value)

    def reducer(self) -> Reducer:
        """Return a new reducer."""
        return TorchReducer()

    def attach(self, models: Sequence[NamedModel], options: AttachOptions, recorder: CallRecorder) -> Attachment:
        """Hook modules, enter the function mode, or both, as the level says."""
        return _Attachment(models, options, recorder, self._apis_at(RiskLevel(options.risk_level)))

    def _apis_at(self, risk_level: RiskLevel) -> ApiTable:
        # Kept: building it takes milliseconds, and there may be a window in every step.
        if risk_level not in self._apis:
            self._apis[risk_level] = ApiTable(risk_level)
        return self._apis[risk_level]

    def snapshot(self, tensor: Any) -> Any:
        """Return a contiguous detached copy on the tensor's own device; ``None`` if it has no plain elements."""
        with Quiet():
            values = readable(tensor)
            return None if values is None else values.clone(memory_format=torch.contiguous_format)

    def content(self, snapshot: Any) -> TensorContent:
        """Return the bytes of a copy, fetched from its device."""
        values = snapshot.resolve_conj().resolve_neg().cpu().contiguous()
        dtype = str(values.dtype).removeprefix("torch.")
        return TensorContent(dtype, tuple(values.shape), memoryview(values.reshape(-1).view(torch.uint8).numpy()))

    def save(self, snapshot: Any, path: Path) -> None:
        """Write a copy with ``torch.save``."""
        with create_file(path) as file:
            torch.save(snapshot, file)


class _Attachment:
    """Everything that is in place between ``start`` and ``stop``."""

    def __init__(
        self, models: Sequence[NamedModel], options: AttachOptions, recorder: CallRecorder, apis: ApiTable
    ) -> None:
        self._recorder = recorder
        self._unsettled: dict[int, Callable[[], None]] = {}
        self._removals: list[Callable[[], None]] = []
        try:
            if options.level.has_modules:
                hooks = ModuleHooks(models, recorder, self._unsettled)
                self._removals.append(hooks.remove)
                hooks.install()
            if options.level.has_apis:
                mode = ApiMode(recorder, apis, self._unsettled)
                mode.push()
                self._removals.append(mode.remove)
                for stand_in in (BackwardEngine(mode), FastPathCheck(mode)):
                    stand_in.install()
                    self._removals.append(stand_in.remove)
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Take everything out, the last first."""
        while self._removals:
            self._removals.pop()()

    def settle(self) -> None:
        """Hand over gradients of which some parts never came, for example of a branch that the loss does not use."""
        while self._unsettled:
            _, hand_over = self._unsettled.popitem()
            with Quiet(self._recorder.note_failure):
                hand_over()


def _describe_distributed(value: Any) -> Argument | None:
    if not torch.distributed.is_available():
        return None
    if isinstance(value, torch.distributed.ProcessGroup):
        ranks = torch.distributed.get_process_group_ranks(value)
        group_id = f"{zlib.crc32(str(ranks).encode()):08x}"
        return Argument("torch.ProcessGroup", None, {"group_ranks": ranks, "group_id": group_id})
    if isinstance(value, torch.distributed.ReduceOp | torch.distributed.ReduceOp.RedOpType):
        return Argument("torch.distributed.ReduceOp", str(value))
    return None
