"""How ranks of Megatron-LM share parameters, by the names of their layers.

Source: ``partition_dim`` of the layers in ``megatron/core/tensor_parallel`` and ``megatron/core/transformer`` of
Megatron-Core 0.16. The layers that dumps are merged by too are in `msprobe_core.compare.layouts.rows.BUILT_IN`.
"""

from __future__ import annotations

import re
from enum import Enum

from msprobe_core.compare.layouts.rows import BUILT_IN
from msprobe_core.config.name_patterns import NamePattern
from msprobe_core.fingerprint.shard_ranges import SHARD


class Cut(Enum):
    """How tensor parallel ranks share a parameter; the value names the rule for people."""

    FIRST = "column parallel, dim 0"
    GATED = "column parallel, dim 0, halves of gate and up in every part"
    SECOND = "row parallel, dim 1"
    NONE = "replicated"
    UNKNOWN = "unknown"


_FIRST = re.compile(
    r"(^|\.)(output_layer|word_embeddings_for_head|linear_q_proj|linear_q_up_proj|linear_kv_up_proj|linear_q|linear_kv|"
    r"linear_in|lm_head)\.(weight|bias)$"
)
_NONE = re.compile(
    r"(norm|ln_)[^.]{0,80}(\.|_)(weight|bias)$|layer_norm_(weight|bias)$|router\.|position_embeddings|tokentype_embeddings|"
    r"gate_weight$|expert_bias$|linear_(q|kv)_down_proj\.weight$|eh_proj\.|pooler|\bscale$|inv_freq$"
)
_GATE = re.compile(r"(^|\.)(linear_fc1|dense_h_to_4h)\.(weight|bias)$")


def cut_of(name: str, *, is_gated: bool) -> Cut:
    """Return how a parameter is shared.

    Args:
        name: Its name, experts as ``local_experts.{number}``.
        is_gated: Whether its first matrix of an MLP has the rows of gate and up.
    """
    if _GATE.search(name):
        return Cut.GATED if is_gated else Cut.FIRST
    if _NONE.search(name):
        return Cut.NONE
    if _FIRST.search(name):
        return Cut.FIRST
    module, _, what = name.rpartition(".")
    for pattern, rules in _TABLE:
        if what in rules and pattern.matches(module):
            return rules[what]
    return Cut.UNKNOWN


def _table() -> tuple[tuple[NamePattern, dict[str, Cut]], ...]:
    """Return the rules for parameters of layers over tensor parallel ranks."""
    found: list[tuple[NamePattern, dict[str, Cut]]] = []
    for rule in BUILT_IN:
        if rule.axis != "tp" or rule.within:
            continue
        cuts: dict[str, Cut] = {}
        for what in ("weight", "bias"):
            placement = rule.values.get(what)
            if placement is None:
                continue
            is_cut = placement.kind == SHARD
            cuts[what] = (Cut.SECOND if placement.dim == 1 else Cut.FIRST) if is_cut else Cut.NONE
        if cuts:
            found.append((NamePattern(rule.match), cuts))
    return tuple(found)


_TABLE = _table()
