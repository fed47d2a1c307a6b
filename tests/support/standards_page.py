"""Write ``docs/standards.md`` and its Chinese page: the published standards of single calls, from ``standards.yaml``.

The text around the numbers is in ``tests/data/standards``: a page with places for each language, and in ``zh.yaml`` the
Chinese for each English text of ``standards.yaml``.

python tests/support/standards_page.py
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from msprobe_core.api_check.standards import Algorithm, Condition, Standards, standards
from msprobe_core.findings import Language

_TESTS = Path(__file__).parents[1]

PAGES = {
    Language.ENGLISH: _TESTS.parent / "docs" / "standards.md",
    Language.CHINESE: _TESTS.parent / "docs" / "zh" / "standards.md",
}

_CONDITIONS = {
    Condition.OUTPUT_FLOAT8: "the result is of {float8}",
    Condition.INPUT_FLOAT8: "an input is of {float8}",
    Condition.OUTPUT_FLOAT: "the result is of {float}",
    Condition.OTHER: "otherwise",
}


@dataclass(frozen=True)
class _Words:
    """How a language says what is English in the data, and how it lists names."""

    chinese: Mapping[str, str] | None

    def __call__(self, text: str) -> str:
        if self.chinese is None or not re.search("[a-z]{2}", text):
            return text
        assert text in self.chinese, f"tests/data/standards/zh.yaml has no Chinese for {text!r}"
        return self.chinese[text]

    def names(self, names: Iterable[str]) -> str:
        comma = ", " if self.chinese is None else "、"
        return comma.join(f"`{name}`" for name in names)


def page(language: Language) -> str:
    """Return the page in a language."""
    table = standards()
    say = _Words(chinese() if language is Language.CHINESE else None)
    template = (_TESTS / "data" / "standards" / f"{language.value}.md").read_text(encoding="utf-8")
    return template.format(
        version=table.version,
        selection=_selection(table, say),
        skipped=say.names(sorted(table.skipped_dtypes)),
        algorithms=_rows([(name.value, text.label, say(text.rule)) for name, text in table.algorithms.items()]),
        constants=_by_name("dtype", table.dtypes),
        accumulative=power_text(table.accumulative_small_value),
        ulp=_ulp(table),
        classes=_classes(table, say),
        small=power_text(table.small_value_ratio),
        balance=power_text(table.error_balance_ratio),
        plain=_plain(table, say),
        eps=power_text(table.single_benchmark.eps),
        factor=power_text(table.single_benchmark.max_factor),
        single=_rows((name, power_text(each)) for name, each in table.single_benchmark.thresholds.items()),
        torch=_by_name("dtype", table.torch_testing),
        earlier=_rows((name.value, say.names(apis)) for name, apis in table.earlier_apis.items()),
        drifts=_rows((say(each.what), say(each.behaviour), say(each.documented)) for each in table.drifts),
        differences="\n".join(f"* {say(text)}" for text in table.differences),
    )


def chinese() -> dict[str, str]:
    """Return the Chinese for each English text of the data."""
    text = (_TESTS / "data" / "standards" / "zh.yaml").read_text(encoding="utf-8")
    return msgspec.yaml.decode(text, type=dict[str, str])


def english() -> set[str]:
    """Return each English text of the data that has to be translated."""
    table = standards()
    texts = [*_CONDITIONS.values(), "all others", *table.differences]
    texts += [text.rule for text in table.algorithms.values()]
    texts += [text for each in table.drifts for text in (each.what, each.behaviour, each.documented)]
    return {text for text in texts if re.search("[a-z]{2}", text)}


def _selection(table: Standards, say: _Words) -> str:
    dtypes = {"float8": say.names(sorted(table.float8_dtypes)), "float": say.names(sorted(table.float_dtypes))}
    return _rows(
        (say(_CONDITIONS[choice.condition]).format(**dtypes), choice.algorithm.value) for choice in table.selection
    )


def _classes(table: Standards, say: _Words) -> str:
    rows = []
    for name, own in table.classes.items():
        limits = map(power_text, (own.max_relative, own.mean_relative, own.rmse))
        rows.append((name, *limits, say.names(own.apis) or say("all others")))
    return _rows(rows)


def _ulp(table: Standards) -> str:
    rows = []
    for name, form in table.ulp_formats.items():
        limits = table.ulp_limits[name]
        cells = [form.min_exponent, form.mantissa_bits, form.threshold, limits.mean, limits.share, limits.ratio]
        rows.append((name, *("" if cell is None else power_text(cell) for cell in cells)))
    return _rows(rows)


def _plain(table: Standards, say: _Words) -> dict[str, str]:
    return {
        name: say.names(sorted(value)) if isinstance(value, frozenset) else power_text(value)
        for name, value in msgspec.structs.asdict(table.plain).items()
    }


def _by_name(title: str, parts: dict[str, object]) -> str:
    fields = next(iter(parts.values())).__struct_fields__
    header = [(title, *(f"`{field}`" for field in fields)), ["---"] * (len(fields) + 1)]
    rows = [(name, *(power_text(getattr(part, field)) for field in fields)) for name, part in parts.items()]
    return _rows([*header, *rows])


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in rows)


def power_text(value: float) -> str:
    """Return a number as it is written in ``standards.yaml``: as a power of two if it is one below a hundredth."""
    exponent = next((e for e in range(7, 64) if value == 2.0**-e), None)
    return f"2^-{exponent}" if exponent is not None else f"{value:g}"


if __name__ == "__main__":
    assert set(Algorithm) == set(standards().algorithms)
    for language, path in PAGES.items():
        path.write_text(page(language), encoding="utf-8")
