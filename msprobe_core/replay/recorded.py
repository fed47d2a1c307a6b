"""Read one call from a dump: its arguments as nested containers, and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from msprobe_core import names
from msprobe_core.errors import DumpError, EntryNameError
from msprobe_core.findings import Field, Finding, noted
from msprobe_core.manifest.facts import Model, Module
from msprobe_core.model import Argument, Phase, ReplayModule, ReplayTensor, ReplayValue, Role, Site, SiteKind
from msprobe_core.protocols.storage import Dump
from msprobe_core.replay.replay_codes import ReplayCode
from msprobe_core.store.frame import RowKind
from msprobe_core.store.manifest_file import find_manifest, read_manifest
from msprobe_core.store.tensor_source import read_whole


@dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """One call, read from one dump.

    Attributes:
        entry: Name of the forward or backward entry in the dump.
        site: The parsed entry name.
        args: Positional arguments of the forward call.
        kwargs: Keyword arguments of the forward call.
        parameters: Parameters of a module and of the modules inside it, by path relative to the module.
        modules: How a module and those inside it were made; see `msprobe_core.model.ReplayCall`.
        gradients: For a backward call, the gradients with respect to the outputs, by path.
        outputs: Results by path; for a backward call, the gradients with respect to the arguments.
        scalars: Arguments as text, by path: scalars by value, tensors by dtype and shape.
        missing: The first reason why the call cannot be replayed; ``None`` if it is complete.
    """

    entry: str
    site: Site
    args: list[ReplayValue] = field(default_factory=list["ReplayValue"])
    kwargs: dict[str, ReplayValue] = field(default_factory=dict[str, "ReplayValue"])
    parameters: dict[str, ReplayTensor] = field(default_factory=dict[str, ReplayTensor])
    modules: tuple[ReplayModule, ...] = ()
    gradients: dict[str, ReplayTensor] = field(default_factory=dict[str, ReplayTensor])
    outputs: dict[str, ReplayTensor] = field(default_factory=dict[str, ReplayTensor])
    scalars: dict[str, str] = field(default_factory=dict[str, str])
    missing: Finding | None = None

    @property
    def tensors(self) -> dict[str, ReplayTensor]:
        """All input tensors: arguments, parameters, and incoming gradients."""
        found = dict(_tensors(self.args, ""))
        found |= dict(_tensors(self.kwargs, ""))
        found |= {f"parameters.{name}": value for name, value in self.parameters.items()}
        return found | {f"gradient.{path}": value for path, value in self.gradients.items()}

    def with_arguments_apart(self) -> RecordedCall | None:
        """Return the call with a tensor of its own for each argument; ``None`` if no two are regarded as one."""
        marked = [value.identity for value in self.tensors.values() if value.identity is not None]
        if len(set(marked)) == len(marked):
            return None

        def alone(value: ReplayTensor) -> ReplayTensor:
            return msgspec.structs.replace(value, identity=None)

        args = [map_tensors(value, alone) for value in self.args]
        return replace(self, args=args, kwargs={name: map_tensors(each, alone) for name, each in self.kwargs.items()})


class _IncompleteError(Exception):
    """The dump does not contain the complete call."""

    def __init__(self, code: ReplayCode, **fields: Field) -> None:
        self.finding = Finding(code, fields=fields)
        super().__init__(self.finding)


def has_entry(dump: Dump, entry: str) -> bool:
    """Whether the dump has a record of this call."""
    return bool(dump.frame.select((pl.col("entry") == entry).any()).item())


FILL_COLUMNS = (
    "key", "entry", "role", "kind", "type", "dtype", "shape", "numel", "requires_grad", "max", "min", "mean", "norm",
    "num_nan", "num_inf", "text", "exact", "sketch", "distribution", "failure", "file_name",
)  # fmt: skip
"""Columns of a dump's frame that calls are made from."""

Fill: TypeAlias = Callable[[Mapping[str, Any], str], "NDArray[Any] | None"]
"""Makes the values of an input tensor: from its row in the dump, with the columns `FILL_COLUMNS`, and its path.

Returns ``None`` to take the recorded values.
"""


def read_call(dump: Dump, entry: str, max_elements: int) -> RecordedCall:
    """Read a call from a dump; see `RecordedCalls.read`."""
    return RecordedCalls(dump, max_elements).read(entry)


class RecordedCalls:
    """The calls of one dump, which are read one by one.

    Args:
        dump: The dump.
        max_elements: A call with more elements in all of its tensors is not read.
    """

    def __init__(self, dump: Dump, max_elements: int) -> None:
        self.dump = dump
        self._max_elements = max_elements

    @cached_property
    def _frame(self) -> pl.DataFrame:
        return self.dump.frame.select(FILL_COLUMNS)

    @cached_property
    def _places(self) -> Mapping[str, list[tuple[int, int]]]:
        """First row and number of rows of each stretch of an entry: one pass over the dump for all calls."""
        entries = self.dump.frame["entry"]
        found: dict[str, list[tuple[int, int]]] = {}
        for entry, length, end in pl.select(runs=entries.rle()).unnest("runs").select(
            "value", "len", end=pl.col("len").cum_sum()
        ).iter_rows():  # fmt: skip
            found.setdefault(entry, []).append((end - length, length))
        return found

    @cached_property
    def _models(self) -> Sequence[Model]:
        path = find_manifest(self.dump.path)
        return () if path is None else read_manifest(path).run.models

    @cached_property
    def parameters(self) -> Sequence[tuple[Site, dict[str, Any]]]:
        """Rows of the stored parameters of modules, each with the module's site."""
        frame = self.dump.frame.filter((pl.col("role") == Role.PARAMETERS.value) & pl.col("file_name").is_not_null())
        found: list[tuple[Site, dict[str, Any]]] = []
        for row in frame.select(FILL_COLUMNS).iter_rows(named=True):
            with suppress(EntryNameError):
                found.append((names.parse_entry(row["entry"]), row))
        return found

    def modules(self, path: str) -> tuple[ReplayModule, ...]:
        """Return how the module at a path and those inside it were made, itself first; empty if that is not known.

        Raises:
            DumpError: the manifest beside the dump cannot be read.
        """
        for model in self._models:
            # Of several models in a list, the path of each begins with its name.
            stem = path.removeprefix(f"{model.name}.") if model.name else path
            stem = "" if path == model.name else stem
            inside = [each for each in model.modules if each.path == stem or _is_inside(each.path, stem)]
            if (model.name and stem == path) or not inside or inside[0].path != stem:
                continue
            return tuple(_replay_module(each, stem) for each in inside)
        return ()

    @property
    def entries(self) -> Iterable[str]:
        """Names of all entries in the order of the dump."""
        return self._places

    def rows(self, entry: str) -> list[dict[str, Any]]:
        """Return the rows of an entry with the columns `FILL_COLUMNS`; none if the dump does not have it."""
        # Slices, because gathering rows takes polars two milliseconds, which is half of a small check.
        slices = (self._frame.slice(first, length) for first, length in self._places.get(entry, ()))
        return [row for each in slices for row in each.iter_rows(named=True)]

    def read(self, entry: str, fill: Fill | None = None) -> RecordedCall:
        """Read a call.

        Args:
            entry: Name of a forward or backward entry.
            fill: Makes the values of the inputs; ``None`` to take the recorded ones. Calls with made inputs have no
                outputs, as the recorded ones do not belong to them.

        Raises:
            EntryNameError: ``entry`` is not the name of a call.
            DumpError: the file of a tensor is damaged.
        """
        site = names.parse_entry(entry)
        if site.phase not in (Phase.FORWARD, Phase.BACKWARD):
            raise EntryNameError(f"{entry!r} is not a call; give the entry of a forward or of a backward")
        try:
            return _Reader(self, self.dump, entry, site, self._max_elements, fill).read()
        except _IncompleteError as error:
            return RecordedCall(entry=entry, site=site, missing=error.finding)

    def read_or_missing(self, entry: str, fill: Fill | None = None) -> RecordedCall:
        """Read a call, as `read` does; one with a damaged file has the reason in ``missing``."""
        try:
            return self.read(entry, fill)
        except DumpError as error:  # one damaged file does not end the others
            return unreadable(entry, error)


def unreadable(entry: str, error: DumpError) -> RecordedCall:
    """Return what there is of a call that cannot be read."""
    return RecordedCall(entry=entry, site=names.parse_entry(entry), missing=noted(str(error)))


class _Reader:
    def __init__(
        self, calls: RecordedCalls, dump: Dump, entry: str, site: Site, max_elements: int, fill: Fill | None
    ) -> None:
        self._calls = calls
        self._dump = dump
        self._fill = fill
        self._entry = entry
        self._site = site
        self._left = max_elements
        self._max_elements = max_elements
        self._read: dict[str, NDArray[Any]] = {}

    def read(self) -> RecordedCall:
        site, is_backward = self._site, self._site.phase is Phase.BACKWARD
        forward = names.forward_of(self._entry) or self._entry
        own = self._calls.rows(self._entry)
        rows = self._calls.rows(forward) if is_backward else own
        if not own:
            raise _IncompleteError(ReplayCode.NO_RECORD, entry=self._entry)
        if not rows:
            raise _IncompleteError(ReplayCode.NO_FORWARD, entry=forward)
        given = _by_path(rows, Role.INPUT, forward)
        results = _by_path(own, Role.OUTPUT, self._entry)
        outputs = self._tensors_of(results) if self._fill is None else {}
        tree: dict[str, Any] = {}
        slots: list[tuple[dict[str, Any], str, str]] = []
        for path, row in given.items():
            slots.append((*_place(tree, path), path))
            slots[-1][0][slots[-1][1]] = self._value(row, path)
        if is_backward and self._fill is None:
            self._mark_gradients(slots, outputs)
        elif is_backward:
            _mark_places(slots, results)
        positional = {key: value for key, value in tree.items() if key.isdecimal()}
        return RecordedCall(
            entry=self._entry,
            site=site,
            args=_as_list(positional),
            kwargs={key: _nested(value) for key, value in tree.items() if key not in positional},
            parameters=self._parameters(forward) if site.kind is SiteKind.MODULE else {},
            modules=self._calls.modules(site.path) if site.kind is SiteKind.MODULE else (),
            gradients=self._tensors_of(_by_path(own, Role.INPUT, self._entry)) if is_backward else {},
            outputs=outputs,
            scalars={path: _described(row) for path, row in given.items()},
        )

    def _tensors_of(self, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, ReplayTensor]:
        values = {path: self._value(row, path) for path, row in rows.items()}
        return {path: value for path, value in values.items() if isinstance(value, ReplayTensor)}

    def _value(self, row: Mapping[str, Any], path: str) -> ReplayValue:
        if row["failure"] is not None:
            raise _IncompleteError(ReplayCode.FAILED_TO_RECORD, value=path, entry=row["entry"], why=str(row["failure"]))
        if row["kind"] == RowKind.NONE.value:
            return None
        if row["kind"] == RowKind.SCALAR.value:
            return Argument(str(row["type"]), row["text"])
        return self._tensor(row, path)

    def _tensor(self, row: Mapping[str, Any], path: str) -> ReplayTensor:
        if row["distribution"] is not None:
            raise _IncompleteError(ReplayCode.DISTRIBUTED, value=path, entry=row["entry"])
        dtype = dtype_of(row)
        made = None
        if self._fill is not None:
            if (numel := row["numel"]) is None or numel > self._left:
                raise _IncompleteError(ReplayCode.TOO_LARGE, most=self._max_elements)
            made = self._fill(row, path)
        if made is not None:
            self._left -= made.size
            return ReplayTensor(values=made, dtype=dtype)
        if (file_name := row["file_name"]) is None and row["numel"] == 0:  # nothing that a file could hold
            return ReplayTensor(values=np.zeros(msgspec.json.decode(row["shape"], type=list[int])), dtype=dtype)
        if file_name is None:
            raise _IncompleteError(ReplayCode.STATISTICS_ONLY, value=path, entry=row["entry"])
        values = self._read.get(file_name)
        if values is None:
            values = self._read[file_name] = self._load(file_name, row)
        return ReplayTensor(values=values, dtype=dtype)

    def _load(self, file_name: str, row: Mapping[str, Any]) -> NDArray[Any]:
        source = self._dump.open_tensor(file_name)
        if str(list(source.shape)) != row["shape"]:
            raise DumpError(f"{file_name}: has the shape {list(source.shape)}, and its record says {row['shape']}")
        self._left -= int(np.prod(source.shape, dtype=np.float64))
        if self._left < 0:
            raise _IncompleteError(ReplayCode.TOO_LARGE, most=self._max_elements)
        whole: Any = read_whole(source)
        if whole.dtype.kind not in "biufc":
            raise DumpError(f"{file_name}: holds no numbers")
        return whole

    def _mark_gradients(
        self, slots: list[tuple[dict[str, Any], str, str]], outputs: Mapping[str, ReplayTensor]
    ) -> None:
        """Mark the arguments with recorded gradients, and those that were one tensor in the program.

        A tensor that is passed to one call twice has its whole gradient recorded in both places, so two arguments with
        equal values and equal gradients are regarded as one tensor. They may be two all the same, see
        `RecordedCall.with_arguments_apart`.
        """
        kinds: dict[tuple[Any, ...], int] = {}
        for container, key, path in slots:
            value, gradient = container[key], outputs.get(path)
            if isinstance(value, ReplayTensor) and gradient is not None:
                content = value.values.tobytes(), gradient.values.tobytes(), value.dtype, value.values.shape
                number = kinds.setdefault(content, len(kinds))
                container[key] = msgspec.structs.replace(value, takes_gradient=True, identity=number)

    def _parameters(self, forward: str) -> dict[str, ReplayTensor]:
        """Return the recorded parameters of a module and of the modules inside it; the model supplies the others."""
        stem = self._site.path
        found: dict[str, ReplayTensor] = {}
        for site, row in self._calls.parameters:
            if site.path == stem or _is_inside(site.path, stem):
                inner = site.path[len(stem) :].strip(".")
                name = row["key"].removeprefix(names.row_name(row["entry"], Role.PARAMETERS, ""))
                path = f"{inner}.{name}" if inner else name
                if path not in found or row["entry"] == forward:
                    found[path] = self._tensor(row, path)
        return found


def _is_inside(path: str, stem: str) -> bool:
    """Whether a module is inside of another, by their paths."""
    return path != stem and (not stem or path.startswith(f"{stem}."))


def _replay_module(module: Module, stem: str) -> ReplayModule:
    return ReplayModule(
        path=module.path[len(stem) :].strip("."), type=module.type, settings=module.settings,
        has_hooks=bool(module.hooks),
        parameters=tuple(each.name for each in module.parameters if not each.is_buffer),
        buffers=tuple(each.name for each in module.parameters if each.is_buffer),
    )  # fmt: skip


def _mark_places(slots: list[tuple[dict[str, Any], str, str]], results: Mapping[str, Mapping[str, Any]]) -> None:
    """Mark the arguments for which the dump has a gradient, of whatever value."""
    for container, key, path in slots:
        value, row = container[key], results.get(path)
        if isinstance(value, ReplayTensor) and row is not None and row["kind"] == RowKind.TENSOR.value:
            container[key] = msgspec.structs.replace(value, takes_gradient=True)


def dtype_of(row: Mapping[str, Any]) -> str:
    """Return the dtype of a tensor's row without the framework's name, for example ``bfloat16``."""
    return str(row["dtype"]).rpartition(".")[2].lower()  # torch.float32, or Float32 of MindSpore


def _by_path(rows: list[dict[str, Any]], role: Role, entry: str) -> dict[str, dict[str, Any]]:
    stem = names.row_name(entry, role, "")
    return {
        row["key"].removeprefix(stem): row for row in rows if row["role"] == role.value and row["key"].startswith(stem)
    }


def _described(row: Mapping[str, Any]) -> str:
    if row["kind"] == RowKind.TENSOR.value:
        return f"{row['dtype']} {row['shape']}"
    return "None" if row["kind"] == RowKind.NONE.value else str(row["text"])


# --- trees ------------------------------------------------------------------------------------------------------


def _place(tree: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *stems, last = path.split(".")
    for stem in stems:
        below = tree.setdefault(stem, {})
        if not isinstance(below, dict):
            raise _IncompleteError(ReplayCode.MISPLACED, argument=path)
        tree = cast("dict[str, Any]", below)
    return tree, last


def _nested(value: Any) -> ReplayValue:
    """Convert dicts with the keys 0, 1, 2, … into lists, recursively."""
    if not isinstance(value, dict):
        return value
    items = cast("dict[str, Any]", value)
    if items and all(key.isdecimal() for key in items):
        return _as_list(items)
    return {key: _nested(item) for key, item in items.items()}


def _as_list(items: Mapping[str, Any]) -> list[ReplayValue]:
    """Return the values by position; a position without values was an empty container, such as an empty list."""
    places = {int(key): _nested(value) for key, value in items.items()}
    length = max(places, default=-1) + 1
    if length > _MAX_LENGTH:
        raise _IncompleteError(ReplayCode.FAR_PLACE, place=length - 1)
    return [places.get(i, []) for i in range(length)]


_MAX_LENGTH = 1 << 16


def _tensors(value: Any, path: str) -> Iterator[tuple[str, ReplayTensor]]:
    if isinstance(value, ReplayTensor):
        yield path, value
    elif isinstance(value, list | dict):
        several = cast("Any", value)
        for key, item in several.items() if isinstance(value, dict) else enumerate(several):
            yield from _tensors(item, f"{path}.{key}" if path else str(key))


def map_tensors(value: ReplayValue, function: Any) -> Any:
    """Return the nested containers with each tensor replaced by the result of ``function``."""
    if isinstance(value, ReplayTensor):
        return function(value)
    if isinstance(value, list):
        return [map_tensors(item, function) for item in value]
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    return value
