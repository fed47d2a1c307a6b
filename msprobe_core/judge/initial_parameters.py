"""The parameters that a step begins with."""

from __future__ import annotations

import polars as pl

from msprobe_core import names


def initial_values(parameters: pl.DataFrame) -> pl.DataFrame:
    """Return each parameter as the first call of its module had it: an update within the step may change it later.

    Args:
        parameters: Rows of parameters of modules, with ``name_target``, in execution order.
    """
    name = pl.col("name_target")
    parts = [name.str.extract(names.PARAMETER_ROW, number) for number in (1, 2)]
    keyed = parameters.with_columns(parameter=pl.coalesce(pl.concat_str(parts, separator=" "), name))
    return keyed.unique("parameter", keep="first", maintain_order=True)
