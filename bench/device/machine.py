"""The device: its time, its memory, and when the host waits for it."""

from __future__ import annotations

import gc
import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

Step = Callable[[], object]

_STEP = "step of the proof"

_WAITS = frozenset({"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy"})
"""Calls of the CUDA runtime in which the host waits, by the names that PyTorch's profiler shows."""


class Machine(ABC):
    """A device.

    Attributes:
        kind: As in ``torch.device``.
        is_real: Whether its times and its rounding are those of a real device.
    """

    kind: str
    is_real = True

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all work."""

    @abstractmethod
    def waits_in(self, step: Step) -> Sequence[str] | None:
        """Run a step; return how the host has waited in it, or ``None`` if that cannot be counted."""

    @abstractmethod
    def peak_bytes(self, step: Step) -> int | None:
        """Run a step; return the most memory in use, or ``None`` if that cannot be told."""

    def collectives(self) -> str:
        """Return the name of the backend with which its processes communicate."""
        return "gloo"

    def with_silu(self, kernel: Callable[..., Any]) -> AbstractContextManager[Any]:
        """Return what has ``kernel(original, *args)`` compute SiLU in forward passes of a block."""
        return _WithSilu(kernel)

    def seconds(self, step: Step) -> float:
        """Run a step, and return how long it has taken."""
        self.synchronize()
        begin = time.perf_counter()
        step()
        self.synchronize()
        return time.perf_counter() - begin

    def free_bytes(self) -> int:
        """Return how much memory is free."""
        return 0

    def release(self) -> None:  # noqa: B027  # most devices keep none
        """Give memory back that no tensor uses."""


class _WithSilu(TorchDispatchMode):
    def __init__(self, kernel: Callable[..., Any]) -> None:
        super().__init__()
        self._kernel = kernel

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is torch.ops.aten.silu.default:
            return self._kernel(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class Cuda(Machine):
    """An NVIDIA GPU."""

    kind = "cuda"

    @property
    def name(self) -> str:
        """Of the card."""
        return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"

    def collectives(self) -> str:
        """See `Machine`."""
        return "nccl"

    def synchronize(self) -> None:
        """See `Machine`."""
        torch.cuda.synchronize()

    def waits_in(self, step: Step) -> Sequence[str]:
        """See `Machine`; counted by the profiler."""
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled, record_function(_STEP):
            step()
        return waits_of(profiled.events() or [])

    def peak_bytes(self, step: Step) -> int:
        """See `Machine`."""
        gc.collect()  # graphs of earlier steps
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    def free_bytes(self) -> int:
        """See `Machine`."""
        return torch.cuda.mem_get_info()[0]

    def release(self) -> None:
        """See `Machine`."""
        torch.cuda.empty_cache()


def waits_of(events: Sequence[Any]) -> list[str]:
    """Return the names of those events of a profile in which the host waits within the step."""
    # The step has a range on the device too, which ends when the work does: after waits that are no part of it.
    step = next(event.time_range for event in events if event.name == _STEP and event.device_type.name == "CPU")
    return [event.name for event in events if event.name in _WAITS and step.start <= event.time_range.start <= step.end]


class Host(Machine):
    """The processor, for a dry run."""

    kind, is_real = "cpu", False

    @property
    def name(self) -> str:
        """Of the host."""
        return "the host itself, for a dry run"

    def synchronize(self) -> None:
        """Do nothing."""

    def waits_in(self, step: Step) -> None:
        """Run the step."""
        step()

    def peak_bytes(self, step: Step) -> None:
        """Run the step."""
        step()


class Simulated(Machine):
    """The simulated device of the test suite, for a dry run; ``tests/support`` must be on the path."""

    kind, is_real = "npu", False

    def __init__(self) -> None:
        self._device: Any = importlib.import_module("simulated_device").simulated_device()

    @property
    def name(self) -> str:
        """What it is."""
        return "the simulated device of the test suite, for a dry run"

    def collectives(self) -> str:
        """See `Machine`; a stand-in of HCCL."""
        importlib.import_module("device_collectives").register()
        return "hccl"

    def with_silu(self, kernel: Callable[..., Any]) -> AbstractContextManager[Any]:
        """See `Machine`."""
        return self._device.wrong("aten::silu", kernel)

    def synchronize(self) -> None:
        """See `Machine`."""
        self._device.clock.synchronize()

    def waits_in(self, step: Step) -> Sequence[str]:
        """See `Machine`; counted by the device."""
        clock = self._device.clock
        clock.waits.clear()
        step()
        return [wait.reason for wait in clock.waits if wait.thread != "msprobe-writer"]

    def peak_bytes(self, step: Step) -> int:
        """See `Machine`."""
        self._device.memory.reset_peak()
        step()
        return self._device.memory.peak


MACHINES: dict[str, type[Machine]] = {"cuda": Cuda, "cpu": Host, "simulated": Simulated}
