"""A device that computes on the CPU: tests run programs on it, with kernels made wrong, where there is no real device.

It takes the place that PyTorch reserves for devices from outside, as torch_npu does. Its tensors report a device of
their own, cannot be read or mixed with the host's without a copy, and have random numbers of their own. Every
operator on them is one call of `SimulatedDevice.run`, with the operators that PyTorch gives to a device: those below
autograd, composite ones taken apart.

What it does not have: work that is queued, memory of its own, dtypes without kernels, kernels that round otherwise.

PyTorch takes one such device in a process, for its whole life. A test therefore runs in a process of its own: see
`device_process`.

Source: ``torch.utils.backend_registration``, "python backend", of PyTorch 2.10 and later; it is experimental there.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_iter, tree_map_only

Kernel = Callable[..., Any]
"""Computes an operator from tensors on the host: ``kernel(original, *args, **kwargs)``."""

Watcher = Callable[[str, tuple[Any, ...], Mapping[str, Any]], None]
"""Receives the operator, such as ``aten::mm``, and its arguments on the device, before it runs."""

_HOST = torch.device("cpu")


class SimulatedTensor(Tensor):
    """A tensor on the device; ``held`` has its elements, on the host."""

    held: Tensor
    owner: SimulatedDevice

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device, owner: SimulatedDevice) -> Any:
        """Wrap a tensor of the host."""
        made: SimulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            layout=held.layout, device=device,
        )  # fmt: skip
        made.held, made.owner = held, owner
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        """Describe it without its elements."""
        del tensor_contents
        return f"SimulatedTensor({list(self.shape)}, {self.dtype}, {self.device})"

    def tolist(self) -> Any:
        """Return the elements; PyTorch refuses this for subclasses, and not for devices."""
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Save the elements, as ``torch.save`` does for a device that has them in memory of its own."""
        return self.detach().cpu().__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator on the device of its arguments."""
        del types
        owner = next(item.owner for item in tree_iter((args, kwargs)) if isinstance(item, SimulatedTensor))
        return owner.run(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]


class SimulatedDevice:
    """The device, of which there may be several of one kind.

    Attributes:
        kind: Its name in PyTorch, such as ``npu``.
        count: How many there are.
        watchers: Told of every operator.
        num_waits: How often the host has waited for results.
        now: A time that tests let pass.
        lag: How much later events happen than they are recorded.
    """

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count = kind, count
        self.watchers: list[Watcher] = []
        self.num_waits = self.now = self.lag = 0
        self._wrong: dict[tuple[str, int | None], Kernel] = {}
        self.generators = [torch.Generator() for _ in range(count)]

    @contextmanager
    def wrong(self, operator: str, kernel: Kernel, index: int | None = None) -> Generator[None, None, None]:
        """Replace the kernel of an operator for a block.

        Args:
            operator: Such as ``aten::_softmax``, for all of its overloads.
            kernel: What runs in its place.
            index: On this device only; ``None`` for all of them.
        """
        self._wrong[operator, index] = kernel
        try:
            yield
        finally:
            del self._wrong[operator, index]

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator on tensors of the device, and on those of the host that it may take."""
        name, device = func._schema.name, self._device_of(args, kwargs)
        for watcher in self.watchers:
            watcher(name, args, kwargs)
        self._refuse_host_tensors(name, args, kwargs)
        held = {key: _HOST if key == "device" and value is not None else value for key, value in kwargs.items()}
        held_args, held_kwargs = _held(args), _held(held)
        wrong = self._wrong.get((name, device.index), self._wrong.get((name, None)))
        # A device does not call PyTorch's functions, so those who watch these do not see its kernels.
        with self._random(func, device), torch._C.DisableTorchFunction():
            run = func if wrong is None else partial(wrong, func)
            result = run(*held_args, **held_kwargs)
        is_read = _goes_to_host(name, args, kwargs)
        if name == "aten::_local_scalar_dense" or (is_read and not _is_enqueued(name, args, kwargs)):
            self.num_waits += 1
        if is_read:
            return args[0] if name == "aten::copy_" else result
        wrapped = tree_map_only(Tensor, lambda tensor: SimulatedTensor(tensor, device, self), result)
        return return_and_correct_aliasing(func, args, dict(kwargs), wrapped)

    def empty(self, *args: Any, device: torch.device | None = None, **kwargs: Any) -> SimulatedTensor:
        """Return a new tensor, for PyTorch's functions that make one from nothing."""
        with torch._C.DisableTorchFunction():
            return SimulatedTensor(torch.empty(*args, **_known(kwargs)), self._indexed(device), self)

    def empty_strided(self, *args: Any, device: torch.device | None = None, **kwargs: Any) -> SimulatedTensor:
        """Return a new tensor with strides."""
        with torch._C.DisableTorchFunction():
            return SimulatedTensor(torch.empty_strided(*args, **_known(kwargs)), self._indexed(device), self)

    def make(self, func: Any, *args: Any, device: torch.device | None = None, **kwargs: Any) -> Any:
        """Run an operator that makes a tensor from nothing."""
        return self.run(func, args, {**kwargs, "device": self._indexed(device)})

    def _device_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
        given = kwargs.get("device")
        if given is not None and torch.device(given).type == self.kind:
            return self._indexed(torch.device(given))
        ours = (item for item in tree_iter((args, kwargs)) if isinstance(item, SimulatedTensor))
        return next((tensor.device for tensor in ours), self._indexed(None))

    def _indexed(self, device: torch.device | None) -> torch.device:
        index = 0 if device is None or device.index is None else device.index
        if index >= self.count:
            raise RuntimeError(f"invalid device ordinal {index}: there are {self.count}")
        return torch.device(self.kind, index)

    def _refuse_host_tensors(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Fail as devices do when an operator mixes tensors of several devices; scalars of the host are taken."""
        if name in _COPIES:
            return
        places = {
            tensor.device
            for tensor in tree_iter((args, kwargs))
            if isinstance(tensor, Tensor) and (isinstance(tensor, SimulatedTensor) or tensor.dim())
        }
        if len(places) > 1:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found {', '.join(sorted(map(str, places)))}"
            )

    @contextmanager
    def _random(self, func: Any, device: torch.device) -> Generator[None, None, None]:
        """Draw random numbers from the device's generator."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            yield
            return
        of_host, generator = torch.get_rng_state(), self.generators[device.index]
        torch.set_rng_state(generator.get_state())
        try:
            yield
            generator.set_state(torch.get_rng_state())
        finally:
            torch.set_rng_state(of_host)


_MADE_WHOLE = ("arange", "eye", "linspace", "logspace", "randperm", "range", "tril_indices", "triu_indices")
"""Operators that PyTorch otherwise runs by resizing a tensor without elements, which cannot be done to a subclass."""

_COPIES = frozenset({"aten::copy_", "aten::_to_copy", "aten::_copy_from"})


def _goes_to_host(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    if name == "aten::copy_":
        return not isinstance(args[0], SimulatedTensor)
    target = kwargs.get("device")
    return target is not None and torch.device(target).type == "cpu"


def _is_enqueued(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return bool(args[2] if name == "aten::copy_" and len(args) > 2 else kwargs.get("non_blocking"))


def _held(values: Any) -> Any:
    return tree_map_only(SimulatedTensor, lambda tensor: tensor.held, values)


def _known(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if value is not None and key != "pin_memory"}


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy between host and device where PyTorch goes around subclasses, as in ``torch.tensor``."""
    del non_blocking
    _held(target).copy_(_held(source))
    return target


class _Event:
    """An event, as if work were queued before it."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._due = 0

    def record(self, stream: object) -> None:
        del stream
        self._due = self._device.now + self._device.lag

    def query(self) -> bool:
        return self._device.now >= self._due

    def synchronize(self) -> None:
        self._device.num_waits += not self.query()


class _DeviceModule:
    """What is ``torch.npu`` for a device of the kind npu: the functions that programs and debuggers call."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device

    def Event(self) -> _Event:  # noqa: N802  # PyTorch's name
        return _Event(self._device)

    def current_stream(self, device: Any = None) -> None:
        del device

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return self._device.count

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        del device

    def synchronize(self, device: Any = None) -> None:
        del device

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        for generator in self._device.generators:
            generator.manual_seed(seed)

    def manual_seed(self, seed: int) -> None:
        self.manual_seed_all(seed)

    def get_rng_state(self, device: Any = 0) -> Tensor:
        return self._device.generators[_index_of(device)].get_state()

    def set_rng_state(self, state: Tensor, device: Any = 0) -> None:
        self._device.generators[_index_of(device)].set_state(state)

    def get_rng_state_all(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._device.generators]

    def set_rng_state_all(self, states: list[Tensor]) -> None:
        for generator, state in zip(self._device.generators, states, strict=True):
            generator.set_state(state)


def _index_of(device: Any) -> int:
    return device if isinstance(device, int) else torch.device(device).index or 0


def has_python_devices() -> bool:
    """Whether this PyTorch takes a device that is written in Python."""
    from torch.utils import backend_registration

    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend")


def simulated_device(kind: str = "npu", count: int = 1) -> SimulatedDevice:
    """Return the device of this process, which it registers at the first call.

    Args:
        kind: Its name in PyTorch.
        count: How many there are. With one, PyTorch runs its backward in a thread of its own, as with real devices; it
            has no such threads for further devices that are written in Python, so with several it uses the caller's.
    """
    return _registered(kind, count)


@cache
def _registered(kind: str, count: int) -> SimulatedDevice:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    device = SimulatedDevice(kind, count)
    _setup_privateuseone_for_python_backend(kind, backend_module=_DeviceModule(device))
    kernels = {"empty.memory_format": device.empty, "empty_strided": device.empty_strided, "_copy_from": _copy_from}
    for packet in (getattr(torch.ops.aten, name) for name in _MADE_WHOLE):
        for overload in packet.overloads():
            if "out" not in overload:
                func = getattr(packet, overload)
                kernels[func._schema.name.removeprefix("aten::") + f".{overload}".replace(".default", "")] = partial(
                    device.make, func
                )
    for name, kernel in kernels.items():
        _library().impl(name, kernel, "PrivateUse1")
    if count > 1:
        torch._C._set_multithreading_enabled(False)
    return device


@cache
def _library() -> torch.library.Library:
    return torch.library.Library("aten", "IMPL")  # its registrations end with it


@contextmanager
def device_process() -> Generator[Callable[..., Any], None, None]:
    """Yield what runs a function of a module with its arguments in one other process, which may register a device."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()
