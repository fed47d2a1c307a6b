"""Order suspected calls of several ranks by the happens-before order that communication enforces, not by call counts.

A communication call returns data that other ranks have sent. If an input of one of them was wrong already, the call
only carries the error; if all inputs were right and the result is wrong, communication itself is at fault.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import polars as pl

from msprobe_core import names
from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Finding
from msprobe_core.judge.origins import MARGINAL_EXCESS
from msprobe_core.order import Node, Order
from msprobe_core.order.communication_calls import calls_of
from msprobe_core.store.reading import read_dump

_logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SuspectedCall(Generic[T]):
    """A call that is suspected on one rank of a step.

    Attributes:
        found: What it was found as: the caller's own description of it.
        rank: Number of the rank; ``None`` outside of a job, and where ranks were merged.
        entry: The entry of the target's dump where the call stands.
        position: Its place among the calls of its rank.
        excess: Its error in units of what is still allowed.
        communicates: Whether it is a call of communication that received what is right on its own rank.
        num_communications: How many calls of communication its rank had finished before.
    """

    found: T
    rank: int | None
    entry: str
    position: int
    excess: float
    communicates: bool
    num_communications: int

    @property
    def is_marginal(self) -> bool:
        """Whether it is barely beyond its limit: in one of very many calls that happens by chance."""
        return self.excess < MARGINAL_EXCESS


class RankOrder:
    """The order in which the calls of one step, on all of its ranks, can have affected each other."""

    def __init__(self, dumps: Sequence[tuple[int | None, Path]]) -> None:
        """Take rank and dump of each unit of the target; dumps are read again, one after the other, if there are two.

        Ranks without a number of their own, because they were merged for example, cannot be ordered by their
        communication, and neither can dumps that cannot be read any more.
        """
        self._order: Order | None = None
        ranks = {rank: path for rank, path in dumps if rank is not None}
        if len(dumps) < 2 or len(ranks) < len(dumps):
            return
        try:
            self._order = Order(sorted(ranks), (calls_of(read_dump(ranks[rank]), rank) for rank in sorted(ranks)))
        except (CompareError, DumpError) as error:
            _give_up(error)

    @property
    def notes(self) -> Sequence[Finding]:
        """What communication could not be matched."""
        return () if self._order is None else self._order.notes

    def sorted(
        self, calls: Sequence[SuspectedCall[T]], given_wrong: Mapping[int | None, Collection[str]]
    ) -> list[SuspectedCall[T]]:
        """Return the calls, the first divergence first, without carriers.

        Calls barely beyond their limit come last: with very many calls, that happens by chance. Without a
        happens-before order, calls are sorted by the number of communication calls before them.

        Args:
            calls: Of all ranks.
            given_wrong: By rank, the calls of communication that were given what is wrong.
        """
        order = self._order
        if order is not None:
            try:
                made = [call for call in calls if not _is_carrier(call, given_wrong, order)] or calls
                depths = {_node(call): order.depth(*_node(call)) for call in made}
                return sorted(
                    made, key=lambda call: (call.is_marginal, depths[_node(call)], call.rank or 0, call.position)
                )
            except DumpError as error:
                self._order = None
                _give_up(error)
        return sorted(
            calls, key=lambda call: (call.is_marginal, call.num_communications, call.position, call.rank or 0)
        )

    def first(
        self, calls: Sequence[SuspectedCall[T]], given_wrong: Mapping[int | None, Collection[str]]
    ) -> list[SuspectedCall[T]]:
        """Return the calls that none of the others can have affected, as `sorted` returns them.

        Without an order by communication, these are the calls with the fewest calls of communication before them.
        """
        found = self.sorted(calls, given_wrong)
        found = [call for call in found if call.is_marginal == found[0].is_marginal]
        if self._order is not None:
            earliest = {*self._order.earliest(map(_node, found))}
            return [call for call in found if _node(call) in earliest]
        return [call for call in found if call.num_communications == found[0].num_communications]


def communications_before(nodes: pl.DataFrame, position: int) -> int:
    """Return how many calls of communication a rank has finished before a position among its nodes."""
    is_before = (pl.col("position") < position) & pl.col("entry").str.contains(names.COMMUNICATION_FORWARD)
    return int(nodes.select(is_before.sum()).item())


def _node(call: SuspectedCall[T]) -> Node:
    return call.rank or 0, call.entry


def _is_carrier(call: SuspectedCall[T], given_wrong: Mapping[int | None, Collection[str]], order: Order) -> bool:
    return call.communicates and any(entry in given_wrong.get(rank, ()) for rank, entry in order.senders(*_node(call)))


def _give_up(error: Exception) -> None:
    _logger.info("ranks were not ordered by their communication: %s", error)
