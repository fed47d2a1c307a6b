"""A device that computes on the CPU: tests run programs on it, with kernels made wrong, where there is no real device.

It takes the place that PyTorch reserves for devices from outside, as torch_npu does. Its tensors report a device of
their own, cannot be read or mixed with the host's without a copy, and have random numbers of their own. Every
operator on them is one call of `SimulatedDevice.run`, with the operators that PyTorch gives to a device: those below
autograd, composite ones taken apart.

Operators are computed at once, on memory of the host, but no program can tell: its elements are read by copies only,
which arrive when the device's `Clock` says so, and an address of its memory is one that the host cannot read. The
clock notes whenever the host would wait for a real device (a copy without ``non_blocking``, or between the device and
memory that is not pinned; a number; a shape that depends on elements; an event that has not happened), and when work
on one stream reads that of another without waiting for it. While it captures a graph it notes all operators, and
refuses each wait, as real devices do.

What it does not have: kernels that round otherwise, and streams in backward passes, which run on the stream that is
current in the thread of the pass.

PyTorch takes one such device in a process, for its whole life. A test therefore runs in a process of its own: see
`device_process`.

Source: ``torch.utils.backend_registration``, "python backend", of PyTorch 2.10 and later; it is experimental there.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any

import torch
from device_autocast import register_autocast
from device_clock import Clock, Event, Stream
from device_memory import DeviceMemory
from torch import Tensor, nn
from torch.utils._python_dispatch import return_and_correct_aliasing

Kernel = Callable[..., Any]
"""Computes an operator from tensors on the host: ``kernel(original, *args, **kwargs)``."""

Watcher = Callable[[str, tuple[Any, ...], Mapping[str, Any]], None]
"""Receives the operator, such as ``aten::mm``, and its arguments on the device, before it runs."""

_HOST = torch.device("cpu")

_OF_KERNELS = frozenset({"aten", "npu"})
"""Namespaces whose operators are kernels of the device."""

_OF_DEVICE = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)

_NOT_OF_HOST = 1 << 62
"""A bit that no address of the host has."""


PLAIN, BLOCKS = 2, 29
"""Numbers of the formats ND and FRACTAL_NZ."""


class SimulatedTensor(Tensor):
    """A tensor on the device; ``held`` has its elements, on the host.

    In memory they are in the order of a format of Ascend, by default plain. All kernels know it; a view in another
    dtype is of the memory.
    """

    held: Tensor
    owner: SimulatedDevice
    format: int = PLAIN

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device, owner: SimulatedDevice) -> Any:
        """Wrap a tensor of the host."""
        made: SimulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            layout=held.layout, device=device,
        )  # fmt: skip
        # Negation and conjugation that PyTorch puts off belong to the tensor on the device, as all operators see it.
        if held.is_neg():
            torch._C._set_neg(held, False)
            torch._C._set_neg(made, True)
        if held.is_conj():
            torch._C._set_conj(held, False)
            torch._C._set_conj(made, True)
        made.held, made.owner = held, owner
        owner.memory.hold(made, held)
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        """Describe it without its elements."""
        del tensor_contents
        return f"SimulatedTensor({list(self.shape)}, {self.dtype}, {self.device})"

    def tolist(self) -> Any:
        """Return the elements; PyTorch refuses this for subclasses, and not for devices."""
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        """Return an address that the host cannot read."""
        return self.held.data_ptr() | _NOT_OF_HOST

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Save the memory, as ``torch.save`` does for a device that has it for itself."""
        values = self.detach().cpu()
        return (in_blocks(values) if self.format == BLOCKS else values).__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator on the device of its arguments."""
        if any(issubclass(kind, Tensor) and not issubclass(kind, SimulatedTensor | nn.Parameter) for kind in types):
            return NotImplemented  # for wrappers, such as results of communication that no one has waited for
        if func.namespace not in _OF_KERNELS:  # made of PyTorch's operators, as communication is
            return func.redispatch(_OF_DEVICE, *args, **(kwargs or {}))
        owner = next(item.owner for item in _items((args, kwargs)) if isinstance(item, SimulatedTensor))
        return owner.run(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]


class SimulatedDevice:
    """The device, of which there may be several of one kind.

    Attributes:
        kind: Its name in PyTorch, such as ``npu``.
        count: How many there are.
        watchers: Told of every operator.
        clock: What happens when, and when the host waits.
        memory: How much is in use.
        lacks: Dtypes that it cannot compute in.
    """

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count = kind, count
        self.watchers: list[Watcher] = []
        self.clock = Clock()
        self.memory = DeviceMemory(self.clock.forget)
        self.lacks: set[torch.dtype] = set()
        self._wrong: dict[tuple[str, int | None], Kernel] = {}
        self.libraries: list[torch.library.Library] = []
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
            if func is torch.ops.aten.view.dtype and args[0].format == BLOCKS:
                held_args = in_blocks(held_args[0]), *held_args[1:]
            result = run(*held_args, **held_kwargs)
        if _needs_elements(func, args):
            self.clock.wait(name)
        if not func.is_view:
            self.clock.enqueue(name, _ours((args, kwargs)), _written_by(func, args, kwargs))
        if _goes_to_host(name, args, kwargs):
            return self._arrive(name, args, kwargs, result)
        if _comes_from_host(name, args) and not (
            _is_enqueued(name, args, kwargs) and self.memory.is_pinned(_source(name, args))
        ):
            self.clock.wait(name)
        self._refuse_dtypes(name, result)
        wrapped = _mapped(Tensor, lambda tensor: SimulatedTensor(tensor, device, self), result)
        for tensor in _ours(wrapped):
            tensor.format = _format_after(func, args)
        if not func.is_view:
            self.clock.write(_ours(wrapped))
        return return_and_correct_aliasing(func, args, dict(kwargs), wrapped)

    def upload(self, source: Tensor, target: SimulatedTensor) -> None:
        """Copy from the host where PyTorch goes around subclasses."""
        self.clock.wait("aten::_copy_from")
        target.held.copy_(source)

    def _arrive(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Return a copy on the host: at once, or on its way."""
        target = args[0] if name == "aten::copy_" else result
        # A copy into new memory is into pinned memory, if the host is not to wait.
        if _is_enqueued(name, args, kwargs) and (name != "aten::copy_" or self.memory.is_pinned(target)):
            self.clock.send(target)
        else:
            self.clock.wait(name)
        return target

    def _refuse_dtypes(self, name: str, result: Any) -> None:
        for tensor in _items(result):
            if isinstance(tensor, Tensor) and tensor.dtype in self.lacks:
                raise RuntimeError(f"{name}: {self.kind} has no {tensor.dtype}")

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
        ours = (item for item in _items((args, kwargs)) if isinstance(item, SimulatedTensor))
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
            for tensor in _items((args, kwargs))
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


def in_blocks(values: Tensor) -> Tensor:
    """Return a matrix as its memory in FRACTAL_NZ looks to who takes that for rows: 16 columns after each other."""
    rows, columns = values.shape
    return values.reshape(rows, columns // 16, 16).transpose(0, 1).reshape(rows, columns)


def _format_after(func: Any, args: tuple[Any, ...]) -> int:
    """Return the format of an operator's results."""
    if func._schema.name == "npu::npu_format_cast":
        return args[1]
    keeps = func.is_view or func._schema.name == "aten::clone"
    return getattr(args[0], "format", PLAIN) if keeps else PLAIN


def _goes_to_host(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    if name == "aten::copy_":
        return not isinstance(args[0], SimulatedTensor)
    target = kwargs.get("device")
    return target is not None and torch.device(target).type == "cpu"


def _comes_from_host(name: str, args: tuple[Any, ...]) -> bool:
    return name in _COPIES and not isinstance(_source(name, args), SimulatedTensor)


def _source(name: str, args: tuple[Any, ...]) -> Any:
    return args[1] if name == "aten::copy_" else args[0]


def _is_enqueued(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return bool(args[2] if name == "aten::copy_" and len(args) > 2 else kwargs.get("non_blocking"))


def _needs_elements(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether the host needs elements, as numbers or for the shape of the result."""
    if func._schema.name in ("aten::index", "aten::index_put", "aten::index_put_"):
        return any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def _items(values: Any) -> Iterator[Any]:
    """Yield what is in containers; in those of operators this is faster than PyTorch's trees."""
    if isinstance(values, tuple | list):
        for value in values:
            yield from _items(value)
    elif isinstance(values, Mapping):
        yield from _items(tuple(values.values()))
    else:
        yield values


def _mapped(kind: type[Any], change: Callable[[Any], Any], values: Any) -> Any:
    """Return containers in which every item of a kind is changed."""
    if isinstance(values, kind):
        return change(values)
    if isinstance(values, tuple | list):
        return type(values)([_mapped(kind, change, value) for value in values])
    if isinstance(values, Mapping):
        return {key: _mapped(kind, change, value) for key, value in values.items()}
    return values


def _ours(values: Any) -> Iterator[SimulatedTensor]:
    return (item for item in _items(values) if isinstance(item, SimulatedTensor))


def _written_by(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[SimulatedTensor]:
    """Yield the arguments that an operator writes to."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _ours(args[place] if place < len(args) else kwargs.get(argument.name))


def _held(values: Any) -> Any:
    return _mapped(SimulatedTensor, _held_by, values)


def _held_by(tensor: SimulatedTensor) -> Tensor:
    held = tensor.held.conj() if tensor.is_conj() else tensor.held
    return torch._neg_view(held) if tensor.is_neg() else held


def _known(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if value is not None and key != "pin_memory"}


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy between host and device where PyTorch goes around subclasses, as in ``torch.tensor``."""
    if isinstance(target, SimulatedTensor) and not isinstance(source, SimulatedTensor):
        target.owner.upload(source, target)
        return target
    return target.copy_(source, non_blocking=non_blocking)


class _DeviceModule:
    """What is ``torch.npu`` for a device of the kind npu: the functions that programs and debuggers call."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device

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
        self._device.clock.synchronize()

    def Stream(self, device: Any = None, priority: int = 0) -> Stream:  # noqa: N802  # PyTorch's name
        del device, priority
        return self._device.clock.new_stream()

    def Event(self, **options: Any) -> Event:  # noqa: N802  # PyTorch's name
        del options
        return Event(self._device.clock)

    def stream(self, stream: Stream) -> AbstractContextManager[None]:
        return self._device.clock.on(stream)

    def current_stream(self, device: Any = None) -> Stream:
        del device
        return self._device.clock.current_stream()

    def default_stream(self, device: Any = None) -> Stream:
        del device
        return self._device.clock.default_stream

    def is_current_stream_capturing(self) -> bool:
        return self._device.clock.captured is not None

    def max_memory_allocated(self, device: Any = None) -> int:
        del device
        return self._device.memory.peak

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
    device.libraries = register_autocast(kind)
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
