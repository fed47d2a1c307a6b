"""``save`` and ``save_grad`` as compiled into graphs; see `msprobe.mindspore.graph.compiled_functions`.

On the CPU values are passed to Python, which writes them. On Ascend MindSpore's operator ``TensorDump`` writes them; it
adds step and rank to the path, and appends dtype and number.
"""

# ruff: noqa: ARG002  # the compiler names what a construct and a bprop take

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops.primitive import _run_op
from numpy.typing import NDArray

from msprobe.mindspore._device import is_host
from msprobe.mindspore.graph import compiled_functions
from msprobe.mindspore.graph.compiled_functions import Abstract, Inferred, constant, constant_tensor
from msprobe.mindspore.graph.layouts import Place, Tree, TreeReader
from msprobe.mindspore.graph.leaf import operator
from msprobe_core.store import tensor_file_name

_Array = NDArray[Any]


class Arrivals:
    """Numbers the calls of ``save`` in graphs, and passes their values to a consumer."""

    def __init__(self) -> None:
        self.take: Callable[[Path, str, str, _Array], None] | None = None
        self._places: list[tuple[Path, Mapping[int, tuple[str, Place]]]] = []
        self._numbers: dict[tuple[str, str, str], int] = {}

    def add(self, save_dir: str, name: str, tree: Tree) -> int:
        """Return the number of a call of ``save``; idempotent, since the compiler asks many times for each call."""
        key = save_dir, name, repr(tree)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._places)
            self._places.append((Path(save_dir).expanduser().absolute(), dict(_places_in(tree, name))))
        return number

    def path_of(self, number: int, position: int) -> str:
        """Return the path where ``TensorDump`` writes a value."""
        directory, places = self._places[number]
        return str(directory / "{step}" / "{rank}" / tensor_file_name(places[position][0], ""))

    def is_on_host(self) -> bool:
        """Whether the graph being compiled runs on the CPU."""
        return is_host()

    def arrive(self, number: _Array, position: _Array, values: _Array) -> int:
        """Pass a value to the consumer; return 0, since an operator must have a result."""
        directory, places = self._places[int(number[0])]
        name, place = places[int(position[0])]
        if self.take is not None:
            # 0-d tensors cannot be passed, so the graph reshaped them.
            self.take(directory, name, place.meta.dtype.lower(), values if place.meta.shape else values.reshape(()))
        return 0


def _places_in(tree: Tree, path: str) -> list[tuple[int, tuple[str, Place]]]:
    if isinstance(tree, Place):
        return [(tree.number, (path, tree))]
    items: list[tuple[Any, Any]] = []
    if isinstance(tree, Mapping):
        items = list(cast("Mapping[Any, Any]", tree).items())
    elif isinstance(tree, list | tuple):
        items = list(enumerate(cast("Sequence[Any]", tree)))
    return [found for key, item in items for found in _places_in(item, f"{path}.{key}")]


@functools.cache
def arrivals() -> Arrivals:
    """Return the instance of this process: graphs refer to it permanently."""
    return Arrivals()


class _Number(Inferred):
    """The number of a call of ``save``, as a tensor."""

    def __infer__(self, *args: Abstract) -> Abstract:
        return constant_tensor(_number_of(*args))


class _Path(Inferred):
    """The path where a value of a call of ``save`` is written."""

    def __infer__(self, *args: Abstract) -> Abstract:
        return constant(arrivals().path_of(_number_of(*args[:3]), args[3]["value"]))


class _IsOnHost(Inferred):
    """Whether the graph runs on the CPU; accepts any input, because an operator must have one."""

    def __infer__(self, *args: Abstract) -> Abstract:
        del args
        return constant(int(arrivals().is_on_host()))


def _number_of(save_dir: Abstract, name: Abstract, data: Abstract) -> int:
    return arrivals().add(save_dir["value"], name["value"], TreeReader().read(data))


_number = _Number()
_path = _Path()
_is_on_host = _IsOnHost()
_arrive = operator(arrivals().arrive, 3)
_dump = ops.TensorDump()

_NEXT_STEP = "<tensordump-update-step>"
"""Used instead of a path, it makes MindSpore increment the step; calls and graphs have separate counters."""


def advance() -> None:
    """Increment ``{step}`` in the paths of ``TensorDump``."""
    mark: Any = Tensor([0], ms.int64)
    _dump(_NEXT_STEP, mark)
    _run_op(_dump, _dump.name, (_NEXT_STEP, mark))


def save(save_dir: str, name: str, data: Any) -> None:
    """Save the values in ``data``."""
    values = compiled_functions.flatten_all(data)
    number = _number(save_dir, name, data)
    for i in range(len(values)):
        x = values[i]
        if compiled_functions.may_be_read(x):
            if _is_on_host(name):
                _arrive(number, compiled_functions.number_tensor(i), compiled_functions.plain(ops.stop_gradient(x)))
            else:
                _dump(_path(save_dir, name, data, i), ops.stop_gradient(x))


class _Tap(nn.Cell):
    """Returns its first input, and saves the gradient with respect to it."""

    def construct(self, x: Any, number: Any, position: Any) -> Any:
        return x

    def bprop(self, x: Any, number: Any, position: Any, out: Any, dout: Any) -> Any:
        shown = _arrive(number, position, compiled_functions.plain(dout))
        return ops.depend(dout, shown), ops.zeros_like(number), ops.zeros_like(position)


class _DumpTap(nn.Cell):
    """The same on Ascend."""

    def construct(self, x: Any, path: Any) -> Any:
        return x

    def bprop(self, x: Any, path: Any, out: Any, dout: Any) -> Any:
        return ops.depend(dout, _dump(path, dout)), path


_tap = _Tap()
_dump_tap = _DumpTap()


def save_grad(save_dir: str, name: str, data: Any) -> Any:
    """Save the gradient with respect to the returned value."""
    if compiled_functions.may_have_gradient(data):
        if _is_on_host(name):
            data = _tap(data, _number(save_dir, name + "_grad", data), compiled_functions.number_tensor(0))
        else:
            data = _dump_tap(data, _path(save_dir, name + "_grad", data, 0))
    return data
