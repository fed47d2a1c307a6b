"""Which rows a declaration means: calls by pattern, and values by the names that a file of layouts has for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from msprobe_core import names
from msprobe_core.compare.layouts.patterns import NamePattern
from msprobe_core.compare.layouts.rules import SpreadRule
from msprobe_core.compare.shards.placement import AxisPlacement, Spread
from msprobe_core.errors import EntryNameError
from msprobe_core.model import Phase, Role, SiteKind


@dataclass(frozen=True)
class Called:
    """What was called in an entry.

    Attributes:
        texts: What patterns are compared with.
        path: Of a module; ``None`` of an API.
        type_name: Of a module.
    """

    texts: tuple[str, ...]
    path: str | None = None
    type_name: str = ""


@lru_cache(maxsize=65536)
def called_in(entry: str) -> Called:
    """Return what was called in an entry; of a name outside of the grammar the name itself."""
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
    """Whether a pattern means the call of an entry.

    A pattern is compared with a module's path, with its path and class, and with its class; or with an API's prefix and
    name, such as ``Functional.linear``.
    """
    return any(_pattern(pattern).matches(text) for text in called_in(entry).texts)


_pattern = lru_cache(maxsize=1024)(NamePattern)


def names_of(entry: str, role: str, phase: str, key: str) -> tuple[str, ...]:
    """Return what a file of layouts may call a value, the most special first.

    Gradients have the names of what they are the gradients of; ``grad_input`` and ``grad_output`` before that.
    """
    if role == Role.PARAMETERS_GRAD.value:
        place = key.removeprefix(f"{entry}.").split(".")[0]
        return f"grad_{place}", place, "parameters"
    place = key.removeprefix(f"{entry}.{role}.")
    if role == Role.PARAMETERS.value:
        return place, "parameters"
    if phase == Phase.BACKWARD.value:
        # The inputs of a backward are gradients of the outputs, its outputs those of the inputs.
        what = "output" if role == Role.INPUT.value else "input"
        return f"grad_{what}.{place}", f"grad_{what}", f"{what}.{place}", what
    return f"{role}.{place}", role


def enclosing_module(entry: str, parents: Mapping[str, str | None]) -> str | None:
    """Return the module call around that of an API, forward or backward; ``None`` if it is not known."""
    for name in (entry, names.forward_of(entry) or entry):
        parent = parents.get(name)
        if parent is not None:
            return parent
    return None


def spread_of(
    rules: Sequence[SpreadRule], axes: Sequence[str], entry: str, value_names: Sequence[str], module: str | None
) -> tuple[AxisPlacement, ...] | None:
    """Return how a value lies along each axis that a rule says something of; ``None`` if none does."""
    found: dict[str, AxisPlacement] = {}
    for rule in rules:
        if rule.axis not in axes or rule.axis in found or not is_meant(rule.match, entry):
            continue
        if rule.within and (module is None or not is_meant(rule.within, module)):
            continue
        for name in (*value_names, "everything"):
            if name in rule.values:
                found[rule.axis] = _along(rule, rule.values[name])
                break
    return tuple(found.values()) or None


def _along(rule: SpreadRule, value: int | Spread) -> AxisPlacement:
    if isinstance(value, Spread):
        return AxisPlacement(rule.axis, value)
    return AxisPlacement(rule.axis, Spread.SHARDED, value, rule.ratio)


# --- what is built in -----------------------------------------------------------------------------------------------

_COLUMN = (
    "*ColumnParallelLinear", "*.q_proj", "*.k_proj", "*.v_proj", "*.qkv_proj", "*.gate_proj", "*.up_proj",
    "*.gate_up_proj", "*.linear_qkv", "*.linear_fc1", "*.query_key_value", "*.dense_h_to_4h",
)  # fmt: skip
_ROW = ("*RowParallelLinear", "*.o_proj", "*.down_proj", "*.linear_proj", "*.linear_fc2", "*.dense_4h_to_h")
_VOCABULARY = ("*VocabParallelEmbedding", "*.word_embeddings", "*.embed_tokens")
_REPLICATED, _PARTIAL = Spread.REPLICATED, Spread.PARTIAL

BUILT_IN: tuple[SpreadRule, ...] = (
    *(
        rule
        for name in _COLUMN
        for rule in (
            SpreadRule("", name, "tp", {"weight": 0, "bias": 0, "output.0": -1, "grad_output": -1}),
            SpreadRule("", "Functional.linear", "tp", {"input.1": 0, "input.2": 0, "output": -1}, within=name),
        )
    ),
    *(
        rule
        for name in _ROW
        for rule in (
            SpreadRule("", name, "tp", {"weight": 1, "bias": _REPLICATED, "input.0": -1, "output.0": _REPLICATED}),
            SpreadRule(
                "",
                "Functional.linear",
                "tp",
                {"input.0": -1, "input.1": 1, "input.2": _REPLICATED, "grad_output": _REPLICATED, "output": _PARTIAL},
                within=name,
            ),
        )
    ),
    *(SpreadRule("", name, "tp", {"weight": 0, "output.0": _REPLICATED}) for name in _VOCABULARY),
    *(SpreadRule("", name, "tp", {"parameters": _REPLICATED}) for name in ("*Norm", "*Norm1d", "*Router", "*router")),
    *(SpreadRule("", "*", axis, {"parameters": _REPLICATED}) for axis in ("cp", "dp")),
)
"""How layers of Megatron-LM, and of what calls them alike, lie; what the other side's shape contradicts is not used."""
