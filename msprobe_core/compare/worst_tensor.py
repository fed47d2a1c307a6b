"""Error distribution of the tensor that shows a fault best, if whole tensors were compared."""

from __future__ import annotations

import polars as pl

from msprobe_core.compare.post_processing import PostProcessing
from msprobe_core.compare.tensor_pass import PERCENTILES, stored_pairs
from msprobe_core.compare.tokens import has_tokens, token_errors, worst_tokens
from msprobe_core.errors import DumpError
from msprobe_core.judge.error_distribution import WorstTensor, WorstTokens
from msprobe_core.judge.verdict import Verdict
from msprobe_core.model import Role
from msprobe_core.protocols.storage import Dump


def worst_tensor(
    rows: pl.DataFrame, entry: str, target: Dump, golden: Dump, post_processing: PostProcessing | None = None
) -> WorstTensor | None:
    """Return the tensor that shows the fault of a call best.

    Args:
        rows: Judged rows.
        entry: Entry of the call.
        target: The target dump.
        golden: The golden dump.
        post_processing: Matrices by which tensors are multiplied before comparison.

    Returns: ``None`` if no compared tensor of the call is over its limit.
    """
    if "worst_index" not in rows.columns:
        return None
    is_over = (pl.col("verdict") == Verdict.ERROR.value) & pl.col("worst_index").is_not_null()
    own = rows.filter((pl.col("entry") == entry) & is_over)
    if not own.height:
        return None
    role, error = pl.col("role"), pl.col("judged_error").fill_null(float("inf"))
    is_output = role == Role.OUTPUT.value
    worst = own.sort(~is_output, role == Role.INPUT.value, -error, nulls_last=True, maintain_order=True).head(1)
    found = worst.row(0, named=True)
    absolute, relative = (
        {name: value for name in PERCENTILES if (value := found[f"{kind}_{name}"]) is not None}
        for kind in ("abs", "rel")
    )
    tokens = _tokens(worst, target, golden, post_processing) if worst.select(is_output).item() else None
    return WorstTensor(row=found["name_target"], absolute=absolute, relative=relative, tokens=tokens)


def _tokens(
    row: pl.DataFrame, target: Dump, golden: Dump, post_processing: PostProcessing | None
) -> WorstTokens | None:
    (pair,) = stored_pairs(row, target, golden, post_processing or PostProcessing())
    if pair is None:
        return None
    try:
        sources = [side.open()[0] for side in pair]
        if sources[0].shape != sources[1].shape or not has_tokens(sources[0].shape):
            return None
        return worst_tokens(token_errors(*sources))
    except DumpError:  # its metrics report the problem
        return None
