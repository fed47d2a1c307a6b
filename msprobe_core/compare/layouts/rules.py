"""Layouts that differ between two runs, as declared in a file: of tensors within a rank, and over ranks."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, cast

import yaml
from yaml.constructor import SafeConstructor

from msprobe_core.compare.shards.placement import MeshCoordinate
from msprobe_core.config.text import read_text
from msprobe_core.errors import ConfigError, MalformedConfigError, UnknownFieldError
from msprobe_core.fingerprint.shard_ranges import PARTIAL, REPLICATE, SHARD
from msprobe_core.model import Placement
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.yaml_text import compose, construct

AXES = ("tp", "cp", "ep", "dp", "pp")
"""Axes of ranks: tensor, context, expert, data and pipeline parallelism."""

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
"""Order of axes from that of neighbouring ranks on, as in Megatron-LM."""


class Side(str, Enum):
    """Side whose tensors are selected."""

    TARGET = "target"
    GOLDEN = "golden"


class Change(str, Enum):
    """Change that gives a tensor the layout of its counterpart."""

    TRANSPOSE = "transpose"
    PERMUTE = "permute"
    MERGE = "merge"
    RESHAPE = "reshape"
    SQUEEZE = "squeeze"
    UNPAD = "unpad"


@dataclass(frozen=True)
class TensorRule:
    """A change of the tensors of some calls, within one rank.

    Attributes:
        where: File and line, for messages; empty for rules of a framework's map.
        match: Pattern of modules or APIs; see `msprobe_core.compare.layouts.rows.is_meant`.
        values: Names of their values: ``weight``, ``bias``, …, ``parameters``, ``input``, ``output``, ``input.0``, …;
            empty for all.
        side: Side whose tensors are changed.
        change: The change.
        numbers: Arguments of the change: the order of dimensions, the dimensions to merge or to remove, or the new
            shape; for ``UNPAD`` the dimension and its size without padding.
        is_zero: For ``UNPAD``, whether the padding is zero, so that statistics of the rest can be computed.
    """

    where: str
    match: str
    values: tuple[str, ...]
    side: Side
    change: Change
    numbers: tuple[int, ...] = ()
    is_zero: bool = True


@dataclass(frozen=True)
class FusedRule:
    """Modules of one side that are one module of the other, such as the projections of an attention.

    Attributes:
        where: File and line, for messages.
        parts: Patterns of the fused modules; ``*`` matches the same text in all of them.
        whole: Pattern of the one module on the other side.
        side: Side that has the parts.
        num_groups: Number of groups in the whole, each with its share of every part, as heads of queries, keys and
            values are grouped; 1 if the parts follow one another.
        parameter_axis: Dimension along which parameters are concatenated.
        output_axis: Dimension along which outputs are concatenated.
    """

    where: str
    parts: tuple[str, ...]
    whole: str
    side: Side
    num_groups: int = 1
    parameter_axis: int = 0
    output_axis: int = -1


@dataclass(frozen=True)
class PlacementRule:
    """Placement of values of some calls over ranks.

    Attributes:
        where: File and line, for messages; empty for built-in rules.
        match: Pattern of modules or APIs; see `msprobe_core.compare.layouts.rows.is_meant`.
        within: For APIs, pattern of the enclosing module; empty for any.
        axis: Axis of ranks.
        values: Placement of each value; names as in `TensorRule`, or ``everything``.
        ratio: Relative sizes of the parts of a fused weight, each of which is sharded separately.
    """

    where: str
    match: str
    axis: str
    values: Mapping[str, Placement]
    within: str = ""
    ratio: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Ranks:
    """Arrangement of the ranks of one side.

    Attributes:
        sizes: Size of each axis, in the order in which neighbouring ranks differ; axes of size 1 are included.
        groups: For some axes the ranks of each group, in the order of their coordinates; overrides ``sizes``.
        first_layers: Number of the first layer of each pipeline stage; empty if it follows from their sizes.
    """

    sizes: tuple[tuple[str, int], ...] = ()
    groups: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict[str, tuple[tuple[int, ...], ...]])
    first_layers: tuple[int, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes with more than one rank."""
        own = [axis for axis, size in self.sizes if size > 1]
        own += [axis for axis, groups in self.groups.items() if any(len(group) > 1 for group in groups)]
        return tuple(dict.fromkeys(axis for axis in own))

    def place_of(self, rank: int) -> MeshCoordinate:
        """Return the mesh coordinate of a rank.

        Raises:
            ConfigError: it is in none of the groups.
        """
        places: dict[str, int] = {}
        left = rank
        for axis, size in self.sizes:
            places[axis] = left % size
            left //= size
        for axis, groups in self.groups.items():
            found = [group.index(rank) for group in groups if rank in group]
            if not found:
                raise ConfigError(f"parallel: rank {rank} is in none of the groups of '{axis}'; add it to one")
            places[axis] = found[0]
        return MeshCoordinate(tuple(sorted(places.items())))

    def replica_of(self, rank: int) -> int:
        """Return the data parallel replica of a rank."""
        if "dp" in dict(self.sizes) or "dp" in self.groups:
            return self.place_of(rank).on("dp")
        return rank // math.prod(size for _, size in self.sizes) if self.sizes else 0


@dataclass(frozen=True)
class LayoutRules:
    """The declarations of a layout file.

    Attributes:
        path: The file.
        tensors: Changes within a rank, in the order in which they are made.
        fused: Modules that are one module on the other side.
        placements: Placements of values over ranks; the first rule for a value and an axis applies.
        ranks: Arrangement of the ranks of a side, if declared.
    """

    path: Path | None = None
    tensors: tuple[TensorRule, ...] = ()
    fused: tuple[FusedRule, ...] = ()
    placements: tuple[PlacementRule, ...] = ()
    ranks: Mapping[Side, Ranks] = field(default_factory=dict[Side, Ranks])


# --- the file -------------------------------------------------------------------------------------------------------

_LOOK = "expected are 'tensors', 'fused' and 'parallel'"


class _Located(dict[str, Any]):
    """A mapping of the file with its line number."""

    line = 0


class _Constructor(SafeConstructor):
    """Keeps line numbers, and refuses duplicate keys."""


def _construct(loader: _Constructor, node: yaml.MappingNode) -> _Located:
    found = _Located()
    found.line = node.start_mark.line + 1
    for key_node, value_node in node.value:
        key = str(cast("Any", loader).construct_object(key_node, deep=True))
        if key in found:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", key_node.start_mark)
        found[key] = cast("Any", loader).construct_object(value_node, deep=True)
    return found


cast("Any", _Constructor).add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct)

_Place: TypeAlias = str


def load_layouts(path: str | os.PathLike[str]) -> LayoutRules:
    """Return the declarations of a layout file.

    Raises:
        ConfigError: it cannot be read, or is malformed; the message has file, line and field.
    """
    path = Path(path)
    root = _read(path)
    _check_keys(root, {"tensors", "fused", "parallel"}, str(path))
    tensors = [_tensor_rule(item, where) for item, where in _items(root, "tensors", path)]
    fused = [_fused_rule(item, where) for item, where in _items(root, "fused", path)]
    parallel = root.get("parallel", _Located())
    if not isinstance(parallel, _Located):
        raise ConfigError(f"{path}: 'parallel' holds {_kind(parallel)}, not an object with 'target' and 'golden'")
    place = f"{path}, line {parallel.line}: parallel"
    _check_keys(parallel, {"target", "golden", "rows"}, place)
    ranks = {side: _ranks(parallel[side.value], f"{place}: {side.value}") for side in Side if parallel.get(side.value)}
    placements = [_placement_rule(item, where) for item, where in _items(parallel, "rows", path)]
    return LayoutRules(path, tuple(tensors), tuple(fused), tuple(placements), ranks)


def _read(path: Path) -> _Located:
    text = read_text(path, kind="a file of layouts", advice="give the path of a YAML file")
    try:
        content = construct(compose(text), _Constructor())
    except MalformedError as error:
        raise MalformedConfigError(f"{path}: is not valid YAML: {error}") from error
    if not isinstance(content, _Located):
        raise ConfigError(f"{path}: holds {_kind(content)}, not an object; {_LOOK}")
    return content


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__.strip("_").replace("Located", "an object")


def _check_keys(found: Mapping[str, Any], known: set[str], where: _Place) -> None:
    unknown = sorted(set(found) - known)
    if unknown:
        raise UnknownFieldError(f"{where}: unknown field '{unknown[0]}'; known are {', '.join(sorted(known))}")


def _items(root: _Located, name: str, path: Path) -> list[tuple[_Located, _Place]]:
    items: Any = root.get(name)
    if items is None:
        return []
    if not isinstance(items, list) or not all(isinstance(item, _Located) for item in cast("list[Any]", items)):
        raise ConfigError(f"{path}, line {root.line}: '{name}' must be a list of objects, each after a dash")
    return [(item, f"{path}, line {item.line}: {name}") for item in cast("list[_Located]", items)]


def _text(item: _Located, name: str, where: _Place, default: str | None = None) -> str:
    value = item.get(name, default)
    if not isinstance(value, str) or not (value or default == ""):
        raise ConfigError(f"{where}: '{name}' is {value!r}, but must be text, for example \"*.mlp.fc1\"")
    return value


def _numbers(value: Any, name: str, where: _Place, *, least: int | None = None) -> tuple[int, ...]:
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    sound = [one for one in values if isinstance(one, int) and not isinstance(one, bool)]
    if len(sound) != len(values) or not values or (least is not None and min(sound) < least):
        low = "" if least is None else f" from {least}"
        raise ConfigError(f"{where}: '{name}' is {value!r}, but must be whole numbers{low}, for example [1, 0]")
    return tuple(sound)


def _side(item: _Located, where: _Place) -> Side:
    value = item.get("side")
    if value not in [side.value for side in Side]:
        raise ConfigError(f"{where}: 'side' is {value!r}, but must say whose tensors are meant: target or golden")
    return Side(value)


_CHANGES = {change.value for change in Change}


def _tensor_rule(item: _Located, where: _Place) -> TensorRule:
    _check_keys(item, {"match", "values", "side", "padding", *_CHANGES}, where)
    given = [name for name in item if name in _CHANGES]
    if len(given) != 1:
        raise ConfigError(
            f"{where}: {'two changes' if given else 'no change'} given; each rule needs one of "
            f"{', '.join(sorted(_CHANGES))}"
        )
    change = Change(given[0])
    value = item[change.value]
    names: Any = item.get("values", [])
    values = [names] if isinstance(names, str) else names
    if not isinstance(values, list) or not all(isinstance(name, str) for name in cast("list[Any]", values)):
        raise ConfigError(f"{where}: 'values' is {names!r}, but must be names such as weight, input or output.0")
    numbers: tuple[int, ...] = tuple[int, ...]()
    if change is Change.UNPAD:
        if not isinstance(value, _Located) or set(value) != {"dim", "size"}:
            raise ConfigError(f"{where}: 'unpad' is {value!r}, but must have 'dim' and 'size'")
        numbers = (*_numbers(value["dim"], "dim", where), *_numbers(value["size"], "size", where, least=0))
    elif change is not Change.TRANSPOSE or value is not True:
        numbers = _numbers(value, change.value, where)
    if change is Change.PERMUTE and sorted(numbers) != list(range(len(numbers))):
        raise ConfigError(f"{where}: 'permute' is {value!r}, but must name each dimension once, from 0")
    if change is Change.MERGE and list(numbers) != list(range(numbers[0], numbers[0] + len(numbers))):
        raise ConfigError(f"{where}: 'merge' is {value!r}, but only dimensions that follow one another can be merged")
    padding = item.get("padding", "zero")
    if padding not in ("zero", "ignored") or ("padding" in item and change is not Change.UNPAD):
        raise ConfigError(f"{where}: 'padding' is {padding!r}; with 'unpad' it may be zero or ignored")
    return TensorRule(
        where,
        _text(item, "match", where),
        tuple(cast("list[str]", values)),
        _side(item, where),
        change,
        numbers,
        padding == "zero",
    )


def _fused_rule(item: _Located, where: _Place) -> FusedRule:
    _check_keys(item, {"parts", "whole", "side", "groups", "parameters", "output"}, where)
    parts: Any = item.get("parts")
    if not isinstance(parts, list) or len(cast("list[Any]", parts)) < 2:
        raise ConfigError(f"{where}: 'parts' is {parts!r}, but must be a list of two modules or more")
    names = [_text(_Located(part=part), "part", where) for part in cast("list[Any]", parts)]
    whole = _text(item, "whole", where)
    if len({name.count("*") for name in [*names, whole]}) > 1:
        raise ConfigError(
            f"{where}: 'parts' and 'whole' must have the same number of '*', which stand for the same text"
        )
    return FusedRule(
        where,
        tuple(names),
        whole,
        _side(item, where),
        _numbers(item.get("groups", 1), "groups", where, least=1)[0],
        _numbers(item.get("parameters", 0), "parameters", where)[0],
        _numbers(item.get("output", -1), "output", where)[0],
    )


_WORDS = {"replicated": Placement(REPLICATE), "partial": Placement(PARTIAL)}


def _placement_rule(item: _Located, where: _Place) -> PlacementRule:
    values: dict[str, Placement] = {}
    for name, value in item.items():
        if name in ("match", "within", "axis", "ratio"):
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            values[name] = Placement(SHARD, value)
        elif isinstance(value, str) and value in _WORDS:
            values[name] = _WORDS[value]
        else:
            raise ConfigError(
                f"{where}: '{name}' is {value!r}, but must be the dimension that is cut, replicated or partial"
            )
    if not values:
        raise ConfigError(f"{where}: no value is given; for example 'weight: 0' says that weights are cut along rows")
    axis = _text(item, "axis", where, "tp")
    if axis not in AXES:
        raise ConfigError(f"{where}: 'axis' is {axis!r}; known are {', '.join(AXES)}")
    ratio = _numbers(item.get("ratio", [1]), "ratio", where, least=1)
    return PlacementRule(where, _text(item, "match", where), axis, values, _text(item, "within", where, ""), ratio)


def _ranks(value: Any, where: _Place) -> Ranks:
    if not isinstance(value, _Located):
        raise ConfigError(f"{where} holds {_kind(value)}, not an object such as {{tp: 2, pp: 2}}")
    _check_keys(value, {*AXES, "order", "groups", "first_layers"}, where)
    order = _text(value, "order", where, DEFAULT_ORDER).split("-")
    missing = [axis for axis in AXES if axis in value and axis not in order]
    if missing or not set(order) <= set(AXES) or len(set(order)) != len(order):
        wrong = f"lacks '{missing[0]}'" if missing else f"is {'-'.join(order)!r}"
        raise ConfigError(f"{where}: 'order' {wrong}; it names each axis once, for example {DEFAULT_ORDER}")
    sizes = tuple((axis, _numbers(value.get(axis, 1), axis, where, least=1)[0]) for axis in order)
    groups: Any = value.get("groups", _Located())
    if not isinstance(groups, _Located):
        raise ConfigError(f"{where}: 'groups' must be an object such as {{tp: [[0, 1], [2, 3]]}}")
    _check_keys(groups, set(AXES), f"{where}: groups")
    listed = {axis: _rank_lists(lists, axis, where) for axis, lists in groups.items()}
    first: Any = value.get("first_layers")
    layers = () if first is None else _numbers(first, "first_layers", where, least=0)
    given = tuple((axis, size) for axis, size in sizes if axis in value)
    return Ranks(given, listed, layers)


def _rank_lists(lists: Any, axis: str, where: _Place) -> tuple[tuple[int, ...], ...]:
    if not isinstance(lists, list) or not all(isinstance(one, list) for one in cast("list[Any]", lists)):
        raise ConfigError(f"{where}: the groups of '{axis}' are {lists!r}, but must be lists of ranks")
    found = tuple(_numbers(one, axis, where, least=0) for one in cast("list[Any]", lists))
    ranks = [rank for group in found for rank in group]
    if len(set(ranks)) != len(ranks):
        raise ConfigError(f"{where}: a rank is in two groups of '{axis}'")
    return found
