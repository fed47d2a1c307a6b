"""From judged rows to culprits: rows with scores, nodes, and suspected calls, each computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from msprobe_core.judge.limits import LimitTable
from msprobe_core.judge.nodes import nodes_of, with_scores
from msprobe_core.judge.origins import MARGINAL_EXCESS, Nesting, Source, find_sources
from msprobe_core.judge.same_gradients import calls_made_good, of_whole_step
from msprobe_core.judge.updates import with_judged_updates
from msprobe_core.order.communication_calls import is_communication
from msprobe_core.store.stored_rows import Rows, frame_of, stored_as


@dataclass(frozen=True)
class Evidence:
    """What the comparison of two dumps reveals about their calls.

    Attributes:
        scored: Rows as returned by `msprobe_core.judge.nodes.with_scores`.
        nodes: Nodes as returned by `msprobe_core.judge.nodes.nodes_of`.
        nesting: Which call encloses which, on both sides.
        sources: The suspected calls, in execution order.
        other_ways: Calls that would be suspected if the gradients of the step did not agree.
    """

    scored: Rows
    nodes: pl.DataFrame
    nesting: Nesting
    sources: Sequence[Source]
    other_ways: Sequence[Source] = ()

    @property
    def rows(self) -> pl.DataFrame:
        """All rows, in memory."""
        return frame_of(self.scored)

    @property
    def given_wrong(self) -> Sequence[str]:
        """The calls of communication that were given what is beyond rounding."""
        return [entry for entry in self.nodes.filter(pl.col("input_excess") > 1)["entry"] if is_communication(entry)]

    @property
    def first(self) -> Source | None:
        """The culprit: the first suspected call; calls barely beyond their limits come last."""

        def key(source: Source) -> tuple[bool, int]:
            return source.size("excess") < MARGINAL_EXCESS, source.node["position"]

        return min(self.sources, key=key, default=None)


def evidence_of(
    rows: Rows,
    limits: LimitTable,
    nesting: Nesting,
    *,
    is_first_step: bool,
    is_foreign: bool,
    is_divided: bool = False,
    before: pl.DataFrame | None = None,
) -> Evidence:
    """Score judged rows, aggregate them to nodes, and find the suspected calls.

    Args:
        rows: Judged rows.
        limits: The limits that the rows were judged by.
        nesting: The nesting of calls on both sides.
        is_first_step: Whether the parameters are the initial ones of the runs.
        is_foreign: Whether the two dumps are from different frameworks.
        is_divided: Whether one side divides the samples into more micro-batches, so that calls are of other samples.
        before: Parameters of the previous step, see `msprobe_core.judge.updates.parameters_of`; ``None`` if unknown.
    """
    scored = with_scores(rows, limits, nesting.target, is_first_step=is_first_step, is_foreign=is_foreign)
    if before is not None:
        scored = stored_as(scored, with_judged_updates(frame_of(scored), before))
    nodes = nodes_of(scored)
    if is_divided:
        nodes = of_whole_step(nodes)
    sources = find_sources(scored, nodes, nesting, is_foreign=is_foreign)
    other_ways = calls_made_good(sources, scored, nodes, nesting)
    kept = [source for source in sources if source not in other_ways] if other_ways else sources
    return Evidence(scored, nodes, nesting, kept, other_ways)
