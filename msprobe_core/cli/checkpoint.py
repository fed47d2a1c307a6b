"""``msprobe checkpoint``: whether two checkpoints are the same model, and what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from msprobe_core.cli.incomplete import exit_status
from msprobe_core.cli.output_options import overwrite_option
from msprobe_core.cli.progress import progress_bar
from msprobe_core.cli.show import show, show_lines
from msprobe_core.errors import ConfigError

if TYPE_CHECKING:
    from msprobe_core.checkpoint.contents import Checkpoint
    from msprobe_core.checkpoint.declared_ranks import RankLayout
    from msprobe_core.checkpoint.result import CheckpointResult
    from msprobe_core.checkpoint.resume import ResumeResult

_layout_option = click.option(
    "--layout",
    "layouts",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="YAML: how the ranks' files form the model, if they do not say it; as for compare.",
)
_OPTIMIZER_HELP = "Also moments and master weights of the optimizer."


@click.group()
def checkpoint() -> None:
    """Compare checkpoints across formats and layouts, and see what they hold."""


@checkpoint.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("golden", type=click.Path(path_type=Path))
@click.option("-o", "--output_path", type=click.Path(path_type=Path), help="Directory for the result files.")
@click.option("--map", "mapping", type=click.Path(path_type=Path), help="YAML: target's name: golden name.")
@_layout_option
@click.option("--only", metavar="REGEX", help="Only tensors whose name matches on either side.")
@click.option("--optimizer", "has_optimizer", is_flag=True, help=_OPTIMIZER_HELP)
@click.option(
    "--earlier", multiple=True, type=click.Path(path_type=Path), help="An earlier golden checkpoint; may be repeated."
)
@click.option(
    "--strict", "is_strict", is_flag=True, help="Casts and padding are differences too; tied weights are not."
)
@click.option("-k", "--top_k", default=10, show_default=True, type=click.IntRange(0), help="Tensors to print.")
@overwrite_option
def compare(
    *,
    target: Path,
    golden: Path,
    output_path: Path | None,
    mapping: Path | None,
    layouts: Path | None,
    only: str | None,
    has_optimizer: bool,
    earlier: tuple[Path, ...],
    is_strict: bool,
    top_k: int,
    overwrites: bool,
) -> int:
    """Compare two checkpoints, or fingerprints of them: the same model, or which tensors differ, and how.

    Exit status: 0 if both are the same model, 1 if tensors differ, 2 if a checkpoint cannot be read.
    """
    # numpy and polars are not needed for --help.
    from msprobe_core.report.checkpoint import CHECKPOINT_RESULT, print_comparison, write_comparison

    if output_path is not None and not overwrites:
        CHECKPOINT_RESULT.refuse_foreign(output_path)
    names = {} if mapping is None else _names_in(mapping)
    _check_pattern(only)
    opened = _Opened(layouts)
    found = _compared(target, golden, names, only, earlier, opened, has_optimizer=has_optimizer)
    paths: Sequence[Path] = () if output_path is None else write_comparison(found, output_path)
    show(lambda console: print_comparison(found, paths, top_k, console), "give -o to write it to files")
    is_same = found.is_exact if is_strict else found.is_same_model
    return exit_status(is_wrong=found.is_judged and not is_same, is_judged=found.is_judged)


def _compared(
    target: Path,
    golden: Path,
    names: Mapping[str, str],
    only: str | None,
    earlier: tuple[Path, ...],
    opened: _Opened,
    *,
    has_optimizer: bool,
) -> CheckpointResult:
    from msprobe_core.checkpoint.compare import CheckpointOptions, compare_checkpoints
    from msprobe_core.checkpoint.fingerprints import (
        CheckpointPrint,
        compare_prints,
        fingerprint_checkpoint,
        is_fingerprint,
        read_fingerprint,
    )

    with progress_bar("comparing") as advance:

        def said(done: int, total: int) -> None:
            advance(done, total, "tensors")

        if not (is_fingerprint(target) or is_fingerprint(golden)):
            options = CheckpointOptions(
                names=names, only=only, has_optimizer=has_optimizer, earlier=[opened.golden(path) for path in earlier]
            )
            return compare_checkpoints(opened.target(target), opened.golden(golden), options, said)
        if names or only is not None or earlier:
            raise ConfigError("--map, --only and --earlier need the checkpoints themselves; give no fingerprint")

        def print_of(path: Path, opens: Callable[[Path], Checkpoint]) -> CheckpointPrint:
            if is_fingerprint(path):
                return read_fingerprint(path)
            return fingerprint_checkpoint(opens(path), has_optimizer=has_optimizer, progress=said)

        return compare_prints(print_of(target, opened.target), print_of(golden, opened.golden))


class _Opened:
    """Opens checkpoints with the layouts that a file declares of their sides."""

    def __init__(self, layouts: Path | None) -> None:
        from msprobe_core.compare.layouts.rules import Side

        self._layouts: dict[Side, RankLayout | None] = {}
        if layouts is None:
            return
        from msprobe_core.checkpoint.declared_ranks import layout_of
        from msprobe_core.compare.layouts.rules import load_layouts

        rules = load_layouts(layouts)
        if not rules.ranks:
            raise ConfigError(
                f"{layouts}: declares no ranks; for checkpoints only 'parallel' is read, for example "
                "parallel: {target: {tp: 2, pp: 2}}"
            )
        self._layouts = {side: layout_of(rules, side) for side in Side}

    def target(self, path: Path) -> Checkpoint:
        """Open a checkpoint of the target."""
        from msprobe_core.checkpoint.opening import open_checkpoint
        from msprobe_core.compare.layouts.rules import Side

        return open_checkpoint(path, self._layouts.get(Side.TARGET))

    def golden(self, path: Path) -> Checkpoint:
        """Open a golden checkpoint."""
        from msprobe_core.checkpoint.opening import open_checkpoint
        from msprobe_core.compare.layouts.rules import Side

        return open_checkpoint(path, self._layouts.get(Side.GOLDEN))


def _check_pattern(only: str | None) -> None:
    import re

    try:
        re.compile(only or "")
    except re.error as error:
        raise ConfigError(f"--only: {only!r} is no regular expression ({error})") from error


def _names_in(path: Path) -> dict[str, str]:
    from msprobe_core.config.text import read_yaml

    advice = "give a YAML file of the form 'name: golden name'"
    content = read_yaml(path, kind="a file of names", advice=advice, has_types=False, fault="is no YAML")
    pairs = cast("dict[object, object]", content) if isinstance(content, dict) else {}
    names = {str(name): str(other) for name, other in pairs.items() if isinstance(name, str) and isinstance(other, str)}
    if not names or len(names) < len(pairs):
        raise ConfigError(f"{path}: expected is one line for each tensor, 'name in the target: golden name'")
    return names


@checkpoint.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--output_path", required=True, type=click.Path(path_type=Path), help="File, *.fingerprint.arrow.")
@_layout_option
@click.option("--rows", "has_rows", is_flag=True, help="Also a hash of each row.")
@click.option("--optimizer", "has_optimizer", is_flag=True, help=_OPTIMIZER_HELP)
@overwrite_option
def fingerprint(
    *, path: Path, output_path: Path, layouts: Path | None, has_rows: bool, has_optimizer: bool, overwrites: bool
) -> int:
    """Write a fingerprint of the checkpoint PATH: some 300 bytes a tensor, to compare with at another site.

    Exit status: 0 if it was written, 1 if a tensor could not be read, 2 if the checkpoint could not.
    """
    from msprobe_core.checkpoint.fingerprints import SUFFIX, TASK, fingerprint_checkpoint, write_fingerprint
    from msprobe_core.store.layout import make_directory
    from msprobe_core.store.results import refuse_foreign_text

    if not output_path.name.endswith(SUFFIX):
        output_path = output_path.with_name(output_path.name + SUFFIX)
    if not overwrites:
        refuse_foreign_text(output_path, "msprobe checkpoint fingerprint", TASK.encode())
    opened = _Opened(layouts).target(path)
    make_directory(output_path.parent)
    with progress_bar("reading") as advance:
        found = fingerprint_checkpoint(
            opened,
            has_rows=has_rows,
            has_optimizer=has_optimizer,
            progress=lambda done, total: advance(done, total, "tensors"),
        )
    write_fingerprint(found, output_path)
    broken = [each for each in found.prints.values() if each.problem is not None]
    for each in broken[:10]:
        click.echo(f"{each.name}: {each.problem}")
    click.echo(f"Written: {output_path} ({len(found.prints):,} tensors, {output_path.stat().st_size:,} bytes)")
    return exit_status(is_wrong=bool(broken))


@checkpoint.command()
@click.argument("path", type=click.Path(path_type=Path))
@_layout_option
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.option(
    "-k", "--top_k", default=20, show_default=True, type=click.IntRange(0), help="Tensors to print; 0 for all."
)
def inspect(*, path: Path, layouts: Path | None, is_json: bool, top_k: int) -> int:
    """Print what the checkpoint PATH holds, from its headers: no values are read.

    Exit status: 0 if it is whole, 1 if parts are missing or damaged, 2 if it cannot be read.
    """
    found = _Opened(layouts).target(path)
    if is_json:
        from msprobe_core.untrusted.paths import encode_json

        click.echo(encode_json(_listing_content(found), indent=2))
    else:
        show_lines(_listing_lines(found, top_k), "give --json and redirect it")
    return exit_status(is_wrong=not found.is_whole)


def _listing_content(found: Checkpoint) -> dict[str, Any]:
    from msprobe_core.findings import content_of

    return {
        "path": str(found.path),
        "format": found.format.value,
        "step": found.step,
        "files": found.num_files,
        "bytes": found.size_bytes,
        "elements": found.numel_by_kind,
        "dtypes": found.dtypes,
        "ties": dict(found.aliases),
        "tensors": [
            {
                "name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype, "kind": tensor.kind.value,
                "pieces": len(tensor.pieces), "rule": tensor.rule,
                "damage": None if tensor.damage is None else content_of(tensor.damage),
            }
            for tensor in found.tensors.values()
        ],
        "notes": [content_of(note) for note in found.notes],
    }  # fmt: skip


def _listing_lines(found: Checkpoint, most: int) -> Iterator[str]:
    step = "" if found.step is None else f", step {found.step:,}"
    yield f"{found.path}: {found.format.value}, {found.num_files:,} files, {found.size_bytes:,} bytes{step}"
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in found.numel_by_kind.items())
    yield f"  {len(found.tensors):,} tensors; elements: {kinds or 'none'}"
    yield f"  dtypes: {', '.join(f'{dtype} {count:,}' for dtype, count in found.dtypes.items()) or 'none'}"
    yield from (f"  tied: {name} to {other}" for name, other in found.aliases.items())
    shown = list(found.tensors.values())[: most or None]
    for tensor in shown:
        pieces = f", {len(tensor.pieces):,} pieces" if len(tensor.pieces) > 1 else ""
        rule = f" ({tensor.rule})" if tensor.rule else ""
        yield f"  {tensor.name} {list(tensor.shape)} {tensor.dtype}{pieces}{rule}"
    if len(found.tensors) > len(shown):
        yield f"  … and {len(found.tensors) - len(shown):,} more"
    yield from (f"  damaged: {tensor.name}: {tensor.damage}" for tensor in found.damaged[:20])
    yield from (f"  note: {note}" for note in found.notes)


@checkpoint.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
def resume(*, before: Path, after: Path) -> int:
    """Print what a job lost that loaded the checkpoint BEFORE and saved AFTER: moments, steps, data position.

    AFTER may also be a manifest of the job, or the directory that it is recorded to: then step counts, learning rates
    and random states are compared, and the job need not save first.

    Exit status: 0 if nothing was lost, 1 if something was, 2 if a checkpoint cannot be read.
    """
    from msprobe_core.checkpoint.opening import open_checkpoint
    from msprobe_core.checkpoint.resume import compare_resumed
    from msprobe_core.checkpoint.resume_running import compare_running, find_manifests

    manifests = find_manifests(after)
    loaded = open_checkpoint(before)
    found = compare_running(loaded, after, manifests) if manifests else compare_resumed(loaded, open_checkpoint(after))
    show_lines(_resume_lines(found), "redirect it")
    return exit_status(is_wrong=not found.is_sound)


def _resume_lines(found: ResumeResult) -> Iterator[str]:
    steps = "" if found.num_steps is None else f", {found.num_steps:,} steps"
    yield f"{found.before} -> {found.after}{steps}: {'nothing was lost' if found.is_sound else 'state was lost'}"
    yield from (f"  {finding.level.value}: {finding}" for finding in found.findings)
