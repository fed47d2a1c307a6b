"""``msprobe compare``: compare two dumps and report where they diverge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from msprobe_core.cli.incomplete import allow_incomplete_option, exit_status
from msprobe_core.cli.output_options import output_option, overwrite_option
from msprobe_core.cli.pairing import Pairing, noise_given, pairing_options
from msprobe_core.cli.progress import progress_bar
from msprobe_core.cli.reports import report_option, say_written
from msprobe_core.cli.show import show
from msprobe_core.compat.formats import GENERATION_A
from msprobe_core.errors import MissingPathError
from msprobe_core.former_names.table import COMPARE_MODES, COMPARE_OPTIONS, OFFLINE_MODELS
from msprobe_core.interrupts import raise_if_interrupted
from msprobe_core.plugins import registry
from msprobe_core.report.own_format import OWN_FORMAT
from msprobe_core.store.results import read_json

if TYPE_CHECKING:
    from msprobe_core.compare import Chosen, CompareOptions
    from msprobe_core.protocols.trainers import ModuleMap
    from msprobe_core.report.files import TableOptions


def _options_of_other_modes(command: Any) -> Any:
    """Accept options of modes that do not exist here, with or without a value, to name the replacement."""
    for names in COMPARE_OPTIONS:
        command = click.option(*names, is_flag=False, flag_value="", hidden=True)(command)
    return command


class _Comparing(click.Command):
    """A command whose option ``--compat`` takes the table formats that plugins offer."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        offered = {name: offer.summary for name, offer in registry().tables().items() if name != OWN_FORMAT}
        *others, last = (f"{summary} ({_marked(name)})" for name, summary in offered.items())
        params = super().get_params(ctx)
        for param in params:
            if isinstance(param, click.Option) and param.name == "layout":
                param.type = click.Choice(list(offered))
                param.help = f"Write tables in the format of {', '.join(others)} or {last}."
        return params


def _marked(name: str) -> str:
    return f"{name}; implied by -i" if name == GENERATION_A else name


@click.command(cls=_Comparing)
@click.option(
    "-m",
    "--mode",
    type=click.Choice(COMPARE_MODES),
    default="auto",
    help="Accepted as in 26.x; only auto, which detects the kind of the two, is supported.",
)
@_options_of_other_modes
@click.option(
    "-tp", "--target_path", type=click.Path(path_type=Path), help="Run under test: dump.json, or a directory."
)
@click.option("-gp", "--golden_path", type=click.Path(path_type=Path), help="Trusted run, of the same kind.")
@click.option("-i", "--input_path", type=click.Path(path_type=Path), help="compare.json with npu_path and bench_path.")
@output_option()
@overwrite_option
@click.option("--xlsx", is_flag=True, help="Write spreadsheets; the same as --format xlsx, and implied by -i.")
@click.option("--format", "form", type=click.Choice(["csv", "xlsx", "parquet", "jsonl"]), help="Format of the tables.")
@click.option("--compat", "layout")
@click.option("-s", "--stack_mode", is_flag=True, help="With --compat a: show call stacks; other tables always do.")
@click.option("-c", "--compare_only", is_flag=True, help="With --compat a: write no advisor file.")
@click.option("-hl", "--highlight", is_flag=True, help="With --compat a: colour rows by the rules of 8.x.")
@pairing_options
@click.option("--config", metavar="YAML", help="Matrices to multiply tensors with before they are compared.")
@click.option("-da", "--diff_analyze", is_flag=True, help="Also write where ranks diverge first, as 26.x does.")
@click.option(
    "-tensor_log", "--is_print_compare_log", is_flag=True, help="Accepted; the table has a line for each row."
)
@click.option(
    "--replicas/--no-replicas",
    default=None,
    help="Compare ranks of the target that should hold equal values; by default for up to 16 ranks.",
)
@click.option(
    "--noise",
    type=click.Choice(["off", "auto", "measured", "closed"]),
    default="off",
    show_default=True,
    help="Judge by what rounding explains: measured by msprobe calibrate, by a formula, or auto.",
)
@click.option(
    "--consistent_check", is_flag=True, help="Compare training with a serving engine; --backend names the trainer's."
)
@click.option("--backend", metavar="NAME", help="With --consistent_check: fsdp or megatron, or what plugins offer.")
@click.option(
    "--align-tokens", "aligns_tokens", is_flag=True, help="Pair rows of tensors by the token ids that both recorded."
)
@click.option(
    "--resume", is_flag=True, help="Reuse the finished parts of an interrupted comparison to the same directory."
)
@report_option
@allow_incomplete_option
def compare(**given: Any) -> int:
    """Compare the dump of a run under test with that of a trusted run.

    Both paths name a dump.json or dump.arrow, a rank's directory, a step's directory (ranks are paired by number), or a
    run's directory (steps are paired by number).

    Exit status: 0 if every row is matched and within its limit, 1 if not, 2 if the dumps, or not all of them, could be
    compared.
    """
    _refuse_other_modes(given)
    asked = _Asked(**given)
    # polars and numpy are not needed for --help.
    from msprobe_core.compare.run import RunOptions, compare_run
    from msprobe_core.compat.first_differences import DifferenceFiles
    from msprobe_core.report.offered import report_formats, write_comparison_reports
    from msprobe_core.report.summary import summary_content
    from msprobe_core.report.terminal import print_summary

    formats = report_formats(asked.reports)
    request = _request(asked.target_path, asked.golden_path, asked.input_path)
    run = RunOptions(
        executor=asked.executor_name,
        workers=asked.executor_options,
        resume=asked.resume,
        checks_replicas=asked.replicas,
    )
    writer = DifferenceFiles(asked.output_path, _tables(asked), asked.overwrites, asked.diff_analyze)
    try:
        with progress_bar("comparing") as progress:
            result, files = compare_run(
                Path(request.npu_path),
                Path(request.bench_path),
                writer,
                options=_options(asked, request),
                chosen=_chosen(asked, request),
                run=run,
                progress=progress,
            )
        raise_if_interrupted()
    except KeyboardInterrupt:
        # A second interruption also ends the block of the progress bar.
        _say_how_to_resume(asked.output_path)
        raise
    show(
        lambda console: print_summary(result, files, console, allows_incomplete=asked.allows_incomplete),
        f"it is in {files.summary}",
    )
    if formats:
        content = summary_content(result, files.tables)
        say_written(write_comparison_reports(formats, content, asked.output_path))
    return exit_status(is_wrong=result.differs, incomplete=result.incomplete, allows_incomplete=asked.allows_incomplete)


def _refuse_other_modes(given: dict[str, Any]) -> None:
    mode = given.pop("mode")
    values = {names[0]: given.pop(names[-1].lstrip("-")) for names in COMPARE_OPTIONS}
    refused = [f"--mode {mode}"] * (mode != "auto") + [name for name, value in values.items() if value is not None]
    if refused:
        raise click.UsageError(f"{refused[0]}: {OFFLINE_MODELS}")


@dataclass(frozen=True, kw_only=True)
class _Asked(Pairing):
    """The options, as click gives them."""

    target_path: Path | None
    golden_path: Path | None
    input_path: Path | None
    output_path: Path
    xlsx: bool
    form: str | None
    layout: str | None
    stack_mode: bool
    compare_only: bool
    highlight: bool
    config: str | None
    diff_analyze: bool
    is_print_compare_log: bool
    replicas: bool | None
    noise: str
    consistent_check: bool
    backend: str | None
    aligns_tokens: bool
    resume: bool
    overwrites: bool
    allows_incomplete: bool
    reports: Sequence[str]


def _tables(asked: _Asked) -> TableOptions:
    from msprobe_core.report.files import TableForm, TableOptions, time_stamp

    if asked.xlsx and asked.form not in {None, "xlsx"}:
        raise click.UsageError(f"--xlsx and --format {asked.form} contradict each other; give one of them")
    is_old = asked.input_path is not None
    form = asked.form or ("xlsx" if asked.xlsx or is_old else None)
    return TableOptions(
        stamp=time_stamp(),
        form=None if form is None else TableForm(form),
        layout=asked.layout or (GENERATION_A if is_old else OWN_FORMAT),
        has_stacks=asked.stack_mode or None,
        has_highlights=asked.highlight,
        has_advice=not asked.compare_only,
    )


def _module_map(asked: _Asked) -> ModuleMap | None:
    if not asked.consistent_check:
        if asked.backend is not None:
            raise click.UsageError("--backend goes with --consistent_check; give both, or none")
        return None
    from msprobe_core.plugins import registry

    known = registry().module_maps()
    if asked.backend not in known:
        names = ", ".join(sorted(known)) or "none, as no plugin offers any; install msprobe-verl"
        given = "needs --backend" if asked.backend is None else f"does not know the backend '{asked.backend}'"
        raise click.UsageError(f"--consistent_check {given}; known are {names}")
    return known[asked.backend]


def _options(asked: _Asked, request: CompareRequest) -> CompareOptions:
    from msprobe_core.compare import CompareOptions
    from msprobe_core.compare.post_processing import load_post_processing

    return CompareOptions(
        stack_path=request.stack_file,
        limits=asked.limit_table,
        matching=asked.matching,
        post_processing=None if asked.config is None else load_post_processing(Path(asked.config)),
        layouts=asked.layout_rules,
        modules=_module_map(asked),
        aligns_tokens=asked.aligns_tokens,
        noise=noise_given(asked.noise, Path(request.bench_path)),
    )


class CompareRequest(msgspec.Struct, frozen=True):
    """The fields of a ``compare.json``; fields without a meaning here are ignored."""

    npu_path: str
    bench_path: str
    stack_path: str | None = None
    is_print_compare_log: bool = True
    rank_id: tuple[int, ...] = ()
    step_id: tuple[int, ...] = ()

    @property
    def stack_file(self) -> Path | None:
        """The stacks of the target, if given as a file; those of a directory are found there."""
        path = Path(self.stack_path) if self.stack_path else None
        if path is not None and not path.exists():
            raise MissingPathError(f"{path}: does not exist, and compare.json gives it as 'stack_path'")
        return path if path is not None and path.is_file() else None


def _request(target: Path | None, golden: Path | None, request: Path | None) -> CompareRequest:
    if request is not None:
        if target is not None or golden is not None:
            raise click.UsageError("give either -i, or -tp and -gp")
        what = 'a compare.json ({error}); it needs "npu_path" and "bench_path", both text'
        return read_json(request, CompareRequest, what)
    if target is None or golden is None:
        raise click.UsageError("both dumps are needed: -tp TARGET -gp GOLDEN (or -i compare.json)")
    return CompareRequest(str(target), str(golden))


def _chosen(asked: _Asked, request: CompareRequest) -> Chosen:
    from msprobe_core.compare import Chosen
    from msprobe_core.store.kernel_files import find_kernel_units

    chosen = asked.chosen
    if (request.step_id or request.rank_id) and find_kernel_units(Path(request.npu_path)):
        # In templates for other dumps these fields have no meaning.
        return Chosen(chosen.steps or request.step_id, chosen.ranks or request.rank_id)
    return chosen


def _say_how_to_resume(directory: Path) -> None:
    from msprobe_core.execute.kept import num_kept

    if number := num_kept(directory):
        click.echo(
            f"msprobe: interrupted; the tables of {number} pairs are in {directory}. Give the same command with "
            "--resume to go on from there.",
            err=True,
        )
