"""A stand-in of HCCL: communication of simulated devices in several processes, over gloo.

It is registered as torch_npu registers the real one, under the name ``hccl`` for the device type ``npu``. A
communication is work of the device on a stream of its own: it begins after what the caller's stream has enqueued, the
host does not wait for it, and its results are in their tensors only once a stream has waited for them. Until then their
memory holds what it did before, so that who reads them too early reads the old values, and the clock notes it as any
read of another stream's results without an order between the two.

What it does not have: kernels that add in another order than gloo, and communication that goes on by itself: the host
passes it on where the program waits, which a real device does alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from device_clock import Event
from simulated_device import SimulatedDevice, SimulatedTensor, simulated_device
from torch import Tensor
from torch.futures import Future
from torch.utils._pytree import tree_iter, tree_map_only

_READS_ALL = frozenset({"send"})
"""Communication whose first argument is only read; that of all other kinds has the results."""

KINDS = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced", "all_gather_single",
    "all_gather_single_coalesced", "_allgather_base", "allgather_into_tensor_coalesced", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_single_coalesced", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "gather", "scatter", "alltoall", "alltoall_base", "all_to_all_single", "send",
    "recv",
)  # fmt: skip


class _Work(dist.Work):
    """Communication that is under way on the device."""

    def __init__(self, host: Any, done: Event, results: Sequence[tuple[SimulatedTensor, Tensor]]) -> None:
        super().__init__()
        self._host, self._done, self._results = host, done, results

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Have the current stream wait, and not the host."""
        del timeout
        self._arrive()
        self._done.wait()
        return True

    def is_completed(self) -> bool:
        """Whether it is done."""
        return self._host.is_completed()

    def get_future(self) -> Future[Any]:
        """Return a future that is complete; who asks for it waits as in `wait`, since futures know no stream."""
        self.wait()
        future = torch.futures.Future[Any]()
        future.set_result([target for target, _ in self._results])
        return future

    def _arrive(self) -> None:
        self._host.wait()
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for target, values in self._results:
                target.held.copy_(values)
        self._results = [(target, target.held) for target, _ in self._results]


class Hccl(dist.ProcessGroup):
    """A process group for tensors on the simulated device."""

    num_calls = 0
    """How often any group of this process has communicated."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._device, self._host, self._name = simulated_device(), _over_gloo(store, rank, size, timeout), ""
        self._stream = self._device.clock.new_stream()

    def getBackendName(self) -> str:  # noqa: N802  # PyTorch's name
        """Return its name."""
        return "hccl"

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(self._device.kind)]

    @property
    def group_name(self) -> str:
        """Name by which functional collectives find it."""
        return self._name

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all processes."""
        del opts
        self._device.clock.wait("hccl::barrier")
        return self._host.barrier()

    def _communicate(self, kind: str, args: Sequence[Any]) -> _Work:
        Hccl.num_calls += 1
        clock = self._device.clock
        ours = [item for item in tree_iter(args) if isinstance(item, SimulatedTensor)]
        if strangers := [item for item in tree_iter(args) if type(item) is Tensor]:
            raise RuntimeError(f"hccl::{kind}: no backend for tensors on {strangers[0].device}")
        written = [] if kind in _READS_ALL else [item for item in tree_iter(args[0]) if item in _by_identity(ours)]
        # A device does not call PyTorch's functions, so those who watch these do not see what it does.
        with torch._C.DisableTorchFunction(), torch.no_grad():
            sent = {id(tensor): tensor.held.clone() for tensor in ours}
            work = getattr(self._host, kind)(*tree_map_only(SimulatedTensor, lambda tensor: sent[id(tensor)], args))
        self._stream.wait_stream(clock.current_stream())
        with clock.on(self._stream):
            clock.enqueue(f"hccl::{kind}", ours, written)
        return _Work(work, self._stream.record_event(), [(tensor, sent[id(tensor)]) for tensor in written])


def _over_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    group, host = dist.ProcessGroup(store, rank, size), torch.device("cpu")
    backend = dist.ProcessGroupGloo(store, rank, size, timeout)
    group._register_backend(host, dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return group


class _by_identity:  # noqa: N801  # reads as a function
    """Whether a list has a tensor itself; ``in`` would compare elements."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = {id(tensor) for tensor in tensors}

    def __contains__(self, tensor: object) -> bool:
        return id(tensor) in self._tensors


def _method(kind: str) -> Callable[..., _Work]:
    def communicate(self: Hccl, *args: Any) -> _Work:
        return self._communicate(kind, args)

    return communicate


for _kind in KINDS:
    if hasattr(dist.ProcessGroup, _kind):
        setattr(Hccl, _kind, _method(_kind))


def register() -> SimulatedDevice:
    """Register it; return the device of this process."""
    device = simulated_device()
    if "HCCL" not in dist.Backend._plugins:
        dist.Backend.register_backend("hccl", Hccl, devices=["npu"])
        _resize_for_fsdp()
    return device


def _resize_for_fsdp() -> None:
    """Let FSDP free and allocate memory of the device, which is not that of the tensors that PyTorch knows."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

    def alloc_storage(tensor: Any) -> None:
        _resize(tensor, tensor.numel() * tensor.itemsize)

    def free_storage(tensor: Any) -> None:
        _resize(tensor, 0)

    for module in (_fsdp_param, _fsdp_param_group):
        for function in (alloc_storage, free_storage):
            if hasattr(module, function.__name__):
                setattr(module, function.__name__, function)


def _resize(tensor: Any, size: int) -> None:
    storage = (tensor.held if isinstance(tensor, SimulatedTensor) else tensor).untyped_storage()
    if storage.size() != size:
        storage.resize_(size)
