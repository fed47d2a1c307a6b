"""`save`, `save_grad` and `step`: write values from the program to files, in dynamic and static graphs."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from mindspore import Tensor, ops

from msprobe.mindspore import _saving_graph
from msprobe.mindspore._framework import MindSporeFramework
from msprobe.mindspore._gradients import builds_graph, takes_gradient, watch_gradient
from msprobe.mindspore._quiet import RecordingGuard, executor
from msprobe.mindspore._reduce import values_of
from msprobe.mindspore._unrecorded_calls import unseen
from msprobe_core.interception import HostValues, named_tensors
from msprobe_core.plugin import MAX_DEPTH, SessionError, reason_of
from msprobe_core.store import make_directory, tensor_file_name, unit_directory

_logger = logging.getLogger(__name__)

_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled_as(compiled: Callable[..., Any]) -> Callable[[_F], _F]:
    """Make the graph compiler read another function instead of the decorated one."""
    # It reads the source of the wrapped function, and resolves names in the module of the wrapper.
    return cast("Callable[[_F], _F]", functools.wraps(compiled, assigned=["__module__"]))


@_compiled_as(_saving_graph.save)
def save(save_dir: str | os.PathLike[str], name: str, data: Any) -> None:
    """Write tensors of the program into ``{save_dir}/step{K}/rank{R}/{name}_{dtype}_{n}.npy``.

    May be called in a Cell or a function that is compiled. ``n`` counts all files of the process; bfloat16 is written
    as float32. A failure to write a file is a warning, not an exception.

    Args:
        save_dir: A directory; created if it is missing.
        name: Name of the value.
        data: A tensor, or a dict, list or tuple of tensors, nested arbitrarily: ``.{key}`` is appended to the name.

    Raises:
        SessionError: an argument has another type.
    """
    directory = _checked(save_dir, name)
    found = False
    with RecordingGuard(_saver().complain):
        for path, tensor in named_tensors(name, data, _is_tensor, MAX_DEPTH):
            found = True
            values = values_of(tensor)
            if values is None:
                _logger.warning("save(%r): a tensor of %s cannot be written as numbers", path, tensor.dtype)
            else:
                _saver().write(directory, path, values)
    if not found:
        _logger.warning("save(%r): got %s, in which there is no tensor", name, type(data).__name__)


@_compiled_as(_saving_graph.save_grad)
def save_grad(save_dir: str | os.PathLike[str], name: str, data: Any) -> Any:
    """Return ``data``, and write the gradient with respect to the returned value in each backward pass.

    The file is ``{save_dir}/step{K}/rank{R}/{name}_grad_{dtype}_{n}.npy``, as for `save`. No value is changed::

        hidden = save_grad("saved", "hidden", hidden)

    Args:
        save_dir: A directory; created if it is missing.
        name: Name of the value.
        data: A tensor. Without a gradient, for example in inference, nothing is written.

    Raises:
        SessionError: an argument has another type.
    """
    directory = _checked(save_dir, name)
    if not isinstance(data, Tensor):
        raise SessionError(f"save_grad({name!r}) got {type(data).__name__}; give a tensor")
    if not (builds_graph() and takes_gradient(data)):
        return data
    # The node of a separate tensor sees the gradient of this call, and is released with the graph.
    with unseen():
        passed: Any = ops.reshape(data, data.shape) if data.is_contiguous() else data.contiguous()

    def on_gradient(gradient: Any) -> None:
        with RecordingGuard(_saver().complain):
            values = values_of(gradient)
            if values is not None:
                _saver().write(directory, f"{name}_grad", values)

    watch_gradient(passed, on_gradient)
    return passed


def step() -> None:
    """End the step: values saved from now on belong to the next one. Waits for graphs that are still running."""
    executor.sync()
    _saver().next_step()
    if not _saving_graph.arrivals().is_on_host():
        with RecordingGuard(_saver().complain):
            _saving_graph.advance()


def _checked(save_dir: Any, name: Any) -> Path:
    if not isinstance(name, str) or not name:
        raise SessionError(f"save() got {name!r} as the name of a value; give a text")
    try:
        return Path(save_dir).expanduser().absolute()
    except TypeError as error:
        raise SessionError(f"save({name!r}) got {type(save_dir).__name__} as the directory; give a path") from error


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


class _Saver:
    """Writes files; holds the step, and everything that compiled graphs refer to."""

    def __init__(self) -> None:
        self._framework = MindSporeFramework()
        self._step = 0
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # graphs run on threads of their own
        self._is_broken = False

    def next_step(self) -> None:
        """Increment the step."""
        self._step += 1

    def write(self, directory: Path, name: str, values: HostValues, dtype: str | None = None) -> None:
        """Write a file.

        Raises:
            StoreError: it cannot be written.
        """
        unit = unit_directory(directory, self._step, self._framework.rank() or 0)
        with self._lock:
            make_directory(unit, below=directory)
            suffix = f"_{dtype or values.dtype}_{next(self._numbers)}.npy"
            values.save(unit / tensor_file_name(name, suffix))

    def complain(self, where: str, error: Exception) -> None:
        """Report a failure, the first time."""
        del where
        if not self._is_broken:
            self._is_broken = True
            _logger.warning("a value could not be saved (%s); further ones are not reported", reason_of(error))


@functools.cache
def _saver() -> _Saver:
    return _Saver()


def _arrived(directory: Path, name: str, dtype: str, values: Any) -> None:
    try:
        _saver().write(directory, name, HostValues(values), dtype)
    except Exception as error:  # noqa: BLE001  # nothing of ours reaches the training
        _saver().complain(name, error)


_saving_graph.arrivals().take = _arrived
