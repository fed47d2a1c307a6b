"""The parameters that a step begins with."""

from __future__ import annotations

import polars as pl

from msprobe_core import names


def with_parameter(parameters: pl.DataFrame) -> pl.DataFrame:
    """Return rows of parameters of modules, with ``parameter``: the same for all calls of a module.

    Args:
        parameters: The rows, with ``name_target``.
    """
    name = pl.col("name_target")
    parts = [name.str.extract(names.PARAMETER_ROW, number) for number in (1, 2)]
    return parameters.with_columns(parameter=pl.coalesce(pl.concat_str(parts, separator=" "), name))


def initial_values(parameters: pl.DataFrame) -> pl.DataFrame:
    """Return each parameter as the first call of its module had it: an update within the step may change it later.

    Args:
        parameters: Rows of parameters of modules, with ``name_target``, in execution order.
    """
    return with_parameter(parameters).unique("parameter", keep="first", maintain_order=True)
