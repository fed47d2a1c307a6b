"""The verdict columns of other tools' tables, for scripts that read them: ``--compat a`` and ``--compat c``.

Generation C is ``mindstudio-probe`` 26.x, generation A its predecessor up to 8.x. What they say is reproduced, with
what they overlook: an argument of type bool that differs, or a row that one side lacks, passes in C. Our own verdict,
the exit status and the first fault do not depend on any of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from msprobe_core.compare.align import Match
from msprobe_core.compare.metrics import STATISTICS
from msprobe_core.compare.tensors import SHAPE_UNMATCHED, UNSUPPORTED
from msprobe_core.compare.verdict import Verdict
from msprobe_core.model import Role
from msprobe_core.store.frame import RowKind

RESULT, MESSAGES = "result", "messages"
"""The columns that `compat_a` and `compat_c` return: a text, and a list of texts."""

EXEMPT_APIS = (
    "empty", "empty_like", "numpy", "to", "__setitem__", "empty_with_format", "new_empty_strided", "new_empty",
    "empty_strided",
)  # fmt: skip
"""APIs that generation C never flags."""

RECEIVING_APIS = ("_reduce_scatter_base", "_all_gather_base", "all_to_all_single", "batch_isend_irecv")
"""APIs whose inputs generation C never flags: they are buffers to receive into."""

_FLOATS = ("Float16", "Float32", "Float64", "BFloat16", "torch.float16", "torch.float32", "torch.float64",
           "torch.bfloat16")  # fmt: skip
"""Dtypes of which generation C compares any two; others only with their like."""

_SIDES = ("target", "golden")
_IS_PAIR = pl.col("match") == Match.BOTH.value
_IS_OUTPUT = pl.col("role") == Role.OUTPUT.value


def is_unmatched_c() -> pl.Expr:
    """Whether a row is one that generation C shows without a golden side: its dtypes are none that it compares."""
    same = pl.col("dtype_target").eq_missing(pl.col("dtype_golden"))
    both_floats = pl.col("dtype_target").is_in(_FLOATS) & pl.col("dtype_golden").is_in(_FLOATS)
    return ~(_IS_PAIR & (same | both_floats.fill_null(False)))


def compat_c(rows: pl.DataFrame, *, by_checksum: bool = False) -> pl.DataFrame:
    """Return ``result`` (``pass``, ``warning`` or ``error``) and ``messages`` as generation C has them.

    Args:
        rows: Judged rows; those of compared tensors have ``cosine`` and ``within_1e3``.
        by_checksum: Whether checksums are compared.
    """
    prepared = _with_api(rows).with_row_index("row")
    rules = _checksum_rules() if by_checksum else _value_rules(is_tensor_mode="within_1e3" in rows.columns)
    if not by_checksum:
        prepared = _with_groups(prepared)
    is_exempt = pl.col("api").is_in(EXEMPT_APIS) | (pl.col("api").is_in(RECEIVING_APIS) & ~_IS_OUTPUT)
    applies = [
        (level, condition.fill_null(False) & ~is_exempt.fill_null(False), text) for level, condition, text in rules
    ]
    return prepared.select(
        pl.when(_any_of(applies, Verdict.ERROR))
        .then(pl.lit(Verdict.ERROR.value))
        .when(_any_of(applies, Verdict.WARNING))
        .then(pl.lit(Verdict.WARNING.value))
        .otherwise(pl.lit(Verdict.PASS.value))
        .alias(RESULT),
        pl.concat_list(pl.when(condition).then(pl.lit(text)) for _, condition, text in applies)
        .list.drop_nulls()
        .alias(MESSAGES),
    )


_Rule = tuple[Verdict, pl.Expr, str]


def _any_of(rules: Sequence[_Rule], level: Verdict) -> pl.Expr:
    return pl.any_horizontal(pl.lit(value=False), *[condition for own, condition, _ in rules if own is level])


def _with_api(rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``api``, the name of the API that a row is of, without its prefix and number; null for other entries."""
    entries = rows.select("entry").unique()
    api = pl.col("entry").str.extract(r"^[^.]+\.(.+)\.\d+\.(?:forward|backward)$")
    return rows.join(entries.with_columns(api=api), on="entry", how="left", maintain_order="left")


def _with_groups(rows: pl.DataFrame) -> pl.DataFrame:
    """Add what the rules know of a row's entry: the extremes among what the call was given, and among its outputs."""
    is_known = ~is_unmatched_c()
    both_nothing = pl.all_horizontal(*[pl.col(f"kind_{side}") == RowKind.NONE.value for side in _SIDES])
    is_equal = both_nothing | (pl.col("text_target") == pl.col("text_golden")).fill_null(False)
    is_bool = (pl.col("type_target") == "bool").fill_null(False)
    # Equal texts differ by 0 in the established table, and booleans by a text.
    numbers = {"norm_rel": pl.when(is_equal).then(0.0).when(~is_bool).then(pl.col("norm_rel").abs())}
    if "within_1e3" in rows.columns:
        numbers |= {"within": pl.col("within_1e3"), "cosine": pl.col("cosine")}
    rows = rows.with_columns(
        pl.when(is_known & ~number.is_nan()).then(number).alias(f"c_{name}") for name, number in numbers.items()
    )
    extremes: list[pl.Expr] = []
    for name in numbers:
        for group, belongs in (("in", ~_IS_OUTPUT), ("out", _IS_OUTPUT)):
            own = pl.col(f"c_{name}").filter(belongs)
            extremes.append((own.max() if name == "norm_rel" else own.min()).alias(f"{group}_{name}"))
    first = pl.col("row").filter(_IS_OUTPUT).first().alias("first_output")
    return rows.join(rows.group_by("entry").agg(*extremes, first), on="entry", how="left", maintain_order="left")


def _value_rules(*, is_tensor_mode: bool) -> list[_Rule]:
    is_known = ~is_unmatched_c()
    is_first = pl.col("row") == pl.col("first_output")
    both_tensors, both_scalars = (
        pl.all_horizontal(*[pl.col(f"kind_{side}") == kind.value for side in _SIDES])
        for kind in (RowKind.TENSOR, RowKind.SCALAR)
    )
    golden_is_special = _is_special("golden").fill_null(False) & is_known
    given, made = pl.col("in_norm_rel"), pl.col("out_norm_rel")
    grew = pl.when(given == 0).then(made > 0.1).otherwise(made / given > 10)
    rules = [
        (
            Verdict.ERROR,
            _is_special("target") & ~golden_is_special,
            "error: There is nan/inf/-inf in the maximum or minimum value of NPU.",
        ),
    ]
    if is_tensor_mode:
        # The text says 0.6, the established tool takes 0.1.
        rules.append(
            (
                Verdict.ERROR,
                is_first & (pl.col("in_within") > 0.9) & (pl.col("out_within") < 0.1),
                "error: The input/parameters of One Thousandth Err Ratio > 0.9 while the output < 0.6.",
            )
        )
    else:
        rules.append(
            (
                Verdict.ERROR,
                _IS_OUTPUT & (given < 0.1) & (pl.col("c_norm_rel") > 0.5),
                "error: The NormRelativeErr of output is greater than 0.5.",
            )
        )
    other_text = pl.col("text_target") != pl.col("text_golden")
    rules += [
        (
            Verdict.ERROR,
            is_known & both_tensors & ~pl.col("requires_grad_target").eq_missing(pl.col("requires_grad_golden")),
            "error: The Required_Grad of NPU and Bench are inconsistent",
        ),
        (
            Verdict.ERROR,
            is_known & both_scalars & other_text & (pl.col("type_target") != "bool"),
            "error: The scalar parameters of NPU and Bench are inconsistent.",
        ),
        (
            Verdict.ERROR,
            is_known & (pl.col("dtype_target") != pl.col("dtype_golden")),
            "error: The dtype of NPU and Bench are inconsistent.",
        ),
        (
            Verdict.ERROR,
            is_known & (pl.col("shape_target") != pl.col("shape_golden")),
            "error: The shape of NPU and Bench are inconsistent.",
        ),
    ]
    if is_tensor_mode:
        drop = pl.col("in_cosine") - pl.col("out_cosine")
        text = "warning: The input/parameters of Cosine > 0.9, and input/parameters - output > 0.1"
        return [*rules, (Verdict.WARNING, is_first & (pl.col("in_cosine") > 0.9) & (drop > 0.1), text)]
    text = "warning: The norm relative error of output is 10 times that of input."
    return [*rules, (Verdict.WARNING, is_first & grew, text)]


def _is_special(side: str) -> pl.Expr:
    return pl.any_horizontal(*[~pl.col(f"{name}_{side}").is_finite() for name in ("max", "min")])


def _checksum_rules() -> list[_Rule]:
    is_tensor = [pl.col(f"kind_{side}") == RowKind.TENSOR.value for side in _SIDES]
    # A tensor without a checksum is shown with one of zeros; anything else with that of its text.
    own, other = (
        pl.when(is_tensor[i]).then(pl.col(f"checksum_{side}").fill_null("0" * 8)).otherwise(pl.col(f"text_{side}"))
        for i, side in enumerate(_SIDES)
    )
    is_known = ~is_unmatched_c()
    differ = is_known & (own != other)
    lacks = (own.is_null() != other.is_null()) | (~is_known & own.is_not_null())
    return [
        (Verdict.ERROR, differ, "error: The CRC-32 value of NPU differs from that of the bench."),
        (Verdict.WARNING, lacks, "warning: The parameter of NPU does not match the bench."),
    ]


def compat_a(rows: pl.DataFrame, *, by_checksum: bool = False) -> pl.DataFrame:
    """Return ``result`` and ``messages`` as generation A has them.

    ``result`` is its ``Accuracy Reached or Not`` (``Yes``, ``No``, ``None``, ``Unmatched``) where tensors were
    compared, and otherwise its ``Result``: ``pass`` or ``Different`` of checksums, ``Warning`` or nothing of the rest.

    Args:
        rows: Judged rows; those of compared tensors have ``cosine``, ``largest_abs`` and ``status``.
        by_checksum: Whether checksums are compared.
    """
    nothing = pl.lit([], dtype=pl.List(pl.String)).alias(MESSAGES)
    if by_checksum:
        differs = compat_c(rows, by_checksum=True)[RESULT] != Verdict.PASS.value
        texts = pl.when(differs).then(pl.lit("Different")).otherwise(pl.lit("pass"))
        return rows.select(texts.alias(RESULT), nothing)
    if "within_1e3" in rows.columns:
        return rows.select(_accuracy().alias(RESULT), nothing)
    is_suspicious = pl.any_horizontal(*[_differs_by_half(name) for name in STATISTICS]).fill_null(False) & _IS_PAIR
    text = pl.lit(["Need double check api accuracy."], dtype=pl.List(pl.String))
    return rows.select(
        pl.when(is_suspicious).then(pl.lit("Warning")).otherwise(pl.lit("")).alias(RESULT),
        pl.when(is_suspicious).then(text).otherwise(pl.lit([], dtype=pl.List(pl.String))).alias(MESSAGES),
    )


def _accuracy() -> pl.Expr:
    cosine, largest = pl.col("cosine"), pl.col("largest_abs")
    status = pl.when(_IS_PAIR).then(pl.col("status")).otherwise(pl.lit(UNSUPPORTED))
    is_missing = cosine.is_null() | largest.is_null()
    is_off = ((cosine < 0.99) & (largest > 0.001)) | (cosine < 0.9) | (largest > 1)
    return (
        pl.when(is_missing & (status == SHAPE_UNMATCHED))
        .then(pl.lit("Unmatched"))
        .when(is_missing & (status == UNSUPPORTED))
        .then(pl.lit("None"))
        .when(is_missing | cosine.is_nan() | largest.is_nan() | is_off)
        .then(pl.lit("No"))
        .otherwise(pl.lit("Yes"))
    )


def _differs_by_half(name: str) -> pl.Expr:
    target, golden = pl.col(f"{name}_target"), pl.col(f"{name}_golden")
    share = (target - golden).abs() / (pl.max_horizontal(target.abs(), golden.abs()) + 1e-10)
    return share.is_finite() & (share > 0.5)
