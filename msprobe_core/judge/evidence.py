"""From judged rows to culprits: rows with scores, nodes, and the calls that are suspected, each computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from msprobe_core.judge.limits import LimitTable
from msprobe_core.judge.nodes import nodes_of, with_scores
from msprobe_core.judge.origins import MARGINAL_EXCESS, Nesting, Source, find_sources
from msprobe_core.judge.updates import with_judged_updates


@dataclass(frozen=True)
class Evidence:
    """What the comparison of two dumps says of their calls.

    Attributes:
        rows: As `msprobe_core.judge.nodes.with_scores` returns them.
        nodes: As `msprobe_core.judge.nodes.nodes_of` returns them.
        nesting: Which call encloses which.
        sources: The calls that are suspected, in execution order.
    """

    rows: pl.DataFrame
    nodes: pl.DataFrame
    nesting: Nesting
    sources: Sequence[Source]

    @property
    def first(self) -> Source | None:
        """The culprit: the first that is suspected; what is barely beyond its limit comes after all else."""

        def key(source: Source) -> tuple[bool, int]:
            return source.size("excess") < MARGINAL_EXCESS, source.node["position"]

        return min(self.sources, key=key, default=None)


def evidence_of(
    rows: pl.DataFrame,
    limits: LimitTable,
    nesting: Nesting,
    *,
    is_first_step: bool,
    is_foreign: bool,
    before: pl.DataFrame | None = None,
) -> Evidence:
    """Return what judged rows say of the calls.

    Args:
        rows: Judged.
        limits: Those they were judged by.
        nesting: Of both sides.
        is_first_step: Whether parameters are those that the runs began with.
        is_foreign: Whether the two are of different frameworks.
        before: The parameters of the step before, see `msprobe_core.judge.updates.parameters_of`; ``None`` if unknown.
    """
    scored = with_scores(rows, limits, nesting.target, is_first_step=is_first_step, is_foreign=is_foreign)
    if before is not None:
        scored = with_judged_updates(scored, before)
    nodes = nodes_of(scored)
    return Evidence(scored, nodes, nesting, find_sources(scored, nodes, nesting, is_foreign=is_foreign))
