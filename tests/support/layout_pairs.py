"""Compare runs of several ranks with runs of one process."""

from __future__ import annotations

from pathlib import Path

from msprobe_core.compare.layouts.rules import load_layouts
from msprobe_core.compare.pairs import UnitPair
from msprobe_core.compare.unit import CompareOptions, compare_unit


def parts_of(run: Path) -> tuple[Path, ...]:
    return tuple(sorted((run / "step0").iterdir()))


def compare(target: Path, golden: Path, layouts=None):
    pair = UnitPair("all ranks", 0, None, target / "step0", parts_of(golden)[0], target_parts=parts_of(target))
    return compare_unit(pair, CompareOptions(layouts=layouts))


def verdicts(result):
    return {verdict: number for verdict, number in result.counts.items() if number}


def declared(directory: Path, text: str):
    path = directory / "layout.yaml"
    path.write_text(text)
    return load_layouts(path)
