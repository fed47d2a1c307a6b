"""``msprobe show``: the values of tensors in files of any known format, or how those of two files differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msprobe_core.cli.incomplete import exit_status
from msprobe_core.cli.show import show_lines
from msprobe_core.console import aligned
from msprobe_core.errors import DumpError, MissingDumpError

if TYPE_CHECKING:
    from msprobe_core.compare.tensor_pass import TensorMetrics
    from msprobe_core.tensor_files.contents import FileContent, NamedTensor
    from msprobe_core.tensor_files.summary import Summary

_BAR = 40
"""Length of a histogram's longest bar, in characters."""


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--against", type=click.Path(path_type=Path), help="Golden file or directory: compare with it.")
@click.option("--tensor", "names", multiple=True, help="Only tensors of this name. May be repeated.")
@click.option("--values", "num_values", type=click.IntRange(0), default=8, show_default=True, help="How many values.")
@click.option("--limit", type=float, default=0.0, show_default=True, help="Largest error that agrees, with --against.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(
    *, path: Path, against: Path | None, names: tuple[str, ...], num_values: int, limit: float, as_json: bool
) -> int:
    """Print statistics, first values and a histogram of the tensors in PATH, a file of any format or a directory.

    With --against, tensors of the same place and name are compared: cosine similarity, absolute and relative errors,
    units in the last place. A file with one tensor is compared with another such file whatever their names.

    Exit status: 0 if all can be read and agree, 1 if some are damaged or differ, 2 if there is nothing to show.
    """
    if against is not None:
        return _compare(path, against, names, limit, as_json=as_json)
    return _print(path, names, num_values, as_json=as_json)


# --- one side -------------------------------------------------------------------------------------------------------


def _print(path: Path, names: Sequence[str], num_values: int, *, as_json: bool) -> int:
    from msprobe_core.tensor_files.problems import attempted
    from msprobe_core.tensor_files.summary import summary_of

    shown: list[tuple[_Found, Summary | None]] = []
    for found in _tensors_of(path, names):
        source = found.tensor.source
        summary, damage = (None, found.tensor.damage)
        if source is not None:
            summary, damage = attempted(lambda source=source: summary_of(source, num_values))
        shown.append((_Found(found.key, found.content, found.tensor, damage), summary))
    if as_json:
        click.echo(json.dumps({"tensors": [_summary_json(*each) for each in shown]}, indent=2))
    else:
        show_lines(_lines(shown), "give --json, and redirect it to a file")
    return exit_status(is_wrong=any(summary is None for _, summary in shown))


@dataclass(frozen=True)
class _Found:
    """A tensor, what it is matched by, and why it cannot be read."""

    key: tuple[str, str]
    content: FileContent
    tensor: NamedTensor
    damage: Any = None


def _tensors_of(path: Path, names: Sequence[str]) -> list[_Found]:
    from msprobe_core.tensor_files.contents import NamedTensor
    from msprobe_core.tensor_files.recognition import identify
    from msprobe_core.tensor_files.unpacking import find_sources, is_passed_over

    found: list[_Found] = []
    for source in find_sources(path):
        content = identify(source.path)
        if is_passed_over(content) and not source.is_given:
            continue
        place = str(source.relative.parent / source.stem)
        tensors = [tensor for tensor in content.tensors if not names or tensor.name in names]
        if content.damage is not None:
            tensors.append(NamedTensor(name="", source=None, damage=content.damage))
        for tensor in tensors:
            # The only tensor of a file may be named after the file.
            name = tensor.name if len(content.tensors) > 1 else ""
            found.append(_Found((place, name), content, tensor))
    if not found:
        raise MissingDumpError(f"{path}: holds no such tensor" if names else f"{path}: holds no tensor")
    return found


def _lines(shown: Sequence[tuple[_Found, Summary | None]]) -> Iterator[str]:
    for found, summary in shown:
        source = found.tensor.source
        name = f"{found.content.path}#{found.tensor.name}" if found.tensor.name else str(found.content.path)
        if source is None or summary is None:
            yield f"{name}: {found.damage.text if found.damage is not None else 'cannot be read'}"
            continue
        layout = f", {found.tensor.layout}" if found.tensor.layout else ""
        yield f"{name}: {found.content.format.value}, {source.dtype}, {list(source.shape)}{layout}"
        statistics = [f"{key} {_number(value)}" for key, value in summary.statistics.items()]
        if statistics:
            yield "  " + ", ".join(statistics)
        if summary.first:
            yield "  first: " + " ".join(summary.first)
        most = max(summary.counts, default=0)
        for low, high, count in zip(summary.edges, summary.edges[1:], summary.counts, strict=False):
            bar = "#" * max(count * _BAR // most, count > 0)
            yield f"  {low:>12.5g} {high:>12.5g} {count:>14,} {bar}"


def _number(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else f"{value:,}"


def _summary_json(found: _Found, summary: Summary | None) -> Any:
    from msprobe_core.findings import text_and_content
    from msprobe_core.store.results import plain_result
    from msprobe_core.untrusted.paths import all_shown

    source = found.tensor.source
    content: dict[str, Any] = {
        "file": str(found.content.path), "tensor": found.tensor.name, "format": found.content.format.value,
        "dtype": None if source is None else source.dtype, "shape": None if source is None else list(source.shape),
        "layout": found.tensor.layout, **({} if summary is None else plain_result(summary)),
    }  # fmt: skip
    return all_shown(content | text_and_content("damage", found.damage))


# --- two sides ------------------------------------------------------------------------------------------------------

_COLUMNS = (
    ("cosine", "cosine"), ("max abs", "largest_abs"), ("max rel", "largest_rel"), ("<0.001", "within_1e3"),
    ("<0.005", "within_5e3"), ("max ulp", "ulp_max"), ("different", "num_different"), ("worst at", "worst_index"),
)  # fmt: skip


def _compare(target: Path, golden: Path, names: Sequence[str], limit: float, *, as_json: bool) -> int:
    sides = [_tensors_of(side, names) for side in (target, golden)]
    pairs = _paired(*sides)
    rows = [(key, first, second, _metrics(first, second)) for key, first, second in pairs]
    compared = [metrics for *_, metrics in rows if metrics is not None]
    if as_json:
        click.echo(json.dumps({"pairs": [_pair_json(*row) for row in rows]}, indent=2))
    else:
        show_lines(_table_of(rows), "give --json, and redirect it to a file")
    is_wrong = len(compared) < len(rows) or any(each.error is None or not each.error <= limit for each in compared)
    return exit_status(is_wrong=bool(compared) and is_wrong, is_judged=bool(compared))


_Key = tuple[str, str]


def _paired(target: list[_Found], golden: list[_Found]) -> list[tuple[_Key, _Found | None, _Found | None]]:
    """Return the tensors of both sides that belong together, in the order of the target."""
    if len(target) == 1 and len(golden) == 1:
        return [(target[0].key, target[0], golden[0])]
    same_file = len({each.key[0] for each in target}) == 1 and len({each.key[0] for each in golden}) == 1
    sides = [{("" if same_file else each.key[0], each.key[1]): each for each in side} for side in (target, golden)]
    keys = dict.fromkeys([*sides[0], *sides[1]])
    return [(key, sides[0].get(key), sides[1].get(key)) for key in keys]


def _metrics(target: _Found | None, golden: _Found | None) -> TensorMetrics | None:
    from msprobe_core.compare.tensor_pass import TensorMetrics, compare_sources

    if target is None or golden is None or target.tensor.source is None or golden.tensor.source is None:
        return None
    try:
        return compare_sources(target.tensor.source, golden.tensor.source)
    except DumpError as error:
        return TensorMetrics(problem=str(error))


def _why_not(target: _Found | None, golden: _Found | None, metrics: TensorMetrics | None) -> str:
    if metrics is not None:
        return metrics.problem or ""
    if target is None or golden is None:
        return f"in the {'golden' if target is None else 'target'} only"
    damage = target.tensor.damage or golden.tensor.damage
    return damage.text if damage is not None else "cannot be read"


def _table_of(
    pairs: Sequence[tuple[_Key, _Found | None, _Found | None, TensorMetrics | None]],
) -> Iterator[str]:
    rows = [("tensor", *(title for title, _ in _COLUMNS), "")]
    for key, target, golden, metrics in pairs:
        cells = ["" if metrics is None else _cell(getattr(metrics, name)) for _, name in _COLUMNS]
        rows.append(("#".join(part for part in key if part), *cells, _why_not(target, golden, metrics)))
    return aligned(rows, left=(0, len(_COLUMNS) + 1))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _pair_json(key: _Key, target: _Found | None, golden: _Found | None, metrics: TensorMetrics | None) -> Any:
    import msgspec

    from msprobe_core.store.results import plain_result
    from msprobe_core.untrusted.paths import all_shown

    found = {} if metrics is None else msgspec.structs.asdict(metrics)
    return all_shown(
        plain_result(
            {
                "file": key[0],
                "tensor": key[1],
                "target": None if target is None else str(target.content.path),
                "golden": None if golden is None else str(golden.content.path),
                **found,
                "problem": _why_not(target, golden, metrics) or None,
            }
        )
    )
