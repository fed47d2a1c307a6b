"""A comparison of checkpoints as text for a terminal, and as ``checkpoint_compare.json`` and ``.csv``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe_core.checkpoint.result import CheckpointResult, LayerRange, TensorRow
from msprobe_core.console import print_lines
from msprobe_core.findings import content_of
from msprobe_core.store.atomic_file import whole_file, write_json
from msprobe_core.store.layout import make_directory
from msprobe_core.store.results import OwnFiles, plain_result

if TYPE_CHECKING:
    from rich.console import Console

JSON_FILE = "checkpoint_compare.json"
CSV_FILE = "checkpoint_compare.csv"
CHECKPOINT_RESULT = OwnFiles(
    "msprobe checkpoint compare",
    {JSON_FILE: ("version", "same_model", "counts"), CSV_FILE: b"name,golden_name,class,"},
)
VERSION = 1


def write_comparison(found: CheckpointResult, directory: Path) -> Sequence[Path]:
    """Write both files; return their paths.

    Raises:
        StoreError: one cannot be written.
    """
    content = {
        "version": VERSION,
        "target": str(found.target),
        "golden": str(found.golden),
        "same_model": found.is_same_model,
        "exact": found.is_exact,
        "headline": content_of(found.headline),
        "counts": {relation.value: count for relation, count in found.counts.items()},
        "layers": [plain_result(each) for each in found.ranges],
        "tensors": [_record(row) for row in found.rows],
        "notes": [content_of(note) for note in found.notes],
    }
    path = directory / JSON_FILE
    write_json(path, content)
    return [path, _write_csv(found.rows, directory)]


def _record(row: TensorRow) -> dict[str, Any]:
    return {**_cells(row), "key": row.key, "is_estimate": row.is_estimate, "proof_finding": content_of(row.proof)}


def _cells(row: TensorRow) -> dict[str, Any]:
    """Return what both files say of a tensor."""
    return {
        "name": row.name, "golden_name": row.golden_name, "class": row.relation.value,
        "shape": _shape(row.shape), "golden_shape": _shape(row.golden_shape), "dtype": row.dtype,
        "golden_dtype": row.golden_dtype, "rule": row.rule, "l2": plain_result(row.l2),
        "relative_l2": plain_result(row.relative_l2), "cosine": plain_result(row.cosine),
        "max_abs": plain_result(row.max_abs), "share_differing": plain_result(row.share_differing),
        "step_updates": plain_result(row.units), "first_differing": _shape(row.first_differing),
        "proof": row.proof.text,
    }  # fmt: skip


def _shape(shape: Sequence[int] | None) -> str | None:
    return None if shape is None else str(list(shape))


def _write_csv(rows: Sequence[TensorRow], directory: Path) -> Path:
    import polars as pl

    from msprobe_core.report.escape import guarded

    make_directory(directory)
    path = directory / CSV_FILE
    cells = [_cells(row) for row in rows]
    names = list(cells[0]) if cells else ["name", "golden_name", "class", "proof"]
    columns = {
        name: [None if own[name] is None else str(own[name]) for own in cells] if cells else [] for name in names
    }
    frame = pl.DataFrame(columns, schema=dict.fromkeys(names, pl.String))
    with whole_file(path) as file:
        guarded(frame).write_csv(file)
    return path


def print_comparison(found: CheckpointResult, paths: Sequence[Path], most: int, console: Console) -> None:
    """Print the answer, where the differences are, and the first tensors."""
    from rich.text import Text

    style = "bold green" if found.is_same_model else "bold red"
    headline, *lines = comparison_lines(found, most)
    print_lines(console, [Text(headline, style=style), *lines, *(f"written: {path}" for path in paths)])


def comparison_lines(found: CheckpointResult, most: int = 10) -> Iterator[str]:
    """Yield the lines of the printed text."""
    yield f"{found.headline}"
    for each in found.ranges:
        yield f"  {each.relation.value}: {_where(each)}"
    for row in found.differing[:most]:
        yield f"{row.name or row.golden_name}: {row.relation.value}"
        if row.name and row.golden_name and row.name != row.golden_name:
            yield f"  against {row.golden_name}"
        yield f"  {row.proof}"
        if (measured := _measured(row)) is not None:
            yield f"  {measured}"
    if len(found.differing) > most:
        yield f"… and {len(found.differing) - most:,} more"
    yield from (f"note: {note}" for note in found.notes)


def _where(each: LayerRange) -> str:
    count = f"{each.count:,} tensor{'s' if each.count != 1 else ''}"
    if each.first is None:
        return f"{count} outside of layers"
    layers = f"layer {each.first}" if each.first == each.last else f"layers {each.first} to {each.last}"
    return f"{count} in {layers}"


def _measured(row: TensorRow) -> str | None:
    if row.relative_l2 is None:
        return None
    about = "about " if row.is_estimate else ""
    parts = [f"relative l2 {about}{row.relative_l2:.3g}"]
    if row.cosine is not None:
        parts.append(f"cosine {row.cosine:.6f}")
    if row.share_differing is not None:
        parts.append(f"{row.share_differing:.2%} of elements differ")
    if row.first_differing is not None:
        parts.append(f"first at {list(row.first_differing)}")
    if row.units is not None:
        parts.append(f"{row.units:.3g} times one step's update")
    return ", ".join(parts)
