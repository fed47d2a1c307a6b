"""``msprobe acc_check``: check every call of a dump by itself."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msprobe_core.cli.progress import progress_bar
from msprobe_core.errors import ConfigError

if TYPE_CHECKING:
    from msprobe_core.api_check.dump_check import DumpCheck
    from msprobe_core.api_check.verdict import CallVerdict

_DEFAULT_SPLITS = 8


def _options(command: Any) -> Any:
    options = (
        click.option(
            "-api_info", "--api_info_file", "dump", required=True, type=click.Path(path_type=Path),
            help="dump.json of one rank of one step, or its directory.",
        ),
        click.option("-o", "--out_path", default=".", type=click.Path(path_type=Path), help="Results' directory."),
        click.option(
            "-csv_path", "--result_csv_path", "resumed", type=click.Path(path_type=Path),
            help="accuracy_checking_result_*.csv of an interrupted run, to go on with.",
        ),
        click.option("-f", "--filter_api", is_flag=True, help="Check one call per API and kind of arguments."),
        click.option(
            "-config", "--config_path", "config", type=click.Path(path_type=Path),
            help="JSON or YAML file with white_list, black_list and error_data_path.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command("acc_check")
@_options
@click.option("-n", "--workers", type=click.IntRange(0, 64), help="Processes; 0 for none besides this one.")
def acc_check(*, workers: int | None, **given: Any) -> int:
    """Check each call of a dump by itself: is its result right for the inputs that it had.

    No second run is needed. Each call is replayed with its recorded inputs in float64 and in its own precision; what
    round-off does not explain is wrong.

    Exit status: 0 if nothing is wrong, 1 if something is, 2 if the dump cannot be read or no call could be checked.
    """
    return _run(workers=workers, **given)


def _run(
    *, dump: Path, out_path: Path, resumed: Path | None, filter_api: bool, config: Path | None, workers: int | None
) -> int:
    # numpy, polars and the framework are not needed for --help.
    from msprobe_core.api_check.dump_check import CheckOptions, DumpCheck
    from msprobe_core.api_check.journal import Journal
    from msprobe_core.api_check.settings_file import CheckSettings, read_settings
    from msprobe_core.cli.main import EXIT_AGREES, EXIT_DIFFERENT, EXIT_FAILED
    from msprobe_core.store.layout import make_directory

    settings = CheckSettings() if config is None else read_settings(config)
    options = CheckOptions(white_list=settings.white_list, black_list=settings.black_list, once_per_kind=filter_api)
    check = DumpCheck.of(dump, options)
    stamp = _stamp_of(resumed) if resumed is not None else time.strftime("%Y%m%d%H%M%S")
    directory = out_path if resumed is None else resumed.parent
    make_directory(directory)
    with closing(Journal(directory / f".acc_check_{stamp}.journal", check.digest)) as journal:
        verdicts = _checked(check, journal, workers)
    from collections import Counter

    click.echo(str(Counter(verdict.verdict.value for verdict in verdicts)))
    if not any(verdict.outputs for verdict in verdicts):
        return EXIT_FAILED
    return EXIT_DIFFERENT if any(verdict.verdict.value == "wrong" for verdict in verdicts) else EXIT_AGREES


def _checked(check: DumpCheck, journal: Any, workers: int | None) -> list[CallVerdict]:
    found = dict(journal.verdicts)
    with progress_bar("checking") as progress:
        for verdict in check.run(workers=workers, known=found, progress=progress):
            journal.append(verdict)
            found[verdict.entry] = verdict
    return sorted(found.values(), key=lambda verdict: verdict.position)


_STEM = "accuracy_checking_result_"


def _stamp_of(path: Path) -> str:
    if not path.name.startswith(_STEM):
        raise ConfigError(f"-csv_path {path}: give an {_STEM}*.csv of an earlier run")
    return path.stem.removeprefix(_STEM)
