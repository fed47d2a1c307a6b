"""How tensor parallel ranks share parameters, by the names of their layers: as declared, or as in Megatron-LM.

Source: ``partition_dim`` of the layers in ``megatron/core/tensor_parallel`` and ``megatron/core/transformer`` of
Megatron-Core 0.16. The layers that dumps are merged by too are in `msprobe_core.compare.layouts.rows.BUILT_IN`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msprobe_core.compare.layouts.rows import BUILT_IN, placements_of
from msprobe_core.compare.layouts.rules import PlacementRule
from msprobe_core.compare.shards.placement import AxisPlacement
from msprobe_core.fingerprint.shard_ranges import PARTIAL, REPLICATE, SHARD
from msprobe_core.model import Placement

_FIRST = re.compile(
    r"(^|\.)(output_layer|word_embeddings_for_head|linear_q_proj|linear_q_up_proj|linear_kv_up_proj|linear_q|linear_kv|"
    r"linear_in|lm_head)\.(weight|bias)$"
)
_NONE = re.compile(
    r"(norm|ln_)[^.]{0,80}(\.|_)(weight|bias)$|layer_norm_(weight|bias)$|router\.|position_embeddings|tokentype_embeddings|"
    r"gate_weight$|expert_bias$|linear_(q|kv)_down_proj\.weight$|eh_proj\.|pooler|\bscale$|inv_freq$"
)
_GATE = re.compile(r"(^|\.)(linear_fc1|dense_h_to_4h|gate_up_proj)\.(weight|bias)$")

GATED: tuple[tuple[str, str], ...] = (
    ("linear_fc1", "linear_fc2"), ("dense_h_to_4h", "dense_4h_to_h"), ("gate_up_proj", "down_proj"),
)  # fmt: skip
"""First matrices of an MLP, which may hold gate and up, and the second one beside them."""

_ROWS = AxisPlacement("tp", Placement(SHARD, 0))
_HALVES = AxisPlacement("tp", Placement(SHARD, 0), (1, 1))
_WHOLE = AxisPlacement("tp", Placement(REPLICATE))


def placement_over_tp(name: str, *, is_gated: bool, declared: Sequence[PlacementRule] = ()) -> AxisPlacement | None:
    """Return how tensor parallel ranks share a parameter; ``None`` if it is not known.

    Args:
        name: Its name, experts as ``experts.{number}`` or ``local_experts.{number}``.
        is_gated: Whether its first matrix of an MLP has the rows of gate and up.
        declared: Rules of a layout file, which precede the others.
    """
    found = _by_rules(declared, name)
    if found is not None:
        return None if found.placement.kind == PARTIAL else found
    if _GATE.search(name):
        return _HALVES if is_gated else _ROWS
    if _NONE.search(name):
        return _WHOLE
    return _ROWS if _FIRST.search(name) else _by_rules(BUILT_IN, name)


def text_of(placement: AxisPlacement) -> str:
    """Return a placement for people."""
    dim = placement.placement.dim
    if placement.placement.kind != SHARD or dim is None:
        return "replicated"
    text = f"{ {0: 'column parallel, ', 1: 'row parallel, '}.get(dim, '') }dim {dim}"
    if placement.ratio == (1, 1):
        return f"{text}, halves of gate and up in every part"
    ratio = ":".join(map(str, placement.ratio))
    return f"{text}, each part divided {ratio}" if len(placement.ratio) > 1 else text


def _by_rules(rules: Sequence[PlacementRule], name: str) -> AxisPlacement | None:
    module, _, what = name.rpartition(".")
    found = placements_of(rules, ("tp",), module, (what, "parameters"), None) if rules else None
    return found[0] if found else None
