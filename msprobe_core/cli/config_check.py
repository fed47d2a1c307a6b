"""``msprobe config_check``: whether two runs are the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msprobe_core.cli.output_options import overwrite_option
from msprobe_core.cli.show import show, show_lines

if TYPE_CHECKING:
    from msprobe_core.config_check.differences import ConfigResult

_DEFAULTS = {
    "dump": "config_check_pack.zip",
    "compare": "config_check_result",
    "checkpoints": "ckpt_similarity.json",
    "verl_compare": "verl_param_compare_result",
    "verl_verify": "verl_param_verify_result",
    "slime_compare": "slime_param_compare_result",
    "ranks": "config_check_result",
    "explain": "config_check_result",
}


@click.command("config_check")
@click.option("-d", "--dump", is_flag=True, help="Pack environment, libraries and the settings in FILES (.sh, .yaml).")
@click.option("-c", "--compare", is_flag=True, help="Compare GOLDEN with TARGET: packs, recorded runs, checkpoints.")
@click.option("-vc", "--verl-compare", is_flag=True, help="Compare the settings in two logs of verl: TARGET GOLDEN.")
@click.option("-vv", "--verl-verify", is_flag=True, help="Check a log of verl against [WANTED.yaml] LOG.")
@click.option("-sc", "--slime-compare", is_flag=True, help="Compare the settings in two logs of slime: TARGET GOLDEN.")
@click.option("--ranks", is_flag=True, help="Compare the ranks of one job with each other.")
@click.option(
    "--explain",
    type=click.Path(path_type=Path),
    metavar="LOCATE.json",
    help="Only differences that can cause what `msprobe locate` has found, of GOLDEN and TARGET.",
)
@click.option("--no-fuzzy", is_flag=True, help="Do not take settings with similar names for one.")
@click.option("-o", "--output_path", type=click.Path(path_type=Path), help="Where results are written.")
@overwrite_option
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
def config_check(
    *,
    dump: bool,
    compare: bool,
    verl_compare: bool,
    verl_verify: bool,
    slime_compare: bool,
    ranks: bool,
    explain: Path | None,
    no_fuzzy: bool,
    output_path: Path | None,
    overwrites: bool,
    files: tuple[Path, ...],
) -> int:
    """Say whether two runs are the same run, and which differences of their configurations matter.

    \b
    msprobe config_check -d [FILE ...] [-o config_check_pack.zip]
    msprobe config_check -c GOLDEN TARGET [-o DIR]
    msprobe config_check -vc TARGET.log GOLDEN.log
    msprobe config_check -vv [WANTED.yaml] TARGET.log
    msprobe config_check -sc TARGET.log GOLDEN.log
    msprobe config_check --ranks DIR
    msprobe config_check --explain LOCATE.json GOLDEN TARGET

    GOLDEN and TARGET are packs (.zip), directories that msprobe has recorded, manifests, or two directories of
    checkpoints.

    Exit status: 0 if no difference matters, 1 if some do, 2 if they cannot be compared.
    """  # noqa: D301  # click's mark for lines that must not be joined
    modes = {
        "dump": dump,
        "compare": compare,
        "verl_compare": verl_compare,
        "verl_verify": verl_verify,
        "slime_compare": slime_compare,
        "ranks": ranks,
        "explain": explain is not None,
    }
    mode = _mode(modes, files)
    out = output_path or Path(_DEFAULTS[mode])
    if mode == "dump":
        return _dump(files, out, overwrites=overwrites)
    if mode == "compare":
        return _compare(files[0], files[1], output_path, fuzzy=not no_fuzzy, overwrites=overwrites)
    if mode == "ranks":
        return _ranks(files[0], out, overwrites=overwrites)
    if mode == "explain":
        assert explain is not None
        return _explain(explain, files[0], files[1], output_path, fuzzy=not no_fuzzy, overwrites=overwrites)
    if mode == "verl_verify":
        return _verify(files, out, overwrites=overwrites)
    return _compare_logs(files, out, is_verl=mode == "verl_compare", overwrites=overwrites)


_NUMBERS = {"compare": (2, 2), "verl_compare": (2, 2), "verl_verify": (1, 2), "slime_compare": (2, 2), "ranks": (1, 1)}


def _mode(modes: Mapping[str, bool], files: Sequence[Path]) -> str:
    chosen = [name for name, is_chosen in modes.items() if is_chosen]
    if len(chosen) != 1:
        raise click.UsageError("Give one of -d, -c, -vc, -vv, -sc, --ranks and --explain.")
    least, most = _NUMBERS.get(chosen[0], (2, 2) if chosen[0] == "explain" else (0, 1 << 20))
    if not least <= len(files) <= most:
        wanted = str(least) if least == most else f"{least} or {most}"
        raise click.UsageError(f"--{chosen[0].replace('_', '-')} takes {wanted} paths, and {len(files)} were given.")
    return chosen[0]


def _dump(files: Sequence[Path], out: Path, *, overwrites: bool) -> int:
    from msprobe_core.config_check.pack import STATIC, read_pack, write_pack
    from msprobe_core.config_check.packing import static_pack
    from msprobe_core.errors import DumpError
    from msprobe_core.store.results import refusal

    if (out.exists() or out.is_symlink()) and not overwrites:
        try:
            read_pack(out)
        except DumpError:
            raise refusal(out, "msprobe config_check") from None
    pack = static_pack(files)
    write_pack(out, pack)
    number = len(pack.settings.get(STATIC, {}))
    line = f"{number:,} settings, {len(pack.libraries or {}):,} libraries, {len(pack.environment or {}):,} variables"
    show_lines([f"{line}: {out}"], "the pack has been written")
    return 0


def _compare(golden: Path, target: Path, out: Path | None, *, fuzzy: bool, overwrites: bool) -> int:
    from msprobe_core.config_check.runs import SourceKind, kind_of, read_run
    from msprobe_core.errors import ConfigError

    kinds = kind_of(golden), kind_of(target)
    if kinds == (SourceKind.DIRECTORY, SourceKind.DIRECTORY):
        return _compare_checkpoints(golden, target, out or Path(_DEFAULTS["checkpoints"]))
    if SourceKind.DIRECTORY in kinds or SourceKind.OTHER in kinds:
        raise ConfigError(
            f"{golden} is {kinds[0].value}, and {target} is {kinds[1].value}; give two packs, recorded runs or "
            "manifests, or two directories of checkpoints"
        )
    directory = out or Path(_DEFAULTS["compare"])
    runs = read_run(target), read_run(golden)
    return _write_and_show(_result(runs, fuzzy=fuzzy), directory, runs, fuzzy=fuzzy, overwrites=overwrites)


def _result(runs: Any, *, fuzzy: bool) -> ConfigResult:
    from msprobe_core.config_check.runs import compare_runs

    return compare_runs(*runs, fuzzy=fuzzy)


def _write_and_show(result: ConfigResult, directory: Path, runs: Any, *, fuzzy: bool, overwrites: bool) -> int:
    from msprobe_core.cli.main import EXIT_FAILED
    from msprobe_core.report.config_check import (
        check_config_result,
        print_config_result,
        verdict_of,
        write_config_result,
    )

    if not overwrites:
        check_config_result(directory)
    paths = write_config_result(result, directory, runs, fuzzy=fuzzy)
    show(lambda console: print_config_result(result, paths, console), f"it is in {directory}")
    return {"equal": 0, "differs": 1}.get(verdict_of(result), EXIT_FAILED)


def _compare_checkpoints(golden: Path, target: Path, out: Path) -> int:
    from importlib import import_module

    from msprobe_core.errors import ConfigError

    try:
        write_similarity = import_module("msprobe_core.checkpoint.similarity").write_similarity
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{golden} and {target} are directories without manifests, and this release does not compare checkpoints; "
            "give packs, recorded runs or manifests"
        ) from error
    return write_similarity(golden, target, out)


def _ranks(directory: Path, out: Path, *, overwrites: bool) -> int:
    from msprobe_core.config_check.rank_agreement import check_ranks
    from msprobe_core.config_check.runs import read_run
    from msprobe_core.errors import ConfigError

    run = read_run(directory)
    if len(run.manifests) < 2 or not run.has_manifest:
        raise ConfigError(
            f"{directory}: holds the manifest of {len(run.manifests)} rank, and there is none to compare it with; give "
            "the directory of a job of several ranks"
        )
    return _write_and_show(check_ranks(run), out, None, fuzzy=False, overwrites=overwrites)


def _explain(located: Path, golden: Path, target: Path, out: Path | None, *, fuzzy: bool, overwrites: bool) -> int:
    from msprobe_core.config_check.runs import read_run
    from msprobe_core.locate.explain import explains, order_of, read_located
    from msprobe_core.report.config_check import RESULT_FILE, check_config_result, print_config_result, result_content
    from msprobe_core.store.atomic_file import write_json

    directory = out or Path(_DEFAULTS["explain"])
    if not overwrites:
        check_config_result(directory)
    fault = read_located(located)
    result = _result((read_run(target), read_run(golden)), fuzzy=fuzzy)
    explained = {place: explains(fault, each) for place, each in enumerate(result.differences)}
    path = directory / RESULT_FILE
    write_json(path, {**result_content(result, explained), "kind": fault.kind.value})
    telling = sorted(
        (place for place in explained if explained[place].degree.value != "no"),
        key=lambda place: order_of(explained[place]),
    )
    shown = {place: explained[place] for place in telling}
    show(lambda console: print_config_result(result, [path], console, shown), f"it is in {path}")
    return 1 if shown else 0


def _compare_logs(files: Sequence[Path], out: Path, *, is_verl: bool, overwrites: bool) -> int:
    from msprobe_core.config_check.trainer_logs import compare_logged, read_slime_log, read_verl_log
    from msprobe_core.report.config_check_logs import check_logs_result, print_pairs, write_compared

    if not overwrites:
        check_logs_result(out, verifies=False)
    target, golden = map(read_verl_log if is_verl else read_slime_log, files)
    pairs = compare_logged(target, golden)
    paths = write_compared(out, pairs, target, golden)
    show(lambda console: print_pairs(pairs, paths, console), f"it is in {out}")
    return 0 if all(each.is_same for each in pairs) else 1


def _verify(files: Sequence[Path], out: Path, *, overwrites: bool) -> int:
    from msprobe_core.config_check.trainer_logs import read_verl_log, read_wanted, verify_logged
    from msprobe_core.report.config_check_logs import check_logs_result, print_pairs, write_verified

    if not overwrites:
        check_logs_result(out, verifies=True)
    wanted = read_wanted(files[0] if len(files) == 2 else None)
    target = read_verl_log(files[-1])
    pairs = verify_logged(target, wanted)
    paths = write_verified(out, pairs, target)
    show(lambda console: print_pairs(pairs, paths, console), f"it is in {out}")
    return 0 if all(each.is_same for each in pairs) else 1
