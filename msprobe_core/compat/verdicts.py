"""The verdict columns of other tools' tables, for scripts that read them: ``--compat a`` and ``--compat c``.

Generation C is ``mindstudio-probe`` 26.x, generation A its predecessor up to 8.x. Their results are reproduced,
including what they miss: an output that is not a tensor and differs, or a row that one side lacks, passes in C. Our
verdict, the exit status and the first fault do not depend on them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from enum import Enum

import numpy as np
import polars as pl

from msprobe_core import names
from msprobe_core.compare.result import Mode
from msprobe_core.compare.tensor_pass import SHAPE_UNMATCHED, UNSUPPORTED
from msprobe_core.compat.highlight import COLOUR, MAX_ROWS, add_highlights
from msprobe_core.compat.highlight import MESSAGES as COLOUR_MESSAGES
from msprobe_core.judge.columns import Match
from msprobe_core.judge.formatting import formatted
from msprobe_core.judge.statistics_columns import STATISTICS
from msprobe_core.judge.verdict import Verdict
from msprobe_core.model import Phase, Role
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_rows import Rows, frame_of

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
"""Any two of these dtypes are compared in generation C; any other dtype only with itself."""

COMPAT_RESULT, COMPAT_MESSAGES = "compat_result", "compat_messages"
"""The columns that `add_verdicts` adds."""


class Generation(Enum):
    """A generation of the established tool."""

    A = "a"
    C = "c"


def add_verdicts(rows: Rows, mode: Mode, generation: Generation, *, has_highlights: bool) -> Rows:
    """Return the rows of a result with ``compat_result`` and ``compat_messages``, and with ``colour`` if wanted.

    Args:
        rows: The judged rows.
        mode: What was compared.
        generation: Whose verdicts.
        has_highlights: Whether to colour suspicious rows by the rules of generation A, which add messages. Rows of
            checksums and of tables with more than `MAX_ROWS` rows are never coloured.
    """
    by_checksum = mode is Mode.CHECKSUM
    is_coloured = has_highlights and not by_checksum and rows.height <= MAX_ROWS

    def judged(part: pl.DataFrame) -> pl.DataFrame:
        rounded = with_metrics_of_tables(part)
        if generation is Generation.A:
            shown, found = rounded, compat_a(rounded, by_checksum=by_checksum)
        else:
            shown, found = rows_of_c(rounded), compat_c(rounded, by_checksum=by_checksum)
        shown = shown.with_columns(found[RESULT].alias(COMPAT_RESULT), found[MESSAGES].alias(COMPAT_MESSAGES))
        if not is_coloured:
            return shown
        coloured = add_highlights(part)
        messages = pl.concat_list(COMPAT_MESSAGES, pl.lit(coloured[COLOUR_MESSAGES]))
        return shown.with_columns(coloured[COLOUR], messages.alias(COMPAT_MESSAGES))

    if isinstance(rows, pl.DataFrame) or not rows.has_whole_entries:
        return judged(frame_of(rows))
    same = [name for name in _SAME if name in rows.columns]  # they need not be written again
    return rows.with_each(lambda part: judged(part).drop(same))


_SAME = ("key", "entry", "name_target", "role", "phase", "messages", "findings", "stack_info")
"""Some columns that no generation changes, of those with the longest texts."""


_SIDES = ("target", "golden")
_IS_PAIR = pl.col("match") == Match.BOTH.value
# For values that a program saved itself, only our dumps say that they are outputs.
_IS_OUTPUT = (pl.col("role") == Role.OUTPUT.value) & (pl.col("phase") != Phase.DEBUG.value)


def rows_of_c(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of generation C: its words for arguments, and fewer pairs.

    It treats a pair whose dtypes differ and are not both floating-point as a row of the target alone.
    """
    renamed = rows.with_columns(
        column
        for side in _SIDES
        for column in (_dtype_of_c(side), _shape_of_c(side), _text_of_c(side), _checksum_of_c(side))
    )
    same = pl.col("dtype_target").eq_missing(pl.col("dtype_golden"))
    both_floats = pl.col("dtype_target").is_in(_FLOATS) & pl.col("dtype_golden").is_in(_FLOATS)
    is_parted = _IS_PAIR & ~(same | both_floats.fill_null(False))
    both_sides = [name for name in rows.columns if name.endswith("_golden")]
    return renamed.with_columns(
        *[pl.when(~is_parted).then(pl.col(name)).alias(name) for name in both_sides],
        pl.when(is_parted).then(pl.lit(Match.TARGET.value)).otherwise(pl.col("match").cast(pl.String)).alias("match"),
    )


_SHAPES = ("torch.Size", "slice")
"""Types of arguments that are shown with a shape instead of statistics."""

_NUMPY_SCALARS = r"^(?:u?int|float|complex|bool)[0-9_]*$"


def _dtype_of_c(side: str) -> pl.Expr:
    kind = pl.col(f"type_{side}")
    of_numpy = formatted("<class '{}'>", kind.str.replace(r"[0-9_]+$", "").str.replace("^u", ""))
    return (
        pl.when(kind.is_in(["slice", "ellipsis"]))
        .then(kind)
        .when(kind == "torch.memory_format")
        .then(pl.lit("<class 'NoneType'>"))
        .when((pl.col(f"kind_{side}") == RowKind.SCALAR.value) & kind.str.contains(_NUMPY_SCALARS))
        .then(of_numpy)
        .otherwise(pl.col(f"dtype_{side}"))
        .alias(f"dtype_{side}")
    )


def _shape_of_c(side: str) -> pl.Expr:
    kind = pl.col(f"type_{side}")
    return (
        pl.when(kind == "torch.Size")
        .then(pl.col(f"text_{side}"))
        .when(kind == "slice")
        .then(pl.lit("(3,)"))
        .otherwise(pl.col(f"shape_{side}"))
        .alias(f"shape_{side}")
    )


def _text_of_c(side: str) -> pl.Expr:
    has_none = pl.col(f"type_{side}").is_in([*_SHAPES, "torch.memory_format"])
    return pl.when(has_none).then(pl.lit("None")).otherwise(pl.col(f"text_{side}")).alias(f"text_{side}")


def _checksum_of_c(side: str) -> pl.Expr:
    kind, text = pl.col(f"type_{side}"), pl.col(f"text_{side}")
    return (
        pl.when(kind.is_in(_SHAPES))
        .then(crc32_of(text))
        .when(kind == "torch.ProcessGroup")
        .then(text)
        .when(kind == "torch.memory_format")
        .then(pl.lit("00000000"))
        .otherwise(pl.col(f"checksum_{side}"))
        .alias(f"checksum_{side}")
    )


def crc32_of(text: pl.Expr) -> pl.Expr:
    """Return the CRC-32 of a text, in 8 hexadecimal digits."""
    return text.map_batches(_crc32_of_texts, return_dtype=pl.String)


def _crc32_of_texts(texts: pl.Series) -> pl.Series:
    distinct = texts.drop_nulls().unique().to_list()
    checksums = [f"{zlib.crc32(text.encode()):08x}" for text in distinct]
    return texts.to_frame("text").select(pl.col("text").replace(distinct, checksums)).to_series()


def with_metrics_of_tables(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with metrics of tensors as in both generations: rounded, and with tiny norms as 0."""
    if "cosine" not in rows.columns:
        return rows
    cosine = pl.col("cosine")
    are_zero = [pl.col(f"norm_{side}").abs() <= _EPSILON for side in _SIDES]
    as_zero = pl.when(pl.all_horizontal(are_zero)).then(1.0).when(pl.any_horizontal(are_zero)).then(float("nan"))
    similarity = pl.when(cosine.is_null()).then(None).otherwise(as_zero.otherwise(cosine))
    return rows.with_columns(
        pl.when(cosine > 0.9999).then(similarity.round(6)).otherwise(similarity.round(12)).alias("cosine"),
        *[_rounded(name) for name in ("largest_abs", "largest_rel", "within_1e3", "within_5e3")],
    )


_EPSILON = float(np.finfo(np.float64).eps)


def _rounded(name: str) -> pl.Expr:
    """Return a metric rounded to 12 decimals; from 10,000 on, float64 has fewer than that."""
    number = pl.col(name)
    return pl.when(number.abs() < 1e4).then(number.round(12)).otherwise(number).alias(name)


def compat_c(rows: pl.DataFrame, *, by_checksum: bool = False) -> pl.DataFrame:
    """Return ``result`` (``pass``, ``warning`` or ``error``) and ``messages`` of generation C.

    Args:
        rows: Judged rows; those of compared tensors have ``cosine`` and ``within_1e3``.
        by_checksum: Whether checksums are compared.
    """
    prepared = _with_api(rows_of_c(rows)).with_row_index("row")
    rules = _checksum_rules() if by_checksum else _value_rules(is_tensor_mode="within_1e3" in rows.columns)
    if not by_checksum:
        prepared = _with_groups(prepared)
    # A call without arguments is never exempt: the original takes the name from the rows of inputs.
    is_receiving = pl.col("api").is_in(RECEIVING_APIS)
    is_exempt = pl.col("has_inputs") & (pl.col("api").is_in(EXEMPT_APIS) | (is_receiving & ~_IS_OUTPUT))
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
    """Add ``api``, the name of the row's API without prefix and number, or null, and ``has_inputs``."""
    entries = rows.group_by("entry").agg((~_IS_OUTPUT).any().alias("has_inputs"))
    api = pl.col("entry").str.extract(names.API_NAME)
    return rows.join(entries.with_columns(api=api), on="entry", how="left", maintain_order="left")


def _with_groups(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the aggregates over a row's entry that the rules need: the extremes of its inputs and of its outputs."""
    both_nothing = pl.all_horizontal(*[pl.col(f"kind_{side}") == RowKind.NONE.value for side in _SIDES])
    is_equal = both_nothing | (pl.col("text_target") == pl.col("text_golden")).fill_null(False)
    is_bool = (pl.col("type_target") == "bool").fill_null(False)
    # In the original table the difference of equal texts is 0, and that of booleans is a text.
    relative = pl.col("norm_rel").abs()
    numbers = {"norm_rel": pl.when(is_equal).then(0.0).when(~is_bool).then(relative)}
    if "within_1e3" in rows.columns:
        numbers |= {"within": pl.col("within_1e3"), "cosine": pl.col("cosine")}
    rows = rows.with_columns(
        pl.when(_IS_PAIR & ~number.is_nan()).then(number).alias(f"c_{name}") for name, number in numbers.items()
    )
    extremes: list[pl.Expr] = []
    for name in numbers:
        for group, belongs in (("in", ~_IS_OUTPUT), ("out", _IS_OUTPUT)):
            own = pl.col(f"c_{name}").filter(belongs & pl.col(f"c_{name}").is_finite())
            extremes.append((own.max() if name == "norm_rel" else own.min()).alias(f"{group}_{name}"))
    first = pl.col("row").filter(_IS_OUTPUT).first().alias("first_output")
    return rows.join(rows.group_by("entry").agg(*extremes, first), on="entry", how="left", maintain_order="left")


def _value_rules(*, is_tensor_mode: bool) -> list[_Rule]:
    is_first = pl.col("row") == pl.col("first_output")
    both_tensors, both_scalars = (
        pl.all_horizontal(*[pl.col(f"kind_{side}") == kind.value for side in _SIDES])
        for kind in (RowKind.TENSOR, RowKind.SCALAR)
    )
    golden_is_special = _is_special("golden").fill_null(False) & _IS_PAIR
    # A call without inputs to compare counts as a call with equal inputs.
    given, made = pl.col("in_norm_rel").fill_null(0.0), pl.col("out_norm_rel")
    is_related = ~(pl.col("has_inputs") & pl.col("api").is_in(RECEIVING_APIS).fill_null(False))
    grew = pl.when(given == 0).then(made > 0.1).otherwise(made / given > 10)
    rules = [
        (
            Verdict.ERROR,
            _is_special("target") & ~golden_is_special,
            "error: There is nan/inf/-inf in the maximum or minimum value of NPU.",
        ),
    ]
    if is_tensor_mode:
        # The text says 0.6, but the limit of the established tool is 0.1.
        rules.append(
            (
                Verdict.ERROR,
                is_related & is_first & (pl.col("in_within").fill_null(1.0) > 0.9) & (pl.col("out_within") < 0.1),
                "error: The input/parameters of One Thousandth Err Ratio > 0.9 while the output < 0.6.",
            )
        )
    else:
        rules.append(
            (
                Verdict.ERROR,
                is_related & _IS_OUTPUT & (given < 0.1) & (pl.col("c_norm_rel") > 0.5),
                "error: The NormRelativeErr of output is greater than 0.5.",
            )
        )
    other_text = pl.col("text_target") != pl.col("text_golden")
    rules += [
        (
            Verdict.ERROR,
            _IS_PAIR & both_tensors & ~pl.col("requires_grad_target").eq_missing(pl.col("requires_grad_golden")),
            "error: The Required_Grad of NPU and Bench are inconsistent",
        ),
        (
            Verdict.ERROR,
            _IS_PAIR & both_scalars & ~_IS_OUTPUT & other_text & pl.col("dtype_target").str.starts_with("<class "),
            "error: The scalar parameters of NPU and Bench are inconsistent.",
        ),
        (
            Verdict.ERROR,
            _IS_PAIR & (pl.col("dtype_target") != pl.col("dtype_golden")),
            "error: The dtype of NPU and Bench are inconsistent.",
        ),
        (
            Verdict.ERROR,
            _IS_PAIR & (pl.col("shape_target") != pl.col("shape_golden")),
            "error: The shape of NPU and Bench are inconsistent.",
        ),
    ]
    if is_tensor_mode:
        given = pl.col("in_cosine").fill_null(1.0)
        drop = given - pl.col("out_cosine")
        text = "warning: The input/parameters of Cosine > 0.9, and input/parameters - output > 0.1"
        return [*rules, (Verdict.WARNING, is_related & is_first & (given > 0.9) & (drop > 0.1), text)]
    text = "warning: The norm relative error of output is 10 times that of input."
    return [*rules, (Verdict.WARNING, is_related & is_first & grew, text)]


def _is_special(side: str) -> pl.Expr:
    return pl.any_horizontal(*[~pl.col(f"{name}_{side}").is_finite() for name in ("max", "min")])


def _checksum_rules() -> list[_Rule]:
    is_tensor = [pl.col(f"kind_{side}") == RowKind.TENSOR.value for side in _SIDES]
    # A tensor without a checksum has one of zeros; any other value has that of its text.
    own, other = (
        pl.when(is_tensor[i])
        .then(pl.col(f"checksum_{side}").fill_null("0" * 8))
        .otherwise(pl.coalesce(f"checksum_{side}", f"text_{side}"))
        for i, side in enumerate(_SIDES)
    )
    differ = _IS_PAIR & (own != other)
    lacks = (own.is_null() != other.is_null()) | (~_IS_PAIR & own.is_not_null())
    return [
        (Verdict.ERROR, differ, "error: The CRC-32 value of NPU differs from that of the bench."),
        (Verdict.WARNING, lacks, "warning: The parameter of NPU does not match the bench."),
    ]


def compat_a(rows: pl.DataFrame, *, by_checksum: bool = False) -> pl.DataFrame:
    """Return ``result`` and ``messages`` of generation A.

    ``result`` is its ``Accuracy Reached or Not`` (``Yes``, ``No``, ``None``, ``Unmatched``) where tensors were
    compared, and otherwise its ``Result``: ``pass`` or ``Different`` for checksums, else ``Warning`` or empty.

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
