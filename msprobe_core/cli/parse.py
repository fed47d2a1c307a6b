"""``msprobe parse`` and ``msprobe identify``: what foreign files of tensors hold, and their tensors as files."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msprobe_core.cli.incomplete import exit_status
from msprobe_core.cli.progress import progress_bar
from msprobe_core.cli.show import show_lines
from msprobe_core.console import aligned
from msprobe_core.errors import ConfigError, ExistsError, MissingDumpError, StoreError, printable

if TYPE_CHECKING:
    from msprobe_core.tensor_files.contents import FileContent
    from msprobe_core.tensor_files.unpacking import UnpackedTensor

INDEX_FILE = "index.json"
_MAX_SHOWN = 10


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("-d", "--dump_path", type=click.Path(path_type=Path), help="File to convert, or directory of files.")
@click.option(
    "-t",
    "--type",
    "kind",
    type=click.Choice(["pt", "npy", "safetensors"]),
    default="pt",
    show_default=True,
    help="Format of the new files.",
)
@click.option(
    "-o",
    "--output",
    "--output_path",
    type=click.Path(path_type=Path),
    default=Path("output"),
    show_default=True,
    help="Directory for the new files.",
)
@click.option("-f", "--overwrite", "overwrites", is_flag=True, help="Write into a directory that is not empty.")
@click.option(
    "--workers", type=click.IntRange(1), help="Number of files to convert at a time; by default one per core."
)
@click.option("--identify", "identifies", is_flag=True, help="Say what PATHS hold, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --identify: print JSON instead of a table.")
def parse(
    *, paths: tuple[Path, ...], dump_path: Path | None, kind: str, output: Path, overwrites: bool, workers: int | None,
    identifies: bool, as_json: bool,
) -> int:  # fmt: skip
    """Convert files of tensors that other programs wrote: each tensor becomes a file of its own.

    Formats are recognised by content: ATB .bin, dumps of CANN (adump), MindSpore kernels and checkpoints, SGLang,
    FlashInfer, .pt, .npy, .npz and .safetensors. Nothing in them is executed, and CANN is not needed. index.json has
    the source and a hash of every tensor before and after.

    Exit status: 0 if every tensor was converted, 1 if some are damaged or refused, 2 if nothing could be done.
    """
    if dump_path is not None:
        paths = (dump_path, *paths)
    if identifies:
        return _identify(paths, as_json=as_json)
    if len(paths) != 1:
        raise ConfigError("parse converts one file or directory; give it with -d, or several with --identify")
    return _convert(paths[0], output, kind, workers, overwrites=overwrites)


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def identify(*, paths: tuple[Path, ...], as_json: bool) -> int:
    """Say what files hold: format, tensors, dtypes, shapes and damage. Only headers are read, and nothing is executed.

    PATHS are files, or directories whose files are listed.

    Exit status: 0 if all can be read, 1 if some are damaged or refused, 2 if there is nothing to list.
    """
    return _identify(paths, as_json=as_json)


# --- identify -------------------------------------------------------------------------------------------------------


def _identify(paths: Sequence[Path], *, as_json: bool) -> int:
    if not paths:
        raise ConfigError("identify needs a file or a directory")
    contents = _contents(paths)
    if not contents:
        raise MissingDumpError(f"{paths[0]}: holds no file of a format that is known here")
    if as_json:
        click.echo(json.dumps({"files": [_content_json(content) for content in contents]}, ensure_ascii=True, indent=2))
    else:
        show_lines(_table_of(contents), "give --json, and redirect it to a file")
    is_wrong = any(content.damage or any(each.damage for each in content.tensors) for content in contents)
    return exit_status(is_wrong=is_wrong)


def _contents(paths: Sequence[Path]) -> list[FileContent]:
    from msprobe_core.errors import DumpError
    from msprobe_core.tensor_files.contents import FileContent, FileFormat
    from msprobe_core.tensor_files.problems import damage_by
    from msprobe_core.tensor_files.recognition import identify as content_of
    from msprobe_core.tensor_files.unpacking import find_sources, is_passed_over

    contents: list[FileContent] = []
    num_passed_over = 0
    with progress_bar("reading") as progress:
        for path in paths:
            sources = find_sources(path)
            for number, source in enumerate(sources):
                progress(number, len(sources), str(source.relative))
                try:
                    content = content_of(source.path)
                except DumpError as error:
                    if len(sources) == 1 and not path.is_dir():
                        raise
                    content = FileContent(path=source.path, format=FileFormat.UNKNOWN, damage=damage_by(error))
                if path.is_dir() and is_passed_over(content):
                    num_passed_over += 1
                else:
                    contents.append(content)
    if num_passed_over:
        click.echo(f"note: files without tensors that are not listed: {num_passed_over:,}", err=True)
    return contents


def _content_json(content: FileContent) -> dict[str, Any]:
    from msprobe_core.findings import text_and_content
    from msprobe_core.store.results import plain_result
    from msprobe_core.tensor_files.problems import status_of
    from msprobe_core.untrusted.paths import all_shown

    tensors = [
        {
            "name": each.name, "role": each.role, "status": status_of(each.damage).value,
            "dtype": None if each.source is None else each.source.dtype,
            "shape": None if each.source is None else list(each.source.shape),
            "layout": each.layout, "attributes": each.attributes,
        }
        | text_and_content("damage", each.damage)
        for each in content.tensors
    ]  # fmt: skip
    found = {
        "file": str(content.path), "format": content.format.value, "version": content.version,
        "size_bytes": content.size_bytes, "status": status_of(content.damage).value, "attributes": content.attributes,
    }  # fmt: skip
    return all_shown(plain_result(found) | text_and_content("damage", content.damage) | {"tensors": tensors})


def _table_of(contents: Sequence[FileContent]) -> Iterator[str]:
    from msprobe_core.tensor_files.problems import status_of
    from msprobe_core.untrusted.paths import shown

    rows = [("file", "format", "tensor", "dtype", "shape", "bytes", "status")]
    for content in contents:
        form = f"{content.format.value} {content.version}".strip()
        file = shown(str(content.path))
        if content.damage is not None or not content.tensors:
            status = "no tensors" if content.damage is None else _said(content.damage)
            rows.append((file, form, "", "", "", f"{content.size_bytes:,}", status))
        for each in content.tensors:
            source = each.source
            dtype, shape = ("", "") if source is None else (source.dtype, _shape_text(source.shape, each.layout))
            status = status_of(None).value if each.damage is None else _said(each.damage)
            rows.append((file, form, shown(each.name), dtype, shape, f"{_size_of(source):,}" if source else "", status))
            file = form = ""
    return aligned(rows, left=range(len(rows[0])))


def _said(damage: Any) -> str:
    from msprobe_core.tensor_files.problems import status_of

    return f"{status_of(damage).value}: {damage.text}"


def _shape_text(shape: tuple[int, ...], layout: str) -> str:
    text = "[" + ", ".join(map(str, shape)) + "]"
    return f"{text} {layout}" if layout not in {"", "ND"} else text


def _size_of(source: Any) -> int:
    import math

    import numpy as np

    from msprobe_core.store.tensor_values import DTYPES

    stored = DTYPES.get(source.dtype)
    return math.prod(source.shape) * (np.dtype(stored).itemsize if stored else 1)


# --- parse ----------------------------------------------------------------------------------------------------------


def _convert(path: Path, output: Path, kind: str, workers: int | None, *, overwrites: bool) -> int:
    from msprobe_core.execute.units import run_units
    from msprobe_core.model import ExecutorOptions
    from msprobe_core.store.atomic_file import write_json
    from msprobe_core.store.results import plain_result
    from msprobe_core.tensor_files.problems import Status
    from msprobe_core.tensor_files.unpacking import find_sources, unpack
    from msprobe_core.tensor_files.writing import FileType

    sources = find_sources(path)
    _check_output(path, output, overwrites=overwrites)
    found: dict[int, list[UnpackedTensor] | None] = {}
    work = functools.partial(unpack, output=output, kind=FileType(kind))
    with progress_bar("converting") as progress:
        failed = run_units(
            sources,
            work,
            found.__setitem__,
            workers=ExecutorOptions(workers=workers),
            progress=lambda done, label: progress(done, len(sources), label),
        )
    tensors = [tensor for number in sorted(found) for tensor in found[number] or ()]
    if not tensors and not failed:
        raise MissingDumpError(f"{path}: holds no file of a format that is known here")
    for number, why in failed.items():
        click.echo(f"{printable(str(sources[number].relative))}: {printable(why)}", err=True)
    wrong = [tensor for tensor in tensors if tensor.status is not Status.SOUND]
    index = {
        "producer": "msprobe parse", "source": str(path.absolute()), "type": kind,
        "failed": {str(sources[number].relative): why for number, why in failed.items()},
        "tensors": [plain_result(tensor, ("problem", "conversions")) for tensor in tensors],
    }  # fmt: skip
    write_json(output / INDEX_FILE, index)
    for tensor in wrong[:_MAX_SHOWN]:
        name = f"{tensor.source}#{tensor.tensor}" if tensor.tensor else tensor.source
        why = tensor.problem.text if tensor.problem is not None else ""
        click.echo(f"{tensor.status.value}: {printable(name)}: {printable(why)}", err=True)
    if len(wrong) > _MAX_SHOWN:
        click.echo(f"and {len(wrong) - _MAX_SHOWN:,} more, which {output / INDEX_FILE} lists", err=True)
    num_written = len(tensors) - len(wrong)
    num_files = sum(rows is not None for rows in found.values())
    click.echo(
        f"{num_written:,} {_plural('tensor', num_written)} of {num_files:,} {_plural('file', num_files)} as {kind} in "
        f"{output}; {INDEX_FILE} has the source and hashes of each"
    )
    return exit_status(is_wrong=bool(wrong or failed))


def _plural(word: str, number: int) -> str:
    return word if number == 1 else f"{word}s"


def _check_output(path: Path, output: Path, *, overwrites: bool) -> None:
    places = path.resolve(), output.resolve()
    if places[0] == places[1] or places[0] in places[1].parents:
        raise StoreError(f"{output}: is inside of {path}; choose a directory beside it with -o")
    if output.is_symlink():
        raise StoreError(f"{output}: is a symbolic link; give the directory itself")
    if not output.exists():
        return
    if not output.is_dir():
        raise ExistsError(f"{output}: is there and no directory; choose another with -o")
    if not overwrites and any(output.iterdir()):
        raise ExistsError(f"{output}: is there already; choose another directory with -o, or give --overwrite")
