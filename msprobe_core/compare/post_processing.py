"""Multiply stored tensors by matrices before comparison, for example for models with rotated activations.

A YAML file lists the matrices, and for each the tensors by their file names in the records::

    mode: right_matmul                    # or left_matmul, or left_right_matmul
    target_tensor_map:
      rotation.npy: [Functional.linear.0.forward.output.0.pt]
    golden_tensor_map: {}

With ``left_right_matmul`` there are four maps: ``left_target_tensor_map``, ``right_target_tensor_map``, and the same
for golden.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from msprobe_core.config.text import read_text
from msprobe_core.errors import ConfigError, DumpError, UnknownFieldError, UnreadableConfigError
from msprobe_core.execute.kept import state_of
from msprobe_core.protocols.storage import TensorSource
from msprobe_core.store.tensors import open_tensor
from msprobe_core.untrusted.malformed import MalformedError

Array: TypeAlias = NDArray[Any]

_MAX_FILE_BYTES = 10 << 20
_MAX_WHOLE_BYTES = 1 << 30
"""Largest matrix, in bytes of float64, and largest tensor that is multiplied from the left, which needs it whole."""

_CHUNK = 1 << 18


class _Mode(str, Enum):
    RIGHT = "right_matmul"
    LEFT = "left_matmul"
    BOTH = "left_right_matmul"


@dataclass(frozen=True, slots=True)
class Factors:
    """Files of the matrices by which one tensor is multiplied; ``None`` for a side without one."""

    left: Path | None = None
    right: Path | None = None

    def apply(self, name: str, source: TensorSource) -> TensorSource:
        """Return ``left @ tensor @ right``; for more than two dimensions, for each matrix in the last two.

        A vector is a row for ``right``, and a column for ``left``.

        Raises:
            DumpError: the shapes do not match, or a matrix cannot be read.
        """
        return Product(name, source, self)


@dataclass(frozen=True, slots=True)
class PostProcessing:
    """Factors of tensors before comparison, by file name; can be pickled for another process."""

    target: Mapping[str, Factors] = field(default_factory=dict[str, Factors])
    golden: Mapping[str, Factors] = field(default_factory=dict[str, Factors])


def load_post_processing(path: Path) -> PostProcessing:
    """Load a YAML file; matrices are searched in its directory, then in the working directory.

    Raises:
        ConfigError: it cannot be read, has unknown or missing fields, or an invalid matrix.
    """
    fields = _read_fields(path)
    mode = _mode_of(fields, path)
    names = _maps_of(mode)
    unknown = sorted(str(name) for name in fields if name not in {"mode", *names})
    if unknown:
        raise UnknownFieldError(
            f"{path}: the field {unknown[0]!r} is unknown with mode {mode.value}; known: {', '.join(names)}"
        )
    found: dict[str, dict[str, Factors]] = {"target": {}, "golden": {}}
    for name, (run, side) in names.items():
        for file_name, matrix in _read_map(fields.get(name), path, name):
            known = found[run].get(file_name, Factors())
            if getattr(known, side) is not None:
                raise ConfigError(f"{path}: '{name}' lists {file_name!r} twice; a tensor is multiplied by one matrix")
            found[run][file_name] = Factors(**{"left": known.left, "right": known.right, side: matrix})
    if not any(found.values()):
        raise ConfigError(f"{path}: names no tensor; list them under {' or '.join(names)}")
    return PostProcessing(found["target"], found["golden"])


def _maps_of(mode: _Mode) -> dict[str, tuple[str, str]]:
    """Return run and side of the product for each field with a map."""
    if mode is _Mode.BOTH:
        return {f"{side}_{run}_tensor_map": (run, side) for run in _RUNS for side in ("left", "right")}
    side = "left" if mode is _Mode.LEFT else "right"
    return {f"{run}_tensor_map": (run, side) for run in _RUNS}


_RUNS = ("target", "golden")


def _read_fields(path: Path) -> dict[object, object]:
    from msprobe_core.untrusted.yaml_text import load_yaml  # slow to import, and rarely needed

    advice = "give a YAML file with 'mode' and maps"
    text = read_text(path, kind="a list of matrices", advice=advice, max_bytes=_MAX_FILE_BYTES)
    try:
        content = load_yaml(text)
    except MalformedError as error:
        raise UnreadableConfigError(f"{path}: cannot be read ({error}); {advice}") from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: holds {type(content).__name__}, but must hold the fields 'mode' and maps of tensors"
        )
    return cast("dict[object, object]", content)


def _mode_of(fields: Mapping[object, object], path: Path) -> _Mode:
    mode = fields.get("mode")
    try:
        return _Mode(mode)
    except ValueError as error:
        known = ", ".join(each.value for each in _Mode)
        raise ConfigError(f"{path}: 'mode' is {mode!r}, but must be one of {known}") from error


def _read_map(value: object, path: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the file name of each tensor with its matrix."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: '{name}' is {value!r:.80}, but must map files of matrices to lists of tensors")
    for matrix, tensors in cast("dict[object, object]", value).items():
        where = f"{path}: '{name}'"
        file = _checked_matrix(matrix, path.parent, where)
        listed = cast("list[object]", tensors) if isinstance(tensors, list) else [tensors]
        for tensor in listed:
            if not isinstance(tensor, str):
                raise ConfigError(f"{where} lists {tensor!r:.80} under {matrix}, which is no file name of a tensor")
            yield tensor, file


def _checked_matrix(matrix: object, directory: Path, where: str) -> Path:
    if not isinstance(matrix, str) or not matrix.endswith((".npy", ".pt")):
        raise ConfigError(f"{where} names {matrix!r:.80}, which is no .npy or .pt file with a matrix")
    file = directory / matrix
    file = file if file.exists() else Path(matrix)
    try:
        found = open_tensor(file.absolute())
    except DumpError as error:
        raise ConfigError(f"{where}: {error}") from error
    if len(found.shape) != 2 or found.dtype == "text" or "complex" in found.dtype:
        raise ConfigError(
            f"{where}: {file} holds {found.dtype} of the shape {found.shape}, not a matrix of real numbers"
        )
    if found.numel * 8 > _MAX_WHOLE_BYTES:
        raise ConfigError(f"{where}: {file} has the shape {found.shape}, which is more than 1 GiB in float64")
    return file.absolute()


class Product:
    """A tensor multiplied by matrices, one block of rows after the other; see `msprobe_core.plugin.TensorSource`.

    Computed in float64, and rounded to float32 if the stored dtype is no wider. A product from the right keeps only
    some rows in memory besides the matrix; one from the left needs the whole tensor.
    """

    def __init__(self, name: str, source: TensorSource, factors: Factors) -> None:
        """Multiply the tensor with the name ``name``.

        Raises:
            DumpError: the shapes do not match, or a matrix cannot be read.
        """
        self._name, self._source = name, source
        if source.dtype == "text" or "complex" in source.dtype or not source.shape:
            raise DumpError(f"{name}: is {source.dtype} of the shape {source.shape}, which takes no part in a product")
        if len(source.shape) == 1 and factors.left is not None and factors.right is not None:
            raise DumpError(f"{name}: has one dimension, and cannot be multiplied from both sides")
        self._left, self._right = (
            None if file is None else _read_matrix(file, state_of(file)) for file in (factors.left, factors.right)
        )
        # Matrices are in the last two dimensions; a vector is a row, or a column for the left factor.
        self._is_column = len(source.shape) == 1 and self._left is not None
        *outer, rows, columns = (
            (*source.shape, 1) if self._is_column else (1, *source.shape)[-max(2, len(source.shape)) :]
        )
        self._rows, self._columns = rows, columns
        self._check(factors, rows, columns)
        num_rows = rows if self._left is None else self._left.shape[0]
        num_columns = columns if self._right is None else self._right.shape[1]
        if len(source.shape) == 1:
            self.shape: tuple[int, ...] = (num_rows if self._is_column else num_columns,)
        else:
            self.shape = (*outer, num_rows, num_columns)
        is_narrow = source.dtype.startswith(("float16", "bfloat16", "float32", "float8"))
        self.dtype = "float32" if is_narrow else "float64"

    def _check(self, factors: Factors, rows: int, columns: int) -> None:
        for matrix, file, size, axis, side in (
            (self._left, factors.left, rows, 1, "left"),
            (self._right, factors.right, columns, 0, "right"),
        ):
            if matrix is not None and matrix.shape[axis] != size:
                raise DumpError(
                    f"{self._name}: has the shape {self._source.shape}, and cannot be multiplied from the {side} by "
                    f"the matrix of the shape {matrix.shape} in {file}"
                )
        if self._left is not None and math.prod(self._source.shape) * 8 > _MAX_WHOLE_BYTES:
            raise DumpError(f"{self._name}: has the shape {self._source.shape}, too large to multiply from the left")

    def chunks(self, num_elements: int) -> Iterator[Array]:
        """Yield the elements in C order as vectors of at most ``num_elements`` elements.

        Raises:
            DumpError: the tensor cannot be read.
        """
        for block in self._from_the_right() if self._left is None else self._from_the_left(self._left):
            flat: Array = np.ravel(block).astype(self.dtype)
            for begin in range(0, flat.size, num_elements):
                yield flat[begin : begin + num_elements]

    def _from_the_right(self) -> Iterator[Array]:
        assert self._right is not None
        rows_at_a_time = max(1, _CHUNK // max(1, *self._right.shape))
        for block in _blocks(self._source, rows_at_a_time * self._columns):
            yield np.matmul(np.reshape(block, (-1, self._columns)), self._right)

    def _from_the_left(self, left: Array) -> Iterator[Array]:
        rows_at_a_time = max(1, _CHUNK // max(1, self._columns))
        for block in _blocks(self._source, self._rows * self._columns):
            whole = np.reshape(block, (self._rows, self._columns))
            if self._right is not None:
                whole = np.matmul(whole, self._right)
            for begin in range(0, left.shape[0], rows_at_a_time):
                yield np.matmul(left[begin : begin + rows_at_a_time], whole)


def _blocks(source: TensorSource, size: int) -> Iterator[Array]:
    """Yield the elements in float64, in vectors of ``size`` except for the last, whatever the source's chunks."""
    block, begin = np.empty(size), 0
    for values in source.chunks(_CHUNK):
        rest = values
        while rest.size:
            taken = rest[: size - begin]
            block[begin : begin + taken.size] = taken
            begin += taken.size
            rest = rest[taken.size :]
            if begin == size:
                yield block
                block, begin = np.empty(size), 0
    if begin:
        yield block[:begin]


@lru_cache(maxsize=4)
def _read_matrix(path: Path, _state: object) -> Array:
    """Return a matrix in float64; cached for as long as its file is the same, because many tensors share one."""
    return open_tensor(path).read().astype(np.float64)
