"""Relative errors estimated from the sketches of two dumps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from msprobe_core.fingerprint.distance import RESOLUTION, WITH_NORM, WITHOUT_NORM, decoded, relative_errors
from msprobe_core.judge.columns import SKETCH_ERROR, SKETCH_LOW
from msprobe_core.judge.joining import filtered_parts, joined
from msprobe_core.store.stored_rows import Rows


def add_sketch_error(rows: Rows) -> Rows:
    """Return ``rows`` with the sketches replaced by ``sketch_error`` and ``sketch_low``, if any pair has two sketches.

    ``sketch_error`` estimates the Euclidean distance over the golden norm, see
    `msprobe_core.fingerprint.distance.relative_error`; ``sketch_low`` is the lower end of its interval of 95%. Both are
    null unless a pair has two finite sketches and equal shapes.
    """
    sides = ("sketch_target", "sketch_golden")
    is_pair = pl.all_horizontal(pl.col(side).is_not_null() for side in sides)
    is_pair &= pl.col("shape_target") == pl.col("shape_golden")
    parts = filtered_parts(rows, [*sides, "norm_golden"], is_pair, "row")
    found = [_errors(pairs, sides) for pairs in parts if pairs.height]
    others = rows.drop(sides)
    return joined(others.with_row_index("row"), pl.concat(found), on="row").drop("row") if found else others


def _errors(pairs: pl.DataFrame, sides: Sequence[str]) -> pl.DataFrame:
    targets, goldens = (decoded(pairs[side].to_list()) for side in sides)
    estimated = relative_errors(targets, goldens)
    by_norm = relative_errors(targets, goldens, pairs["norm_golden"].fill_null(np.nan).to_numpy())
    # The exact norm is a better divisor than the sketch's own estimate, which is the fallback.
    has_no_norm = pairs["norm_golden"].is_null().to_numpy()
    errors = np.where(has_no_norm, estimated, by_norm)
    lows = np.maximum(0, np.where(has_no_norm, WITHOUT_NORM[0], WITH_NORM[0]) * (errors - RESOLUTION))
    found = pl.DataFrame({"row": pairs["row"], SKETCH_ERROR: errors, SKETCH_LOW: lows})
    return found.with_columns(pl.col(SKETCH_ERROR, SKETCH_LOW).fill_nan(None))
