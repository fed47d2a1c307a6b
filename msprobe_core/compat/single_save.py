"""`SingleSave` and `SingleComparator`, which scripts of RL trainings call: values under a key, step by step, compared.

The layout is the published one: ``data/{key}/step{n}/rank{r}/micro_step{m}/{key}[.{place}].npy``, and ``{key}.json``.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from msprobe_core.capture.framework_choice import find_framework
from msprobe_core.errors import CompareError, ConfigError
from msprobe_core.protocols.framework import Framework
from msprobe_core.protocols.presentation import Colours, Column, Table, Width
from msprobe_core.report.files import TableForm, write_table
from msprobe_core.store import DTYPES, encode_json, make_directory, open_tensor, widen
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.reading import check_exists
from msprobe_core.untrusted.paths import shown

_logger = logging.getLogger(__name__)

_DATA = "data"
_KEY = re.compile(r"[^\W.][\w.-]{0,127}")
"""Keys are names of directories and files."""


class SingleSave:
    """Saves values as they are; there is one for a process, as published: the first one's directory counts."""

    _one: ClassVar[SingleSave | None] = None

    _root: Path
    _framework: Framework
    _step: int
    _counts: dict[str, int]

    def __new__(cls, dump_path: str | os.PathLike[str], fmk: str = "pytorch") -> SingleSave:  # noqa: PYI034  # typing.Self is of Python 3.11
        """Return the process's object.

        Args:
            dump_path: Directory of the values.
            fmk: Framework of the tensors, ``pytorch`` or ``mindspore``.

        Raises:
            PluginError: the framework's plugin is missing.
        """
        if cls._one is None:
            one = super().__new__(cls)
            one._root, one._framework = Path(dump_path), find_framework(fmk, None)
            one._step, one._counts = 0, {}
            cls._one = one
        return cls._one

    @classmethod
    def _current(cls) -> SingleSave:
        if cls._one is None:
            raise ConfigError("SingleSave has no directory yet; make one first: SingleSave(dump_path)")
        return cls._one

    @classmethod
    def save(cls, data: Mapping[str, Any]) -> None:
        """Save values of the current step; each key counts its micro-steps.

        Args:
            data: Tensors, arrays and numbers by key, also in tuples, lists and mappings. What is none of these is left
                out with a warning.

        Raises:
            ConfigError: there is no `SingleSave` yet.
            StoreError: a file cannot be written.
        """
        own = cls._current()
        for key, value in _checked(data):
            number = own._counts.get(key, 0)
            own._counts[key] = number + 1
            own._write(key, value, number)

    @classmethod
    def save_ex(cls, data: Mapping[str, Any], micro_batch: int | None = None) -> None:
        """Save values of a micro-step that is given; of the whole step without one. See `save`."""
        own = cls._current()
        for key, value in _checked(data):
            own._write(key, value, micro_batch)

    @classmethod
    def step(cls) -> None:
        """Begin the next step.

        Raises:
            ConfigError: there is no `SingleSave` yet.
        """
        own = cls._current()
        own._step += 1
        own._counts.clear()

    @classmethod
    def save_config(cls, config: Mapping[str, Any]) -> None:
        """Write ``configurations.json``.

        Raises:
            ConfigError: there is no `SingleSave` yet.
            StoreError: the file cannot be written.
        """
        own = cls._current()
        make_directory(own._root)
        with whole_file(own._root / "configurations.json") as file:
            file.write(encode_json(dict(config), indent=2))

    def _write(self, key: str, value: Any, micro_step: int | None) -> None:
        place = self._root / _DATA / key / f"step{self._step}" / f"rank{self._framework.rank() or 0}"
        place = place if micro_step is None else place / f"micro_step{micro_step}"
        make_directory(place, below=self._root)
        described = self._save(value, place, key)
        with whole_file(place / f"{key}.json") as file:
            file.write(encode_json({"data": described}, indent=2))

    def _save(self, value: Any, place: Path, name: str) -> Any:
        """Save a value with everything in it; return its description."""
        if isinstance(value, Mapping):
            parts = cast("Mapping[Any, Any]", value)
            return {
                str(part): self._save(each, place, f"{name}.{part}") for part, each in parts.items() if _is_key(part)
            }
        if isinstance(value, list | tuple):
            return [self._save(each, place, f"{name}.{i}") for i, each in enumerate(cast("list[Any]", value))]
        array = self._array(value)
        if array is None:
            _logger.warning("SingleSave: %s is a %s, which is no tensor; it is left out", name, type(value).__name__)
            return None
        with whole_file(place / f"{name}.npy") as file:
            np.save(file, array)
        return _statistics(array)

    def _array(self, value: Any) -> NDArray[Any] | None:
        if self._framework.is_tensor(value):
            content = self._framework.content(self._framework.snapshot(value))
            if content is None:
                return None
            words = np.frombuffer(content.data, DTYPES[content.dtype])
            return np.reshape(widen(words, content.dtype), content.shape)
        if isinstance(value, np.ndarray | np.generic | bool | int | float):
            array = np.asarray(value)
            return array if array.dtype.kind in "biufc" else None
        return None


def _checked(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if not isinstance(data, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # scripts are not typed
        _logger.warning("SingleSave: a %s is no dict of values by key; it is left out", type(data).__name__)
        return
    for key, value in data.items():
        if _is_key(key):
            yield key, value
        else:
            _logger.warning("SingleSave: %r is no key, which is a word of letters, digits, - and _; left out", key)


def _is_key(key: Any) -> bool:
    return isinstance(key, str | int) and _KEY.fullmatch(str(key)) is not None


def _statistics(array: NDArray[Any]) -> dict[str, Any]:
    values: Any = np.abs(array) if array.dtype.kind == "c" else array.astype(np.float64)
    if not values.size:
        return {"max": None, "min": None, "mean": None, "norm": None, "shape": list(array.shape)}
    norm = float(np.sqrt(np.sum(values * values)))
    return {
        "max": float(values.max()), "min": float(values.min()), "mean": float(values.mean()), "norm": norm,
        "shape": list(array.shape),
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """How two arrays differ.

    Attributes:
        equal: Share of equal elements, where NaN equals NaN.
        first: Index of the first other element, of the flattened arrays; ``None`` if there is none.
        max_abs: Largest absolute difference; infinite where only one side is NaN.
        max_rel: Largest ``|a - b| / max(|a|, |b|)``; infinite in the same case.
        within_thousandth: Share of elements whose relative difference is at most 0.001.
        within_hundredth: The same for 0.01.
    """

    equal: float
    first: int | None
    max_abs: float
    max_rel: float
    within_thousandth: float
    within_hundredth: float


def similarity(target: NDArray[Any], golden: NDArray[Any]) -> Similarity:
    """Compare two arrays of one shape, in float64."""
    a, b = (np.ravel(each).astype(np.complex128 if each.dtype.kind == "c" else np.float64) for each in (target, golden))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if not a.size:
        return Similarity(equal=1.0, first=None, max_abs=0.0, max_rel=0.0, within_thousandth=1.0, within_hundredth=1.0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        gap = np.where(same, 0.0, np.abs(a - b))
        relative = gap / np.maximum(np.abs(a), np.abs(b))
    # What only one side has of NaN and Inf is as wrong as can be.
    gap, relative = (np.where(same, 0.0, np.where(np.isfinite(each), each, math.inf)) for each in (gap, relative))
    other = np.flatnonzero(~same)
    return Similarity(
        equal=float(same.mean()), first=int(other[0]) if other.size else None, max_abs=float(gap.max()),
        max_rel=float(relative.max()), within_thousandth=float((relative <= 1e-3).mean()),
        within_hundredth=float((relative <= 1e-2).mean()),
    )  # fmt: skip


_COLUMNS = (
    "step", "rank", "micro_step", "id", "shape1", "shape2", "相同元素百分比(%)", "首个不匹配元素索引", "最大绝对误差",
    "最大相对误差", "误差在千分之一内元素占比(%)", "误差在百分之一内元素占比(%)",
)  # fmt: skip
_PLACE = re.compile(r"step(?P<step>\d+)/rank(?P<rank>\d+)/(?:micro_step(?P<micro>\d+)/)?(?P<name>[^/]+)\.npy")


class SingleComparator:
    """Compares what two trainings have saved with `SingleSave`."""

    @classmethod
    def compare(
        cls, dir1: str | os.PathLike[str], dir2: str | os.PathLike[str],
        output_path: str | os.PathLike[str] = "./msprobe_compare_output", num_processes: int = 8,
    ) -> None:  # fmt: skip
        """Write a spreadsheet for each key that both have, one row for each value.

        Values of other shapes are compared in the part that both have, flattened if they have other numbers of
        dimensions; a warning names them.

        Args:
            dir1: What was saved of the training under test: its ``dump_path``, or ``data`` in it.
            dir2: That of the trusted one.
            output_path: Directory of the spreadsheets.
            num_processes: Accepted as published; one process compares.

        Raises:
            CompareError: a directory is missing, or they have no key in common.
            DumpError: a file cannot be read.
            StoreError: a spreadsheet cannot be written.
        """
        del num_processes
        roots = [_data_of(Path(each)) for each in (dir1, dir2)]
        keys = [{path.name for path in root.iterdir() if path.is_dir()} for root in roots]
        common = sorted(keys[0] & keys[1])
        if not common:
            raise CompareError(f"{dir1} and {dir2} have no key in common that SingleSave has saved")
        make_directory(Path(output_path))
        for key in common:
            rows = list(_rows(roots[0] / key, roots[1] / key))
            frame = pl.DataFrame(rows, {name: pl.String if 2 < i < 6 else _type(i) for i, name in enumerate(_COLUMNS)},
                                 orient="row")  # fmt: skip
            columns = [Column(name, pl.col(name), width=Width.NUMBER) for name in _COLUMNS]
            table = Table(columns, frame, Colours(_COLUMNS[3], {}))  # published tables have no colours
            write_table(table, Path(output_path) / f"{key}.xlsx", TableForm.XLSX)


def _type(column: int) -> type[pl.Int64 | pl.Float64]:
    return pl.Int64 if column in {0, 1, 2, 7} else pl.Float64


def _data_of(path: Path) -> Path:
    check_exists(path)
    found = path / _DATA if (path / _DATA).is_dir() else path
    if not found.is_dir():
        raise CompareError(f"{path}: is no directory; give the dump_path of SingleSave")
    return found


def _rows(target: Path, golden: Path) -> Iterator[tuple[Any, ...]]:
    files = [
        {str(path.relative_to(side).as_posix()): path for path in side.rglob("*.npy")} for side in (target, golden)
    ]
    lone = sorted(files[0].keys() ^ files[1].keys())
    if lone:
        _logger.warning("%s: %d values are on one side only, the first %s", target.name, len(lone), shown(lone[0]))
    for name in sorted(files[0].keys() & files[1].keys(), key=_order):
        place = _PLACE.fullmatch(name)
        if place is None:
            continue
        own, other = (open_tensor(side[name]).read() for side in files)
        shapes = own.shape, other.shape
        if own.shape != other.shape:
            _logger.warning(
                "%s: the shapes are %s and %s; what both have is compared",
                shown(name),
                list(own.shape),
                list(other.shape),
            )
            own, other = _common_part(own, other)
        found = similarity(own, other)
        micro = place["micro"]
        yield (
            int(place["step"]), int(place["rank"]), None if micro is None else int(micro), place["name"],
            *(str(tuple(shape)) for shape in shapes), 100 * found.equal, found.first, found.max_abs, found.max_rel,
            100 * found.within_thousandth, 100 * found.within_hundredth,
        )  # fmt: skip


def _order(name: str) -> list[tuple[int, str]]:
    """Order names by the numbers in them."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def _common_part(own: NDArray[Any], other: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    if own.ndim != other.ndim:
        own, other = np.ravel(own), np.ravel(other)
    part = tuple(slice(min(sizes)) for sizes in zip(own.shape, other.shape, strict=True))
    return own[part], other[part]
