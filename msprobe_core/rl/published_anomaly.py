"""The published function ``analyze_output_anomaly``, by our detectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msprobe_core.rl.response_guard import AnomalyKind, ResponseGuard

NORMAL, RARE, GARBLED, REPEATED, NAN = range(5)
"""Published numbers of types."""

_RARE_BELOW = -6.0
_GARBLED_BELOW = -5.0
_GARBLED_SHARE = 0.2
_WINDOW, _STRIDE, _FEWEST_WINDOWS = 128, 64, 2


def analyze_output_anomaly(
    topk_logprobs: Sequence[Sequence[Sequence[float]]],
    tokens: Sequence[Sequence[int]],
    model_configs: Mapping[str, Any] | None = None,
) -> list[list[Any]]:
    """Return for each request whether it is ill, and the type: 0 normal, 1 rare, 2 garbled, 3 repetition, 4 NaN.

    Args:
        topk_logprobs: Of each request and token, the log-probs of the most probable tokens.
        tokens: Token ids of each request.
        model_configs: Accepted as published; tables of the categories of tokens are not needed.
    """
    del model_configs
    found = [_type_of(own, ids) for own, ids in zip(topk_logprobs, tokens, strict=True)]
    return [[kind != NORMAL, kind] for kind in found]


def _type_of(topk: Sequence[Sequence[float]], tokens: Sequence[int]) -> int:
    if any(math.isnan(value) for each in topk for value in each):
        return NAN
    guard = ResponseGuard()
    if any(each is not None and each.kind is AnomalyKind.LOOP for each in (guard.feed(0, tokens), guard.finish(0))):
        return REPEATED
    best = [max(each) for each in topk if len(each)]
    low = [value < _GARBLED_BELOW for value in best]
    windows = [low[begin : begin + _WINDOW] for begin in range(0, max(1, len(low) - _STRIDE), _STRIDE)]
    if len(low) >= _STRIDE and sum(sum(w) > _GARBLED_SHARE * len(w) for w in windows) > _FEWEST_WINDOWS:
        return GARBLED
    return RARE if any(value < _RARE_BELOW for value in best) else NORMAL
