"""Error that one call's own rounding explains, if all its inputs are bitwise equal.

Such a call inherits no error, so noise that accumulates before it in other runs does not count. It rounds its result
and its intermediate sums; see `msprobe_core.judge.noise.rounding` for the minimum effect of this on each measure.
"""

from __future__ import annotations

import polars as pl

from msprobe_core.judge.columns import SKETCH_ERROR
from msprobe_core.judge.joining import with_added
from msprobe_core.judge.noise.measures import MEASURES, with_measures
from msprobe_core.judge.noise.rounding import least, with_sizes
from msprobe_core.model import Role
from msprobe_core.store.stored_rows import Rows

ALLOWED = 30.0
"""How many times the minimum of one rounding a healthy call may be off.

Sums of some thousand products are off by up to a few times the minimum, and so is a softmax. Measured: up to 12 times,
for averaged measures of calls whose rounding is shared by all elements of a row, as in a normalisation.
"""


_READ = (
    *("role", "judged_error", "precision", "dtype_target", "dtype_golden", "shape_golden"),
    *("numel_golden", "norm_golden", "max_golden", "min_golden"),
    *(f"{name}_diff" for name in ("norm", "mean", "max", "min")),
    *("euclidean", "largest_abs", "scale", SKETCH_ERROR),
)
"""Columns from which the measures are computed; the last four exist if tensors or sketches were compared."""


def with_local_excess(rows: Rows) -> Rows:
    """Return rows with ``local_excess``: the error in units of what the call alone may cause; 0 if no call made it.

    Args:
        rows: Judged rows.
    """
    reads = [name for name in _READ if name in rows.columns]
    return with_added(rows, lambda part: _local_excess(part.select(reads)), reads)


def _local_excess(rows: pl.DataFrame) -> pl.DataFrame:
    is_made = pl.col("role").is_in([Role.OUTPUT.value, Role.PARAMETERS_GRAD.value])
    made = rows.with_row_index("row").filter(is_made & (pl.col("judged_error") > 0) & pl.col("precision").is_not_null())
    measured = with_sizes(with_measures(made))
    scores = [pl.col(measure.column) / least(measure, pl.col("roundoff")) for measure in MEASURES]
    found = measured.select("row", local_excess=(pl.max_horizontal(scores) / ALLOWED).fill_nan(None).fill_null(0.0))
    numbers = rows.select(row=pl.int_range(pl.len(), dtype=pl.UInt32))
    beside = numbers.join(found, on="row", how="left", maintain_order="left")
    return beside.select(pl.col("local_excess").fill_null(0.0))
