"""Recording of parts of tensors: the settings ``slice`` and ``request_id``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from msprobe_core.config import TaskOptions
from msprobe_core.config.schema import SliceRule

_logger = logging.getLogger(__name__)


class Slices:
    """Determines from a tensor's shape which part of it is recorded.

    A rule applies to tensors that have its dimension, with its size if the rule names one. Several rules for one
    dimension keep the intersection of their ranges.
    """

    def __init__(self, options: TaskOptions) -> None:
        """Begin with the rules of the configuration."""
        self._rules: Sequence[SliceRule] = options.slice
        self._own_rules = options.slice
        self._request_id = options.request_id

    def follow(self, scheduled_tokens: object) -> bool:
        """Set the next batch, and return whether it is recorded.

        Args:
            scheduled_tokens: Number of tokens of each request in the batch, by request, in the order of dimension 0;
                ``None`` if not given.

        Returns: false if there is a ``request_id`` and the batch does not contain it. Without a ``request_id``, or with
            missing or wrong numbers, everything is recorded.
        """
        self._rules = self._own_rules
        if not self._request_id:
            return True
        numbers = _checked(scheduled_tokens)
        if numbers is None:
            _logger.warning(
                "'request_id' is %r, but start() got %s as scheduled_tokens, not a dict from request to number of "
                "tokens (at least 1); whole batches are recorded",
                self._request_id,
                "nothing" if scheduled_tokens is None else repr(scheduled_tokens)[:80],
            )
            return True
        if self._request_id not in numbers:
            _logger.info("the request %r is not in this batch, which is not recorded", self._request_id)
            return False
        order = list(numbers)
        begin = sum(numbers[request] for request in order[: order.index(self._request_id)])
        rule = SliceRule(size=sum(numbers.values()), begin=begin, end=begin + numbers[self._request_id])
        self._rules = (*self._own_rules, rule)
        return True

    def ranges(self, shape: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the part of a tensor of this shape to record: begin and end by dimension; empty for the whole."""
        ranges: dict[int, tuple[int, int]] = {}
        for rule in self._rules:
            if rule.dim < len(shape) and rule.size in {None, shape[rule.dim]}:
                begin, end, _ = slice(rule.begin, rule.end).indices(shape[rule.dim])
                known_begin, known_end = ranges.get(rule.dim, (0, shape[rule.dim]))
                begin = max(begin, known_begin)
                ranges[rule.dim] = (begin, max(begin, min(end, known_end)))
        return {dim: part for dim, part in ranges.items() if part != (0, shape[dim])}


def narrowed_shape(shape: Sequence[int], ranges: Mapping[int, tuple[int, int]]) -> tuple[int, ...]:
    """Return the shape of the part given by ``ranges``."""
    return tuple(ranges[dim][1] - ranges[dim][0] if dim in ranges else size for dim, size in enumerate(shape))


def _checked(scheduled_tokens: object) -> dict[str, int] | None:
    """Return the numbers of tokens; ``None`` if they are not valid."""
    if not isinstance(scheduled_tokens, Mapping):
        return None
    items = dict(cast("Mapping[Any, Any]", scheduled_tokens))
    is_sound = all(isinstance(key, str) and type(number) is int and number > 0 for key, number in items.items())
    return items if items and is_sound else None
