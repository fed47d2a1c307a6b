"""How the error of the tensor that shows a fault best is distributed, where whole tensors were compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from msprobe_core.compare.tensor_pass import PERCENTILES
from msprobe_core.compare.verdict import Verdict
from msprobe_core.model import Role


@dataclass(frozen=True, kw_only=True)
class WorstTensor:
    """The tensor of a faulty call with the largest error, one that the call made before one that it was given.

    Attributes:
        row: Its name.
        absolute: By the names of `PERCENTILES`, the absolute error that so many elements do not exceed.
        relative: The same of relative errors.
    """

    row: str
    absolute: Mapping[str, float]
    relative: Mapping[str, float]


def worst_tensor(rows: pl.DataFrame, entry: str) -> WorstTensor | None:
    """Return the tensor that shows the fault of a call best.

    Args:
        rows: Judged rows.
        entry: Of the call.

    Returns: ``None`` where no tensor of the call is over its limit whose elements were compared.
    """
    if "abs_p50" not in rows.columns:
        return None
    is_over = (pl.col("verdict") == Verdict.ERROR.value) & pl.col("abs_p50").is_not_null()
    own = rows.filter((pl.col("entry") == entry) & is_over)
    if not own.height:
        return None
    worst = own.sort(pl.col("role") == Role.INPUT.value, -pl.col("judged_error"), maintain_order=True).row(
        0, named=True
    )
    absolute, relative = ({name: worst[f"{kind}_{name}"] for name in PERCENTILES} for kind in ("abs", "rel"))
    return WorstTensor(row=worst["name_target"], absolute=absolute, relative=relative)
