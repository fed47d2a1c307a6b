"""Rows that a declaration selects: calls by pattern, and values by their names in layout files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from msprobe_core import names
from msprobe_core.compare.layouts.rules import PlacementRule
from msprobe_core.compare.shards.placement import AxisPlacement
from msprobe_core.config.name_patterns import NamePattern
from msprobe_core.errors import EntryNameError
from msprobe_core.fingerprint.shard_ranges import PARTIAL, REPLICATE, SHARD
from msprobe_core.model import Phase, Placement, Role, SiteKind


@dataclass(frozen=True)
class Called:
    """The module or API called in an entry.

    Attributes:
        texts: Texts with which patterns are compared.
        path: Path of a module; ``None`` for an API.
        type_name: Class of a module.
    """

    texts: tuple[str, ...]
    path: str | None = None
    type_name: str = ""


@lru_cache(maxsize=65536)
def called_in(entry: str) -> Called:
    """Return the module or API called in an entry; for a name outside of the grammar the name itself."""
    try:
        site = names.parse_entry(entry)
    except EntryNameError:
        return Called((entry,))
    if site.kind is SiteKind.API:
        return Called((f"{site.prefix}.{site.path}",))
    own = f"{site.path}.{site.type_name}" if site.path else site.type_name
    return Called((site.path, own, site.type_name), site.path, site.type_name)


@lru_cache(maxsize=65536)
def is_meant(pattern: str, entry: str) -> bool:
    """Whether a pattern matches the call of an entry.

    A pattern is compared with a module's path, with its path and class, and with its class; or with an API's prefix and
    name, such as ``Functional.linear``.
    """
    return any(_pattern(pattern).matches(text) for text in called_in(entry).texts)


_pattern = lru_cache(maxsize=1024)(NamePattern)


def names_of(entry: str, role: str, phase: str, key: str) -> tuple[str, ...]:
    """Return the names of a value in layout files, the most specific first.

    Gradients also have the names of their values, after ``grad_input`` and ``grad_output``.
    """
    if role == Role.PARAMETERS_GRAD.value:
        place = key.removeprefix(f"{entry}.").split(".")[0]
        return f"grad_{place}", place, "parameters"
    place = key.removeprefix(f"{entry}.{role}.")
    if role == Role.PARAMETERS.value:
        return place, "parameters"
    if phase == Phase.BACKWARD.value:
        # The inputs of a backward are gradients of the outputs, and its outputs are those of the inputs.
        what = "output" if role == Role.INPUT.value else "input"
        return f"grad_{what}.{place}", f"grad_{what}", f"{what}.{place}", what
    return f"{role}.{place}", role


def enclosing_module(entry: str, parents: Mapping[str, str | None]) -> str | None:
    """Return the module call that encloses a call of an API, forward or backward; ``None`` if it is unknown."""
    for name in (entry, names.forward_of(entry) or entry):
        parent = parents.get(name)
        if parent is not None:
            return parent
    return None


def placements_of(
    rules: Sequence[PlacementRule], axes: Sequence[str], entry: str, value_names: Sequence[str], module: str | None
) -> tuple[AxisPlacement, ...] | None:
    """Return the placement of a value over each axis that a rule covers; ``None`` if no rule matches."""
    found: dict[str, AxisPlacement] = {}
    for rule in rules:
        if rule.axis not in axes or rule.axis in found or not is_meant(rule.match, entry):
            continue
        if rule.within and (module is None or not is_meant(rule.within, module)):
            continue
        for name in (*value_names, "everything"):
            if name in rule.values:
                found[rule.axis] = AxisPlacement(rule.axis, rule.values[name], rule.ratio)
                break
    return tuple(found.values()) or None


# --- built-in rules -------------------------------------------------------------------------------------------------

_COLUMN = (
    "*ColumnParallelLinear", "*.q_proj", "*.k_proj", "*.v_proj", "*.qkv_proj", "*.gate_proj", "*.up_proj",
    "*.gate_up_proj", "*.linear_qkv", "*.linear_fc1", "*.query_key_value", "*.dense_h_to_4h",
)  # fmt: skip
_ROW = ("*RowParallelLinear", "*.o_proj", "*.down_proj", "*.linear_proj", "*.linear_fc2", "*.dense_4h_to_h")
_VOCABULARY = ("*VocabParallelEmbedding", "*.word_embeddings", "*.embed_tokens")
_WHOLE, _TERM = Placement(REPLICATE), Placement(PARTIAL)
_FIRST, _SECOND, _LAST = (Placement(SHARD, dim) for dim in (0, 1, -1))
_LINEAR = "Functional.linear"
_OF_COLUMN = {"weight": _FIRST, "bias": _FIRST, "output.0": _LAST, "grad_output": _LAST}
_OF_ROW = {"weight": _SECOND, "bias": _WHOLE, "input.0": _LAST, "output.0": _WHOLE}
_IN_COLUMN = {"input.1": _FIRST, "input.2": _FIRST, "output": _LAST}
_IN_ROW = {"input.0": _LAST, "input.1": _SECOND, "input.2": _WHOLE, "grad_output": _WHOLE, "output": _TERM}
_OF_NORM = ("*Norm", "*Norm1d", "*Router", "*router")

BUILT_IN: tuple[PlacementRule, ...] = (
    *(PlacementRule("", name, "tp", _OF_COLUMN) for name in _COLUMN),
    *(PlacementRule("", _LINEAR, "tp", _IN_COLUMN, within=name) for name in _COLUMN),
    *(PlacementRule("", name, "tp", _OF_ROW) for name in _ROW),
    *(PlacementRule("", _LINEAR, "tp", _IN_ROW, within=name) for name in _ROW),
    *(PlacementRule("", name, "tp", {"weight": _FIRST, "output.0": _WHOLE}) for name in _VOCABULARY),
    *(PlacementRule("", name, "tp", {"parameters": _WHOLE}) for name in _OF_NORM),
    *(PlacementRule("", "*", axis, {"parameters": _WHOLE}) for axis in ("cp", "dp")),
)
"""Placement of layers of Megatron-LM, and of layers with the same names; ignored if the other side's shape
contradicts."""
