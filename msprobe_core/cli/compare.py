"""``msprobe compare``: compare two dumps and say where they part."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from msprobe_core.cli.show import show
from msprobe_core.errors import CompareError

if TYPE_CHECKING:
    from msprobe_core.compare.tensors import Progress


@click.command()
@click.option(
    "-tp", "--target_path", type=click.Path(path_type=Path), help="Run under test: dump.json, or a directory."
)
@click.option("-gp", "--golden_path", type=click.Path(path_type=Path), help="Trusted run, of the same kind.")
@click.option("-i", "--input_path", type=click.Path(path_type=Path), help="compare.json with npu_path and bench_path.")
@click.option(
    "-o",
    "--output_path",
    type=click.Path(path_type=Path),
    default=Path("output"),
    show_default=True,
    help="Directory for the results.",
)
@click.option("--xlsx", is_flag=True, help="Write a spreadsheet instead of csv; implied by -i.")
@click.option("-s", "--stack_mode", is_flag=True, help="Accepted; the call stack is shown whenever it was recorded.")
@click.option("-c", "--compare_only", is_flag=True, help="Accepted; the first fault is always named.")
@click.option("-hl", "--highlight", is_flag=True, help="Accepted; spreadsheets are always coloured.")
def compare(
    *,
    target_path: Path | None,
    golden_path: Path | None,
    input_path: Path | None,
    output_path: Path,
    xlsx: bool,
    stack_mode: bool,
    compare_only: bool,
    highlight: bool,
) -> int:
    """Compare the dump of a run under test with that of a trusted run.

    Both paths name a dump.json or dump.arrow, a rank's directory, or a step's directory, whose ranks are then paired by
    number.

    Exit status: 0 if every row is matched and within its limit, 1 if not, 2 if the dumps could not be compared.
    """
    del stack_mode, compare_only, highlight  # what they ask for is always done
    # polars and numpy are not needed to say --help.
    from msprobe_core.cli.main import EXIT_AGREES, EXIT_DIFFERENT
    from msprobe_core.compare import compare_dumps
    from msprobe_core.report import write_report
    from msprobe_core.report.terminal import print_summary

    request = _request(target_path, golden_path, input_path)
    with _progress_bar() as progress:
        result = compare_dumps(request.npu_path, request.bench_path, stack_path=request.stack_file, progress=progress)
    files = write_report(result, output_path, xlsx=xlsx or input_path is not None)
    show(lambda console: print_summary(result, files, console), f"it is in {files.summary}")
    return EXIT_AGREES if result.agrees else EXIT_DIFFERENT


class CompareRequest(msgspec.Struct, frozen=True):
    """The fields of a ``compare.json``; fields that have no meaning here are passed over."""

    npu_path: str
    bench_path: str
    stack_path: str | None = None
    is_print_compare_log: bool = True

    @property
    def stack_file(self) -> Path | None:
        """The stacks of the target, where they are given as a file; those of a directory are found there."""
        path = Path(self.stack_path) if self.stack_path else None
        if path is not None and not path.exists():
            raise CompareError(f"{path}: does not exist, and compare.json gives it as 'stack_path'")
        return path if path is not None and path.is_file() else None


def _request(target: Path | None, golden: Path | None, request: Path | None) -> CompareRequest:
    if request is not None:
        if target is not None or golden is not None:
            raise click.UsageError("give either -i, or -tp and -gp")
        return _read_request(request)
    if target is None or golden is None:
        raise click.UsageError("both dumps are needed: -tp TARGET -gp GOLDEN (or -i compare.json)")
    return CompareRequest(str(target), str(golden))


def _read_request(path: Path) -> CompareRequest:
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")  # a byte order mark, which editors add
        return msgspec.json.decode(content, type=CompareRequest)
    except OSError as error:
        raise CompareError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CompareError(
            f'{path}: is not a compare.json ({error}); it needs "npu_path" and "bench_path", both text'
        ) from error


@contextmanager
def _progress_bar() -> Generator[Progress, None, None]:
    """Give a callback that draws a bar on the terminal, if there is one, from the first call on."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal) as bar:
        task: Any = None

        def show(done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = bar.add_task("comparing tensors", total=total)
            bar.update(task, completed=done)

        yield show
