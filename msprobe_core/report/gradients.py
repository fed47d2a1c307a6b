"""Result files of a comparison of gradients: tables for each rank, pictures, and a summary for programs.

``rank{R}/similarities.csv`` has a row for each parameter and a column for each step, as published tools write it; its
last row is the ``summary``. ``rank{R}/gradients.csv`` has a row for each gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import polars as pl

from msprobe_core.findings import content_of
from msprobe_core.gradients.similarity import LEAST_SIMILARITY, Agreement, Basis, GradientComparison, Problem
from msprobe_core.report.escape import guarded
from msprobe_core.store.atomic_file import whole_file, write_json
from msprobe_core.store.layout import make_directory, tensor_file_name
from msprobe_core.store.results import plain_result, refuse_foreign_json, refuse_foreign_text

RESULT_FILE = "gradients_compare.json"
SIMILARITIES_FILE = "similarities.csv"
GRADIENTS_FILE = "gradients.csv"
PICTURES = "similarities_picture"

_SUMMARY = "summary"
_COMMAND = "msprobe gradients compare"
_MEMBERS = ("differs", "basis", "problems")
_MARK = b"<!-- msprobe gradients -->"

_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 320, 60, 30
"""Of a picture, and the margins of its axes, in pixels."""


def refuse_foreign_results(directory: Path, ranks: Sequence[int]) -> None:
    """Raise if a result would replace a file of others.

    Raises:
        StoreError: it would.
    """
    refuse_foreign_json(directory / RESULT_FILE, _COMMAND, _MEMBERS)
    for rank in ranks:
        refuse_foreign_text(directory / f"rank{rank}" / SIMILARITIES_FILE, _COMMAND, b"step,")
        refuse_foreign_text(directory / f"rank{rank}" / GRADIENTS_FILE, _COMMAND, b"step,parameter,")


def write_comparison(result: GradientComparison, directory: Path) -> None:
    """Write all files.

    Raises:
        StoreError: one of them cannot be written.
    """
    for rank in result.ranks:
        write_rank(result, rank, directory / f"rank{rank}")
    write_json(directory / RESULT_FILE, summary_of(result))


def write_rank(result: GradientComparison, rank: int, directory: Path) -> None:
    """Write the tables and pictures of a rank.

    Raises:
        StoreError: one of them cannot be written.
    """
    make_directory(directory)
    agreements = result.of_rank(rank)
    steps = sorted({each.step for each in agreements})
    series: dict[str, dict[int, float]] = {}
    for each in sorted(agreements, key=lambda one: one.position):
        series.setdefault(each.parameter, {})[each.step] = each.similarity
    series[_SUMMARY] = result.summary(rank)
    columns: dict[str, Sequence[Any]] = {"step": list(series)}
    columns |= {str(step): [values.get(step) for values in series.values()] for step in steps}
    _write_table(_rows(result, agreements), directory / GRADIENTS_FILE)
    if result.basis is Basis.NORMS:
        return  # no similarity is known
    _write_table(pl.DataFrame(columns, strict=False), directory / SIMILARITIES_FILE)
    make_directory(directory / PICTURES)
    for name, values in series.items():
        counted = result.counted_summary(rank) if name == _SUMMARY else _counted(agreements, name)
        path = directory / PICTURES / tensor_file_name(f"{name}_similarities", ".svg")
        with whole_file(path) as file:
            file.write(_picture(name, values, counted))


def _counted(agreements: Sequence[Agreement], parameter: str) -> dict[int, float]:
    return {each.step: each.counted_similarity for each in agreements if each.parameter == parameter}


def _write_table(table: pl.DataFrame, path: Path) -> None:
    with whole_file(path) as file:
        guarded(table).write_csv(file)


def _rows(result: GradientComparison, agreements: Sequence[Agreement]) -> pl.DataFrame:
    own = {(each.agreement.step, each.agreement.parameter) for each in result.problems if each.agreement in agreements}
    rows = [
        {
            "step": each.step,
            "parameter": each.parameter,
            "elements": each.num_elements,
            "similarity": None if each.has_norms_alone else each.similarity,
            "counted": each.num_counted,
            "counted_similarity": None if each.has_norms_alone else each.counted_similarity,
            "cosine": each.cosine,
            "cosine_error": each.cosine_error,
            "similarity_error": each.error,
            "norm_ratio": each.norm_ratio,
            "published_problem": (each.rank, each.step, each.parameter) in result.published_problems,
            "problem": (each.step, each.parameter) in own,
        }
        for each in agreements
    ]
    kinds: dict[str, pl.DataType] = dict.fromkeys(
        ("similarity", "counted_similarity", "cosine", "cosine_error", "norm_ratio"), pl.Float64()
    )
    return pl.DataFrame(rows, schema_overrides=kinds, infer_schema_length=None)


def summary_of(result: GradientComparison) -> object:
    """Return the content of `RESULT_FILE`, in JSON's types."""
    return {
        "differs": bool(result.problems),
        "basis": result.basis.value,
        "gradients": len(result.agreements),
        "problems": len(result.problems),
        "published_problems": len(result.published_problems),
        "first": _problem(result.problems[0]) if result.problems else None,
        "others": [_problem(each) for each in result.problems[1:]],
        "ranks": {
            str(rank): plain_result({"similarity": result.summary(rank), "counted": result.counted_summary(rank)})
            for rank in result.ranks
        },
        "lacking": [content_of(each) for each in result.lacking],
    }


def _problem(problem: Problem) -> Mapping[str, object]:
    found = problem.agreement
    return {
        "step": found.step,
        "rank": found.rank,
        "layer": found.layer,
        "parameter": found.parameter,
        "similarity": plain_result(found.similarity),
        "counted_similarity": plain_result(found.counted_similarity),
        "norm_ratio": plain_result(found.norm_ratio),
        "finding": content_of(problem.finding),
    }


# --- pictures ---


def _picture(name: str, similarities: Mapping[int, float], counted: Mapping[int, float]) -> bytes:
    """Return a picture of a similarity over steps, as SVG; the elements that count are dashed."""
    finite = [value for each in (similarities, counted) for value in each.values() if math.isfinite(value)]
    low = min([0.9, *finite])
    steps = sorted(similarities)
    title = escape("".join(sign if sign.isprintable() else "\ufffd" for sign in name))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-size="12">',
        _MARK.decode(),
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="18">{title}</text>',
        *_axes(steps, low),
        _line(similarities, steps, low, 'stroke="#1f5fa8"'),
        _line(counted, steps, low, 'stroke="#c0392b" stroke-dasharray="5 3"'),
        "</svg>\n",
    ]
    return "\n".join(lines).encode("utf-8", "replace")


def _axes(steps: Sequence[int], low: float) -> Iterator[str]:
    bottom, right = _HEIGHT - _TOP, _WIDTH - _TOP
    yield f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="black"/>'
    for value in (1.0, LEAST_SIMILARITY, low):
        y = _y(value, low)
        yield f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#cccccc"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
    for step in {steps[0], steps[-1]}:
        yield f'<text x="{_x(step, steps):.1f}" y="{bottom + 16}" text-anchor="middle">{step}</text>'


def _line(values: Mapping[int, float], steps: Sequence[int], low: float, look: str) -> str:
    places = [
        f"{_x(step, steps):.1f},{_y(value, low):.1f}" for step, value in sorted(values.items()) if math.isfinite(value)
    ]
    if len(places) == 1:
        x, y = places[0].split(",")
        return f'<circle cx="{x}" cy="{y}" r="3" fill="none" {look}/>'
    return f'<polyline points="{" ".join(places)}" fill="none" {look}/>'


def _x(step: int, steps: Sequence[int]) -> float:
    share = (step - steps[0]) / ((steps[-1] - steps[0]) or 1)
    return _LEFT + share * (_WIDTH - _TOP - _LEFT)


def _y(value: float, low: float) -> float:
    return _TOP + (1 - value) / (1 - low) * (_HEIGHT - 2 * _TOP)
