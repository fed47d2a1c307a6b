"""A training framework in two hundred lines of NumPy, and its plugin: what the core is tested with.

It is small but whole: layers with forward and backward, in-place updates, keyword arguments, tuples as results. The
plugin intercepts it as plugins intercept real frameworks, so the core's tests need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_core.interception import HostReducer, HostValues, RandomStates, module_stem, relative_changes
from msprobe_core.plugin import (
    Argument,
    AttachOptions,
    CallWatcher,
    NamedModel,
    Perturbation,
    TensorContent,
    TensorMeta,
)
from msprobe_core.store import create_file


class Array:
    """A tensor: a NumPy array, and whether gradients flow to it."""

    def __init__(self, values: np.ndarray, requires_grad: bool = False) -> None:
        self.values = values
        self.requires_grad = requires_grad
        self.version = 0
        self.gradient_hooks: list[Any] = []

    def __repr__(self) -> str:
        return f"Array({self.values.tolist()})"  # names tests, which must be the same in every process

    def write(self, values: Any) -> None:
        """Overwrite in place."""
        self.values[...] = values
        self.version += 1


class Layer:
    """A module. ``parameters`` and ``gradients`` are its own; children are attributes."""

    def __init__(self) -> None:
        self.parameters: dict[str, Array] = {}
        self.gradients: dict[str, Array] = {}

    def children(self) -> dict[str, Layer]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Layer)}

    def named_layers(self, path: str = "") -> list[tuple[str, Layer]]:
        found = [(path, self)]
        for name, child in self.children().items():
            found += child.named_layers(f"{path}.{name}" if path else name)
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def backward(self, gradient: Array) -> Array:
        raise NotImplementedError


def multiply(a: Array, b: Array) -> Array:
    """An API: matrix product."""
    return Array(a.values @ b.values, requires_grad=True)


class Dense(Layer):
    """``x @ weight * scale``."""

    def __init__(self, rng: np.random.Generator, size_in: int, size_out: int) -> None:
        super().__init__()
        self.parameters["weight"] = Array(rng.normal(size=(size_in, size_out)), requires_grad=True)

    def forward(self, x: Array, *, scale: float = 1.0) -> Array:
        self._x, self._scale = x, scale
        return Array(API["multiply"](x, self.parameters["weight"]).values * scale, requires_grad=True)

    def backward(self, gradient: Array) -> Array:
        scaled = gradient.values * self._scale
        self.gradients["weight"] = Array(self._x.values.T @ scaled)
        return Array(scaled @ self.parameters["weight"].values.T)


class Relu(Layer):
    """``max(x, 0)``."""

    def forward(self, x: Array) -> Array:
        self._positive = x.values > 0
        return Array(np.where(self._positive, x.values, 0.0), requires_grad=True)

    def backward(self, gradient: Array) -> Array:
        return Array(gradient.values * self._positive)


class Network(Layer):
    """Dense, Relu, Dense; the second Dense gets a keyword argument."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.first = Dense(rng, 4, 5)
        self.middle = Relu()
        self.last = Dense(rng, 5, 3)
        self.fails = False

    def forward(self, x: Array) -> Array:
        hidden = self.middle.forward(self.first.forward(x))
        if self.fails:
            raise ArithmeticError("planted")
        return self.last.forward(hidden, scale=0.5)

    def backward(self, gradient: Array) -> Array:
        return self.first.backward(self.middle.backward(self.last.backward(gradient)))


API: dict[str, Any] = {"multiply": multiply}
"""Where layers look functions up, so that a plugin can wrap them."""


def train_step(model: Network, seed: int = 1, learning_rate: float = 0.1) -> float:
    """Forward, backward and an update in place; returns the loss, half the sum of squares."""
    x = Array(np.random.default_rng(seed).normal(size=(6, 4)))
    y = model.forward(x)
    model.backward(Array(y.values))
    for _, layer in model.named_layers():
        for name, parameter in layer.parameters.items():
            parameter.write(parameter.values - learning_rate * layer.gradients[name].values)
    return float((y.values**2).sum() / 2)


class ArrayReducer(HostReducer):
    """Reduces arrays as the core reduces all values on the host."""

    def __init__(self) -> None:
        super().__init__(lambda tensor: HostValues(tensor.values))


class ArrayFramework:
    """The plugin."""

    name = "numpy"
    tensor_suffix = ".npy"
    hidden_frames = (__file__,)

    def __init__(self, rank: int | None = None) -> None:
        self._rank = rank

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, Array)

    def is_model(self, value: object) -> bool:
        return isinstance(value, Layer)

    def rank(self) -> int | None:
        return self._rank

    def describe(self, tensor: Array) -> TensorMeta:
        return TensorMeta("numpy.Array", str(tensor.values.dtype), tensor.values.shape, tensor.requires_grad)

    def takes_gradient(self, tensor: Array) -> bool:
        return tensor.requires_grad

    def describe_argument(self, value: Any) -> Argument | None:
        return None

    def reducer(self) -> ArrayReducer:
        return ArrayReducer()

    def attach(self, models: Sequence[NamedModel], options: AttachOptions, recorder: Any) -> ArrayAttachment:
        return ArrayAttachment(models, options, recorder)

    @contextmanager
    def quiet(self, on_failure: Callable[[str, Exception], None]) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  # as promised
            on_failure("a call", error)

    def watch_gradient(self, tensor: Array, on_gradient: Callable[[Any], None]) -> Callable[[], None] | None:
        if not tensor.requires_grad:
            return None
        tensor.gradient_hooks.append(on_gradient)
        return lambda: tensor.gradient_hooks.remove(on_gradient)

    def narrow(self, tensor: Array, ranges: Mapping[int, tuple[int, int]]) -> Array:
        index = tuple(slice(*ranges.get(dim, (None, None))) for dim in range(tensor.values.ndim))
        return Array(tensor.values[index], tensor.requires_grad)

    def watch(self, models: Sequence[NamedModel], watcher: CallWatcher) -> ArrayWatch:
        return ArrayWatch(models, watcher)

    def load(self, path: Path, like: Array) -> Array:
        return Array(np.load(path, allow_pickle=False), like.requires_grad)

    def rebuild(self, content: TensorContent, like: Array) -> Array:
        values = np.asarray(content.data).view(content.dtype).reshape(content.shape)
        return Array(values, like.requires_grad)

    def snapshot(self, tensor: Array) -> np.ndarray:
        return tensor.values.copy()

    def content(self, snapshot: np.ndarray) -> TensorContent:
        data = np.ascontiguousarray(snapshot).reshape(-1).view(np.uint8)
        return TensorContent(str(snapshot.dtype), snapshot.shape, memoryview(data))

    def save(self, snapshot: np.ndarray, path: Path) -> None:
        with create_file(path) as file:
            np.save(file, snapshot)


class PerturbedFramework(ArrayFramework):
    """The plugin, offering perturbation too."""

    def perturb(self, models: Sequence[NamedModel], perturbation: Perturbation, seed: int) -> ArrayNoise:
        return ArrayNoise(models, perturbation, seed)

    def training_state(self, models: Sequence[Layer], others: Sequence[Any]) -> ArrayState:
        return ArrayState(models)


class ArrayNoise:
    """Changes what every layer gives, forward."""

    def __init__(self, models: Sequence[NamedModel], perturbation: Perturbation, seed: int) -> None:
        self._wrapped: list[tuple[Layer, dict[str, Any]]] = []
        random = np.random.default_rng(seed)
        coarser = None if perturbation.dtype is None else perturbation.dtype.roundoff
        for model in models:
            for _, layer in model.model.named_layers(model.name):
                self._wrapped.append((layer, _replaced(layer)))
                layer.forward = self._noisy(layer.forward, random, coarser)  # type: ignore[method-assign]

    def _noisy(self, forward: Any, random: np.random.Generator, coarser: float | None) -> Any:
        def noisy(*args: Any, **kwargs: Any) -> Any:
            values = forward(*args, **kwargs).values
            changes = relative_changes(random.random(values.shape), 2.0**-53, coarser)
            return Array(values + values * changes, requires_grad=True)

        return noisy

    def detach(self) -> None:
        for layer, earlier in reversed(self._wrapped):
            _put_back(layer, earlier)

    def release(self) -> None:
        return

    def settle(self) -> None:
        return


class ArrayState:
    """Copies parameters and random states."""

    def __init__(self, models: Sequence[Layer]) -> None:
        parameters = [p for model in models for _, layer in model.named_layers() for p in layer.parameters.values()]
        self._kept = [(parameter, parameter.values.copy()) for parameter in parameters]
        self._random = RandomStates()

    def restore(self) -> None:
        for parameter, values in self._kept:
            parameter.write(values)
        self._random.restore()

    def complaint(self) -> str | None:
        return None


class ArrayAttachment:
    """Wraps ``forward`` and ``backward`` of every layer, and the table of functions."""

    def __init__(self, models: Sequence[NamedModel], options: AttachOptions, recorder: Any) -> None:
        self._recorder = recorder
        self._wrapped: list[tuple[Layer, dict[str, Any]]] = []
        self._functions = dict(API)
        self._pending: list[Any] = []
        self._is_inside = False
        if options.level.has_modules:
            for model in models:
                for path, layer in model.model.named_layers(model.name):
                    self._wrap(path, layer)
        if options.level.has_apis:
            API["multiply"] = self._recorded(multiply)

    def detach(self) -> None:
        for layer, earlier in reversed(self._wrapped):
            _put_back(layer, earlier)
        API.update(self._functions)

    def settle(self) -> None:
        return

    def release(self) -> None:
        return

    def call(self, prefix: str, name: str, function: Any, args: Any, kwargs: Any) -> Any:
        if self._is_inside:
            return function(*args, **kwargs)
        call = self._recorder.open_api(prefix, name)
        self._recorder.record_inputs(call, args, kwargs)
        self._is_inside = True
        try:
            result = function(*args, **kwargs)
        except BaseException:
            self._recorder.close(call)
            raise
        finally:
            self._is_inside = False
        self._recorder.record_outputs(call, result)
        self._recorder.close(call)
        return result

    def is_compiling(self) -> bool:
        return False

    def _recorded(self, function: Any) -> Any:
        return lambda *args, **kwargs: self.call("Functional", function.__name__, function, args, kwargs)

    def _wrap(self, path: str, layer: Layer) -> None:
        recorder, backward = self._recorder, layer.backward
        watched = vars(layer).get("forward")  # what is attached later runs inside
        forward = watched.inner if isinstance(watched, Watched) else layer.forward
        type_name = type(layer).__name__
        calls: list[tuple[Any, list[Any], list[Any]]] = []

        def wrapped_forward(*args: Any, **kwargs: Mapping[str, Any]) -> Any:
            call = recorder.open_module("Module", path, type_name)
            recorder.record_inputs(call, args, kwargs)
            recorder.record_parameters(call, layer.parameters)
            slots_in = recorder.input_gradients(call, args, kwargs) if call.wants_gradients else []
            try:
                result = forward(*args, **kwargs)
            except BaseException:
                recorder.close(call)
                raise
            recorder.record_outputs(call, result)
            slots_out = recorder.output_gradients(call, result) if call.wants_gradients else []
            recorder.expect_gradients(call, len(slots_out), len(slots_in))
            recorder.close(call)
            calls.append((call, slots_in, slots_out))
            return result

        def wrapped_backward(gradient: Array) -> Array:
            call, slots_in, slots_out = calls.pop()
            for slot, _ in slots_out:
                recorder.record_gradient(call, slot, gradient)
            result = backward(gradient)
            for slot, _ in slots_in:
                recorder.record_gradient(call, slot, result)
            stem = f"Module.{path}.{type_name}" if path else f"Module.{type_name}"
            for name, parameter_gradient in layer.gradients.items():
                recorder.record_parameter_gradient(stem, name, parameter_gradient)
            return result

        self._wrapped.append((layer, _replaced(layer)))
        if isinstance(watched, Watched):
            wrapped_forward = Watched(watched.stem, watched.watcher, wrapped_forward)
        layer.forward = wrapped_forward  # type: ignore[method-assign]
        layer.backward = wrapped_backward  # type: ignore[method-assign]


def _replaced(layer: Layer) -> dict[str, Any]:
    return {name: vars(layer)[name] for name in ("forward", "backward") if name in vars(layer)}


def _put_back(layer: Layer, earlier: dict[str, Any]) -> None:
    for name in ("forward", "backward"):
        vars(layer).pop(name, None)
    vars(layer).update(earlier)


@dataclass
class Watched:
    """A ``forward`` with a watcher around it."""

    stem: str
    watcher: CallWatcher
    inner: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self.watcher.before(self.stem, args, kwargs) or (args, kwargs)
        try:
            return self.inner(*args, **kwargs)
        finally:
            self.watcher.after(self.stem)


class ArrayWatch:
    """Wraps ``forward`` of the layers that a watcher wants."""

    def __init__(self, models: Sequence[NamedModel], watcher: CallWatcher) -> None:
        self._wrapped: list[tuple[Layer, dict[str, Any]]] = []
        for model in models:
            for path, layer in model.model.named_layers(model.name):
                if watcher.wants(path, type(layer).__name__):
                    self._wrapped.append((layer, _replaced(layer)))
                    stem = module_stem("Module", path, type(layer).__name__)
                    layer.forward = Watched(stem, watcher, layer.forward)  # type: ignore[method-assign]

    def detach(self) -> None:
        for layer, earlier in reversed(self._wrapped):
            _put_back(layer, earlier)

    def release(self) -> None:
        return

    def settle(self) -> None:
        return
