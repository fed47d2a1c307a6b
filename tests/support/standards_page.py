"""Write ``docs/standards.md``: the published standards of single calls, from ``standards.yaml``.

python tests/support/standards_page.py
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from msprobe_core.api_check.standards import Algorithm, Condition, Standards, power_text, standards

PAGE = Path(__file__).parents[2] / "docs" / "standards.md"

_CONDITIONS = {
    Condition.OUTPUT_FLOAT8: "the result is of {float8}",
    Condition.INPUT_FLOAT8: "an input is of {float8}",
    Condition.OUTPUT_FLOAT: "the result is of {float}",
    Condition.OTHER: "otherwise",
}

_HEAD = """\
# Published standards of single calls

Acceptance standards that others use for the result of one call, with their numbers in version {version} of
`msprobe_core/api_check/standards.yaml`. `msprobe acc_check` computes their metrics and what each standard says, as
columns of its own table and of the published tables; its verdict does not follow from them.
`msprobe api_precision_compare` judges by the ratios below. `make standards` writes this page from the file.

Definitions of the metrics are in `msprobe_core.api_check.published`; the golden values are a replay in float64.

## Which standard applies

The first of these that holds:

{selection}

## The six standards

{algorithms}

## Constants by dtype

{constants}

`golden_eps` is added to the golden magnitude in relative errors. A golden magnitude below `small_value` is small: its
absolute error counts, and is limited by `absolute_atol` in the absolute threshold standard and by `benchmark_atol` in
the benchmark standard; relative errors of the others are limited by `rtol`. In the accumulative standard, values below
{accumulative} are small. `minimum_error` is what a metric of the golden side counts as at least.

## Errors in units in the last place

{ulp}

A result passes if its mean is below `mean`, the share of elements beyond `threshold` units below `share`, or that share
less than `ratio` times that of the golden side.

## Limits of ratios

A metric of the target, divided by that of the golden side, must not exceed:

{classes}

The share of small values with an error is limited by {small} times that of the golden side. The error balance is
reported with a limit of {balance}, and not counted.

## The rules for one side alone

In this order, for one result:

{plain}

## Single benchmark

With relative errors `|result - golden| / (|golden| + {eps})`, the mean is below the threshold and the largest below
{factor} times the threshold:

{single}

`hfloat32` is for calls that round their float32 inputs to 10 bits, as convolutions on some devices do; no result has
that dtype.

## torch.testing

`|result - golden| <= atol + rtol * |golden|` for every element, as `torch.testing.assert_close` of PyTorch 2.13 has it:

{torch}

## APIs in lists of earlier releases

Until January 2026 the published tool chose the standard by these lists. They select nothing now, because the conditions
above come first.

{earlier}

## Where documents and behaviour differ

{drifts}

## Where msprobe differs from the published tool

{differences}
"""


def page() -> str:
    """Return the page."""
    table = standards()
    return _HEAD.format(
        version=table.version,
        selection=_selection(table),
        algorithms=_rows(
            ("standard", "label in tables", "a result passes if"),
            [(name.value, text.label, text.rule) for name, text in table.algorithms.items()],
        ),
        constants=_by_name("dtype", table.dtypes),
        accumulative=_text(table.accumulative_small_value),
        ulp=_ulp(table),
        classes=_rows(
            ("class", "largest relative error", "mean relative error", "RMSE", "APIs"),
            [
                (name, *map(_text, (own.max_relative, own.mean_relative, own.rmse)), _names(own.apis) or "all others")
                for name, own in table.classes.items()
            ],
        ),
        small=_text(table.small_value_ratio),
        balance=_text(table.error_balance_ratio),
        plain=_plain(table),
        eps=_text(table.single_benchmark.eps),
        factor=_text(table.single_benchmark.max_factor),
        single=_rows(
            ("dtype", "threshold"), [(name, _text(each)) for name, each in table.single_benchmark.thresholds.items()]
        ),
        torch=_by_name("dtype", table.torch_testing),
        earlier=_rows(
            ("standard", "APIs"), [(name.value, _names(apis)) for name, apis in table.earlier_apis.items()]
        ),
        drifts=_rows(
            ("what", "behaviour", "documents"), [(each.what, each.behaviour, each.documented) for each in table.drifts]
        ),
        differences="\n".join(f"* {text}" for text in table.differences),
    )  # fmt: skip


def _selection(table: Standards) -> str:
    dtypes = {"float8": _names(sorted(table.float8_dtypes)), "float": _names(sorted(table.float_dtypes))}
    rows = [(_CONDITIONS[choice.condition].format(**dtypes), choice.algorithm.value) for choice in table.selection]
    skipped = _names(sorted(table.skipped_dtypes))
    note = f"Tables have no metrics of a standard for {skipped}, and `msprobe api_precision_compare` skips their rows."
    return f"{_rows(('if', 'standard'), rows)}\n\n{note}"


def _ulp(table: Standards) -> str:
    rows = []
    for name, form in table.ulp_formats.items():
        limits = table.ulp_limits[name]
        cells = [form.min_exponent, form.mantissa_bits, form.threshold, limits.mean, limits.share, limits.ratio]
        rows.append((name, *("" if cell is None else _text(cell) for cell in cells)))
    return _rows(("dtype", "smallest exponent", "fraction bits", "`threshold`", "`mean`", "`share`", "`ratio`"), rows)


def _plain(table: Standards) -> str:
    values = msgspec.structs.asdict(table.plain)
    shown = {
        name: _names(sorted(value)) if isinstance(value, frozenset) else _text(value) for name, value in values.items()
    }
    return _PLAIN.format(**shown).strip()


_PLAIN = """
1. Integers and booleans pass if no element differs.
2. Results of {quantization_apis} pass if no element is off by more than {quantization_max_absolute}.
3. Results of {dropout_apis} with {dropout_min_elements} elements or more pass if the numbers of zeros differ by less
   than {dropout_zero_share} of the elements.
4. A cosine similarity of {cosine} or less, or one side of zeros only, is an error; a single element has no cosine. A
   side with no magnitude above {zero} is one of zeros.
5. A largest absolute error below {max_absolute} passes, without further checks.
6. float16 and bfloat16: an error unless more than {half_within_percent} of the elements are within 1 %, and a warning
   unless more than {half_within_thousandth} are within 0.1 %.
7. Other floats: an error unless more than {single_within_thousandth} are within 0.1 %, and a warning unless more than
   {single_within_ten_thousandth} are within 0.01 %.
"""


def _by_name(title: str, parts: dict[str, object]) -> str:
    fields = next(iter(parts.values())).__struct_fields__
    rows = [(name, *(_text(getattr(part, field)) for field in fields)) for name, part in parts.items()]
    return _rows((title, *(f"`{field}`" for field in fields)), rows)


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _text(value: float) -> str:
    return power_text(float(value))


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    assert set(Algorithm) == set(standards().algorithms)
    PAGE.write_text(page(), encoding="utf-8")
