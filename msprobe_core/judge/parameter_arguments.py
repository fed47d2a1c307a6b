"""Arguments of calls that are parameters, such as the weight of a linear layer: found by position or by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import polars as pl

from msprobe_core import names
from msprobe_core.judge.joining import filtered, filtered_parts
from msprobe_core.judge.limits import LimitTable
from msprobe_core.judge.verdict import Verdict, differs
from msprobe_core.model import Phase, Role
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_rows import Rows

_STATE = ("weight", "bias", "running_mean", "running_var")
"""Names of arguments that take parameters and other state of a module."""

_SIDES = ("target", "golden")
_KINDS = tuple(f"kind_{side}" for side in _SIDES)
_IDENTITY = ("numel", "max", "min", "mean", "norm", "checksum")
"""Statistics that identify a tensor of any shape: a transposed weight is still the weight."""


def is_at_place_of_parameter(limits: LimitTable, name: str, entry: str) -> pl.Expr:
    """Whether a value is an argument at a position where its API takes parameters or other state of a module.

    Args:
        limits: Define these positions.
        name: Column of row names.
        entry: Column of entry names.
    """
    positions = [f"{api}.{i}" for api, places in limits.parameters.items() for i in places]
    place = pl.col(name).str.extract(names.INPUT_PLACE)
    api = pl.col(entry).str.extract(names.API_OF_FORWARD)
    return pl.concat_str(api, place, separator=".").is_in(positions) | place.is_in(_STATE)


def given_parameters(judged: Rows, limits: LimitTable, parents: Mapping[str, str | None]) -> list[int]:
    """Return the indices of the rows that differ and are parameters given as arguments.

    Args:
        judged: Judged rows.
        limits: The limits in force, which define at which positions APIs take parameters.
        parents: The enclosing calls of the target's calls, to find an argument among its module's parameters.
    """
    identity = [f"{name}_{side}" for name in _IDENTITY for side in _SIDES]
    own = filtered(judged, ["entry", *identity], _is_tensor(Role.PARAMETERS))
    owners = set(own["entry"])
    # Few modules own parameters, so the values of most arguments need no comparison.
    inside = {entry: owner for entry, owner in parents.items() if owner in owners}
    is_given = (
        _is_tensor(Role.INPUT)
        & (pl.col("phase") == Phase.FORWARD.value)
        & ((pl.col("verdict") == Verdict.ERROR.value) | (pl.col("judged_error") > 0))
    )
    is_at_place = is_at_place_of_parameter(limits, "name_target", "entry")
    by_place = _not_made(judged, filtered(judged, identity, is_given & is_at_place, "row"), identity)
    if not inside:
        return by_place
    has_identity = pl.any_horizontal(*[pl.col(f"{n}_{s}").is_not_null() for n in _IDENTITY[1:] for s in _SIDES])
    of_owners = pl.col("entry").replace_strict(inside, default=None, return_dtype=pl.String)
    is_inside = pl.col("entry").is_in(list(inside)) & has_identity
    by_value = [
        part.with_columns(of_owners).join(own, on=["entry", *identity], how="semi", nulls_equal=True)["row"].to_list()
        for part in filtered_parts(judged, ["entry", *identity], is_given & is_inside, "row")
    ]
    return [*by_place, *chain.from_iterable(by_value)]


def _not_made(judged: Rows, given: pl.DataFrame, identity: Sequence[str]) -> list[int]:
    """Return the rows of arguments, except values that a call computes of what is equal, such as ``1 + weight``."""
    if given.is_empty():
        return []
    is_forward = pl.col("phase") == Phase.FORWARD.value
    is_made = is_forward & (pl.col("role") == Role.OUTPUT.value) & differs()
    is_given_other = is_forward & (pl.col("role") != Role.OUTPUT.value) & differs()
    made = filtered(judged, ["entry", *identity], is_made & pl.col("norm_golden").is_not_null())
    made = made.join(filtered(judged, ["entry"], is_given_other).unique(), on="entry", how="anti")
    return given.join(made, on=list(identity), how="anti", nulls_equal=True)["row"].to_list()


def golden_parameters_given(rows: pl.DataFrame, parents: Mapping[str, str | None]) -> pl.Series:
    """Return for each row whether the golden run gives a call a parameter of the module around it, by its statistics.

    Args:
        rows: Aligned rows.
        parents: The enclosing calls of the golden run's calls.
    """
    identity = [f"{name}_golden" for name in _IDENTITY]
    is_tensor = pl.col("kind_golden") == RowKind.TENSOR.value
    own = rows.filter(is_tensor & (pl.col("role") == Role.PARAMETERS.value)).select("entry_golden", *identity).unique()
    owners = {*own["entry_golden"]}
    inside = {entry: owner for entry, owner in parents.items() if owner in owners}
    of_owners = pl.col("entry_golden").replace_strict(inside, default=None, return_dtype=pl.String)
    is_given = is_tensor & (pl.col("role") == Role.INPUT.value) & (pl.col("phase") == Phase.FORWARD.value)
    given = rows.with_row_index("row").filter(is_given & pl.col("norm_golden").is_not_null()).with_columns(of_owners)
    found = given.join(own, on=["entry_golden", *identity], how="semi", nulls_equal=True)["row"]
    return pl.Series("is_given", range(rows.height), dtype=pl.UInt32).is_in(found.to_list())


def _is_tensor(role: Role) -> pl.Expr:
    return (pl.col("role") == role.value) & pl.all_horizontal(pl.col(kind) == RowKind.TENSOR.value for kind in _KINDS)
