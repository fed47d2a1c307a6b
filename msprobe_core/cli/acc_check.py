"""``msprobe acc_check``: check every call of a dump by itself."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msprobe_core.cli.incomplete import exit_status
from msprobe_core.cli.one_rank import one_rank
from msprobe_core.cli.output_options import overwrite_option, with_options
from msprobe_core.cli.progress import progress_bar
from msprobe_core.cli.show import show
from msprobe_core.errors import ConfigError, ReplayError, StoreError
from msprobe_core.names import call_of

if TYPE_CHECKING:
    from msprobe_core.api_check.dump_check import CheckOptions, DumpCheck
    from msprobe_core.api_check.settings_file import CheckSettings
    from msprobe_core.api_check.verdict import CallVerdict
    from msprobe_core.compat.published_tables import PublishedFiles, PublishedTables

_NUM_SPLITS = 8
"""Number of processes of ``multi_acc_check`` unless it is given."""

_INPUTS = ("recorded", "random", "synthetic", "exact", "all")

_options = with_options(
    click.option(
        "-api_info", "--api_info_file", "dump", required=True, type=click.Path(path_type=Path),
        help="dump.json of one rank of one step, its directory, or a directory of --write_shards.",
    ),
    click.option("-o", "--out_path", default=".", type=click.Path(path_type=Path), help="Directory for results."),
    click.option("-save_error_data", is_flag=True, help="Write inputs and results of calls that are not right."),
    click.option(
        "-d", "--device", "devices", multiple=True,
        help="Device that computes each call, too: its number, or its name such as npu:0. May be repeated.",
    ),
    click.option(
        "--write_shards", "shards", type=click.Path(path_type=Path),
        help="Only let the devices compute the calls, and write them here, to be judged on another machine.",
    ),
    click.option("-j", "--jit_compile", is_flag=True, help="Accepted for scripts of mindstudio-probe; no effect."),
    click.option(
        "-csv_path", "--result_csv_path", "resumed", type=click.Path(path_type=Path),
        help="accuracy_checking_result_*.csv of an interrupted run, to go on with.",
    ),
    click.option("-f", "--filter_api", is_flag=True, help="Check one call per API and kind of arguments."),
    click.option(
        "-config", "--config_path", "config", type=click.Path(path_type=Path),
        help="JSON or YAML file with white_list, black_list, error_data_path, precision, quantization_api_list.",
    ),
    click.option(
        "--inputs", type=click.Choice(_INPUTS), default="recorded", show_default=True,
        help="Inputs to replay with: the recorded ones; random or synthetic ones made from statistics; exact also "
        "probes linear calls with integers; all makes what is missing, and probes.",
    ),
    click.option("--seed", default=1234, show_default=True, type=int, help="Of inputs that are made."),
    click.option(
        "--script", "scripts", multiple=True, metavar="CALL",
        help="Check this call only, and write a script that reproduces it without msprobe. May be repeated.",
    ),
    click.option("--xlsx", is_flag=True, help="Write both tables as spreadsheets, too."),
    overwrite_option,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Asked:
    dump: Path
    out_path: Path
    save_error_data: bool
    devices: Sequence[str]
    shards: Path | None
    jit_compile: bool
    resumed: Path | None
    filter_api: bool
    config: Path | None
    inputs: str
    seed: int
    scripts: Sequence[str]
    xlsx: bool
    overwrites: bool
    workers: int | None


@click.command("acc_check")
@_options
@click.option(
    "-n", "--num_splits", "workers", type=click.IntRange(0, 64),
    help="Processes; 0 for none besides this one. By default as many as there are cores if there are many calls.",
)  # fmt: skip
def acc_check(*, workers: int | None, **given: Any) -> int:
    """Check each call of a dump by itself: is its result right for the inputs that it had.

    No second run is needed. Each call is replayed with its recorded inputs in float64 and in its own precision; what
    round-off does not explain is wrong.

    Exit status: 0 if nothing is wrong, 1 if something is, 2 if the dump cannot be read or no call could be checked.
    """
    return _run(_Asked(workers=workers, **given))


@click.command("multi_acc_check")
@_options
@click.option(
    "-n", "--num_splits", "workers", type=click.IntRange(1, 64), default=_NUM_SPLITS, show_default=True,
    help="Processes.",
)  # fmt: skip
def multi_acc_check(*, workers: int, **given: Any) -> int:
    """Do what acc_check does, in several processes."""
    return _run(_Asked(workers=workers, **given))


run_ut = click.Command("run_ut", callback=acc_check.callback, params=acc_check.params, help=acc_check.help, hidden=True)
multi_run_ut = click.Command(
    "multi_run_ut", callback=multi_acc_check.callback, params=multi_acc_check.params, help=multi_acc_check.help,
    hidden=True,
)  # fmt: skip


def _run(asked: _Asked) -> int:
    # numpy, polars and the framework are not needed for --help.
    from msprobe_core.api_check.dump_check import DumpCheck
    from msprobe_core.api_check.settings_file import CheckSettings, read_settings
    from msprobe_core.api_check.three_way import devices_called
    from msprobe_core.compat.mindspore_tables import form_of
    from msprobe_core.compat.published_tables import PublishedFiles, write_spreadsheets
    from msprobe_core.replay.frameworks import replaying_framework
    from msprobe_core.report.api_check import print_checks
    from msprobe_core.report.api_check_files import refuse_foreign_checks, write_checks

    if asked.jit_compile:
        click.echo("note: -j has no effect; calls are made one by one, without a compiler", err=True)
    settings = CheckSettings() if asked.config is None else read_settings(asked.config)
    check = DumpCheck.of(_dump_at(asked.dump), _check_options(asked, settings))
    if not check.entries and (settings.white_list or settings.black_list):
        raise ConfigError(f"{asked.config}: white_list and black_list leave no call of {asked.dump}; change them")
    if not check.entries:
        raise ConfigError(f"{asked.dump}: has no calls to check; record with level L1 or mix")
    if asked.devices:
        check = check.with_devices(devices_called(replaying_framework(check.framework), asked.devices))
    if asked.shards is not None:
        return _write_shards(check, asked.shards)
    if asked.scripts:
        return _write_scripts(check, asked.scripts, asked.out_path)
    resumed = None if asked.resumed is None else PublishedFiles.beside(asked.resumed)
    directory = asked.out_path if resumed is None else resumed.results.parent
    if not asked.overwrites:
        refuse_foreign_checks(directory)
    files = resumed or _unused_files(directory)
    verdicts = check.with_reach(_checked(check, files, asked, settings))
    if not verdicts:
        raise ConfigError(f"{asked.resumed}: has all calls of the dump already; leave out -csv_path to begin again")
    written = [files.results, files.details, *write_checks(verdicts, directory, dump=check.dump)]
    _journal_of(files).unlink(missing_ok=True)  # all of it is in the results
    if asked.save_error_data:
        stamp = files.results.stem.rpartition("_")[2]
        written += _error_data(check, verdicts, Path(settings.error_data_path or directory) / f"ut_error_data{stamp}")
    if asked.xlsx:
        sheets = write_spreadsheets(files, form_of(check.framework))
        written += [sheets.results, sheets.details]
    show(
        lambda console: print_checks(verdicts, console, dump=check.dump, files=written),
        "the results' files have all of it",
    )
    return _status(verdicts)


def _write_shards(check: DumpCheck, directory: Path) -> int:
    from msprobe_core.api_check.call_files import has_calls
    from msprobe_core.api_check.remote import store_computed
    from msprobe_core.cli.main import EXIT_AGREES

    if not check.options.devices:
        raise ConfigError("--write_shards: stores what a device computes; give the device with -d")
    if has_calls(check.dump):
        raise ConfigError(f"{check.dump}: is of --write_shards already; give the dump that its calls are of")
    with progress_bar("computing") as progress:
        number = store_computed(check.dump, check.entries, directory, check.options.devices, progress=progress)
    click.echo(f"Written: {directory}, {number:,} calls; judge them with `msprobe acc_check -api_info {directory}`")
    return EXIT_AGREES


def _error_data(check: DumpCheck, verdicts: Sequence[CallVerdict], directory: Path) -> list[Path]:
    """Write inputs and results of the calls that are not right; return the directory if there are any."""
    from msprobe_core.api_check.error_data import save_error_data
    from msprobe_core.api_check.verdict import Inputs, Verdict

    wrong = [
        verdict.entry
        for verdict in verdicts
        if verdict.verdict in (Verdict.WRONG, Verdict.ILL_CONDITIONED) and verdict.inputs is Inputs.RECORDED
    ]
    for entry in wrong:
        save_error_data(directory, *check.replayed(entry))
    return [directory] if wrong else []


def _write_scripts(check: DumpCheck, names: Sequence[str], directory: Path) -> int:
    """Check the calls with these names, of both directions if none is given, and write a script of each.

    Raises:
        ConfigError: the dump has no such call, or a script cannot be written.
    """
    from msprobe_core.api_check.reproducer import write_reproducer
    from msprobe_core.replay.frameworks import replaying_framework
    from msprobe_core.report.api_check import print_checks

    chosen: list[str] = []
    known = list(dict.fromkeys([*check.entries, *check.modules]))
    for name in names:
        own = [entry for entry in known if name in (entry, call_of(entry))]
        if not own:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "; give it as the results have it"
            raise ConfigError(f"--script {name}: the dump has no such call{hint}")
        chosen += own
    verdicts = check.with_reach(check.of_entries(chosen).run(workers=0))
    framework = replaying_framework(check.framework)
    command = shlex.join(["msprobe", *sys.argv[1:]])
    scripts: list[Path] = []
    try:
        for verdict in verdicts:
            call = check.read(verdict.entry)
            path = write_reproducer(call, verdict, framework, directory, command=command, place=str(check.dump))
            scripts.append(path)
    except ReplayError as error:
        raise ConfigError(f"--script {' '.join(names)}: it cannot be written as a script ({error})") from error
    show(lambda console: print_checks(verdicts, console, dump=check.dump, scripts=scripts), "")
    return _status(verdicts)


def _status(verdicts: Sequence[CallVerdict]) -> int:
    from msprobe_core.api_check.verdict import Verdict
    from msprobe_core.report.api_check_summary import CheckSummary

    summary = CheckSummary.of(verdicts)
    is_judged = any(verdict.outputs for verdict in verdicts)
    is_wrong = summary.is_fault or summary.counts[Verdict.SUSPECT] > 0
    return exit_status(is_wrong=is_judged and is_wrong, is_judged=is_judged)


def _check_options(asked: _Asked, settings: CheckSettings) -> CheckOptions:
    from msprobe_core.api_check.dump_check import CheckOptions
    from msprobe_core.api_check.verdict import Inputs

    made = asked.inputs in ("random", "synthetic")
    return CheckOptions(
        white_list=settings.white_list,
        black_list=settings.black_list,
        once_per_kind=asked.filter_api,
        inputs=Inputs(asked.inputs) if made else Inputs.RECORDED,
        missing_inputs=Inputs.SYNTHETIC if asked.inputs == "all" else None,
        probes=asked.inputs in ("exact", "all"),
        seed=asked.seed,
        quantization_apis=settings.quantization_api_list,
    )


def _checked(check: DumpCheck, files: PublishedFiles, asked: _Asked, settings: CheckSettings) -> list[CallVerdict]:
    """Check the calls that are left, and write each API's rows as soon as they are known."""
    from msprobe_core.api_check.journal import Journal
    from msprobe_core.compat.mindspore_tables import form_of
    from msprobe_core.compat.published_tables import PublishedTables, write_published_tables
    from msprobe_core.store.layout import make_directory

    make_directory(files.results.parent)
    path = _journal_of(files)
    is_foreign = asked.resumed is not None and not path.exists()
    form = form_of(check.framework)
    tables = PublishedTables(files, form=form, decimals=settings.precision, resumes=is_foreign)
    with closing(Journal(path, check.digest)) as journal, closing(tables):
        found = dict(journal.verdicts)
        rows = _Rows(tables, check.entries, skipped=tables.finished)
        rows.add(*found.values())
        left = [entry for entry in check.entries if call_of(entry) not in tables.finished]
        with progress_bar("checking") as progress:
            try:
                for verdict in check.of_entries(left).run(workers=asked.workers, known=found, progress=progress):
                    journal.append(verdict)
                    found[verdict.entry] = verdict
                    rows.add(verdict)
            except KeyboardInterrupt:
                _say_how_to_resume(len(found), len(left), files, asked)
                raise
    ordered = sorted(found.values(), key=lambda verdict: verdict.position)
    if not is_foreign:  # the rows are in the order in which the calls were finished
        write_published_tables(ordered, files, form=form, decimals=settings.precision)
    return ordered


def _dump_at(path: Path) -> Path:
    """Return the only dump at a path: a file and a directory of ``--write_shards`` are taken as they are.

    Raises:
        CompareError: there is none, or there are several.
    """
    from msprobe_core.api_check.call_files import has_calls
    from msprobe_core.store.reading import check_exists

    check_exists(path)
    return path if path.is_file() or has_calls(path) else one_rank(path)


def _unused_files(directory: Path) -> PublishedFiles:
    """Return tables of the first second from now on that no other check has taken, and take it: make its journal.

    Raises:
        StoreError: nothing can be written there.
    """
    from msprobe_core.compat.published_tables import PublishedFiles
    from msprobe_core.store.layout import make_directory

    make_directory(directory)
    begin = time.time()
    for seconds in range(_MOST_AT_ONCE):
        stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(begin + seconds))
        files = PublishedFiles.of(directory, stamp)
        if files.results.exists() or files.details.exists():
            continue
        path = _journal_of(files)
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            continue
        except OSError as error:
            raise StoreError(f"{path}: cannot be created ({error.strerror}); give -o another directory") from error
        return files
    raise StoreError(f"{directory}: has tables of {_MOST_AT_ONCE} checks from now on; give -o another directory")


_MOST_AT_ONCE = 1000
"""Limit of checks that begin within so many seconds and write to one directory."""


def _say_how_to_resume(num_done: int, num_all: int, files: PublishedFiles, asked: _Asked) -> None:
    command = ["msprobe", *sys.argv[1:]]
    if asked.resumed is None:
        command += ["-csv_path", str(files.results)]
    click.echo(
        f"msprobe: interrupted; {num_done:,} of {num_all:,} calls are checked. To go on from there:\n"
        f"  {shlex.join(command)}",
        err=True,
    )


def _journal_of(files: PublishedFiles) -> Path:
    return files.results.with_name(f".acc_check_{files.results.stem.rpartition('_')[2]}.journal")


class _Rows:
    """Passes the verdicts on to the tables once those on all calls of an API are known."""

    def __init__(self, tables: PublishedTables, entries: Sequence[str], skipped: frozenset[str]) -> None:
        self._tables = tables
        self._left: dict[str, int] = {}
        for entry in entries:
            if (api := call_of(entry)) not in skipped:
                self._left[api] = self._left.get(api, 0) + 1
        self._known: dict[str, list[CallVerdict]] = {}

    def add(self, *verdicts: CallVerdict) -> None:
        for verdict in verdicts:
            own = self._known.setdefault(verdict.api, [])
            own.append(verdict)
            if len(own) == self._left.get(verdict.api):
                own = self._known.pop(verdict.api)
                self._tables.append(sorted(own, key=lambda each: each.phase.value, reverse=True))
