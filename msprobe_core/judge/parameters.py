"""Which arguments of calls are parameters, such as the weight of a linear layer: by position or by value."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from msprobe_core import names
from msprobe_core.judge.limits import LimitTable
from msprobe_core.judge.verdict import Verdict
from msprobe_core.model import Phase, Role
from msprobe_core.store.frame import RowKind

_STATE = ("weight", "bias", "running_mean", "running_var")
"""Names under which calls get parameters and other state of a module."""

_SIDES = ("target", "golden")
_IDENTITY = ("numel", "max", "min", "mean", "norm", "checksum")
"""By what a tensor is known again, whatever its shape: a transposed weight is the weight."""


def is_at_place_of_parameter(limits: LimitTable, name: str, entry: str) -> pl.Expr:
    """Whether a value is an argument at a place where its API takes parameters or other state of a module.

    Args:
        limits: Say which places these are.
        name: Column of the row's name.
        entry: Column of the entry's.
    """
    positions = [f"{api}.{i}" for api, places in limits.parameters.items() for i in places]
    place = pl.col(name).str.extract(names.INPUT_PLACE)
    api = pl.col(entry).str.extract(names.API_OF_FORWARD)
    return pl.concat_str(api, place, separator=".").is_in(positions) | place.is_in(_STATE)


def given_parameters(
    judged: pl.DataFrame, limits: LimitTable, parents: Mapping[str, str | None] | None, *, which: pl.Expr | None = None
) -> list[int]:
    """Return the row numbers of the arguments that are over their limits and are parameters.

    Args:
        judged: Judged rows.
        limits: Those in force, which say at which position an API has a parameter.
        parents: The enclosing call of each of the target's, which tells whose parameter an argument is; without, only
            its position does.
        which: The rows to look at, instead of those over their limits.
    """
    failing = judged.with_row_index("row").filter(
        (pl.col("verdict") == Verdict.ERROR.value if which is None else which)
        & (pl.col("role") == Role.INPUT.value)
        & (pl.col("phase") == Phase.FORWARD.value)
        & (pl.col("kind_target") == RowKind.TENSOR.value)
        & (pl.col("kind_golden") == RowKind.TENSOR.value)
    )
    if not failing.height:
        return []
    by_place = failing.filter(is_at_place_of_parameter(limits, "name_target", "entry"))["row"].to_list()
    if parents is None:
        return by_place
    own_parents = {entry: parents.get(entry) for entry in failing["entry"].unique()}
    identity = pl.concat_str(
        [pl.col(f"{n}_{s}").cast(pl.String).fill_null("") for n in _IDENTITY for s in _SIDES], separator=" "
    )
    has_identity = pl.any_horizontal(*[pl.col(f"{n}_{s}").is_not_null() for n in _IDENTITY[1:] for s in _SIDES])
    called = failing.filter(has_identity).select(
        "row",
        identity.alias("identity"),
        entry=pl.col("entry").replace_strict(own_parents, default=None, return_dtype=pl.String),
    )
    is_parameter = (pl.col("role") == Role.PARAMETERS.value) & (pl.col("kind_target") == RowKind.TENSOR.value)
    own = judged.lazy().filter(is_parameter).select("entry", identity.alias("identity")).collect()
    by_value = called.join(own, on=["entry", "identity"], how="semi")["row"].to_list()
    return [*by_place, *by_value]
