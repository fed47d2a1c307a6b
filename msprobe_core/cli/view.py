"""``msprobe view``: show a run, or two and their divergence, on one page."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msprobe_core.cli.incomplete import allow_incomplete_option, exit_status, say_incomplete
from msprobe_core.cli.output_options import output_option, overwrite_option, with_options
from msprobe_core.cli.pairing import Pairing, noise_given, noise_option, pairing_options
from msprobe_core.cli.progress import progress_bar
from msprobe_core.errors import printable

if TYPE_CHECKING:
    from msprobe_core.compare.layouts.rules import LayoutRules, Ranks
    from msprobe_core.view.build import ViewOptions
    from msprobe_core.view.data import Said, ViewData
    from msprobe_core.view.inputs import Subject
    from msprobe_core.view.stored_graphs import StoredGraphs
    from msprobe_core.view.trends_live import LiveMonitor

PAGE = "view.html"

subject_options = with_options(
    click.argument("subject", type=click.Path(path_type=Path)),
    click.argument("golden", required=False, type=click.Path(path_type=Path)),
    noise_option,
    click.option(
        "--mapping",
        type=click.Path(path_type=Path),
        help="Manual matches, as downloaded from the page; the same as -dm.",
    ),
    click.option(
        "--groups", metavar="LIST", help="How ranks are arranged, innermost first, for example tp=2,pp=2,dp=4."
    ),
)
"""Adds the arguments and options for the input to a command, which receives them as fields of `Asked`."""


@click.command()
@subject_options
@output_option("The page, or the directory for it.")
@overwrite_option
@pairing_options
@click.option("--maps/--no-maps", "has_maps", default=True, help="Whether to read whole tensors for maps of errors.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="Of an RL run: the tokenizer.json, or its directory, that tokens are shown by; as configured by default.",
)
@click.option("--serve", "is_served", is_flag=True, help="Serve the page on this machine instead of writing a file.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="With --serve: port number; any free one by default."
)
@allow_incomplete_option
def view(**given: Any) -> int:
    """Show the run in SUBJECT, or where it diverges from the trusted run in GOLDEN, on one page.

    SUBJECT is a dump, a rank's, a step's or a run's directory; the directory of a recorded run of an RL trainer; or
    that of a result of `msprobe locate` or `compare`, which names its two runs itself, or of `msprobe acc_check`, which
    names its dump. The page is one file that needs neither network nor server.

    Exit status: 0 if there is a page of everything that was requested, 2 if not: there is none, or there is one that
    says which dump ended early, is damaged or missing.
    """
    flags = ("is_served", "port", "overwrites", "allows_incomplete")
    is_served, port, overwrites, allows_incomplete = (given.pop(name) for name in flags)
    asked = Asked(**given)
    from msprobe_core.rl.files import holds_run
    from msprobe_core.store.layout import check_place
    from msprobe_core.view.inputs import subject_of
    from msprobe_core.view.page_file import check_page
    from msprobe_core.view.stored_graphs import StoredGraphs

    path = page_path(asked.output_path)
    if not is_served:
        check_place(path.parent)
    if not is_served and not overwrites:
        check_page(path)
    if holds_run(asked.subject):
        data = _rl_page(asked)
        with closing(StoredGraphs()) as graphs:
            serve(data, graphs, port) if is_served else write(data, graphs, path)
        return status_of_page(data, allows_incomplete=allows_incomplete)
    subject = subject_of(asked.subject, asked.golden)
    if is_served and (live := _live(subject, asked)) is not None:
        with closing(StoredGraphs()) as graphs:
            serve(live.data, graphs, port, live)
        return 0
    with closing(StoredGraphs()) as graphs:
        data = built(subject, asked, graphs)
        if is_served:
            serve(data, graphs, port)
        else:
            write(data, graphs, path)
    return status_of_page(data, allows_incomplete=allows_incomplete)


def status_of_page(data: ViewData, *, allows_incomplete: bool) -> int:
    """Report what the page lacks because of incomplete dumps, and return the exit status."""
    from msprobe_core.view.data import text_of

    incomplete = list(map(text_of, data.verdict.incomplete))
    say_incomplete(incomplete)
    return exit_status(is_wrong=False, incomplete=incomplete, allows_incomplete=allows_incomplete)


@dataclass(frozen=True, kw_only=True)
class Asked(Pairing):
    """The arguments and options, as click provides them."""

    subject: Path
    golden: Path | None
    output_path: Path
    noise: str
    mapping: Path | None
    groups: str | None
    has_maps: bool = True
    tokenizer: Path | None = None
    declared: LayoutRules | None = None
    """How ranks are arranged, if given by options instead of a file."""


def _rl_page(asked: Asked) -> ViewData:
    """Return the data of the page of a recorded run of an RL trainer."""
    from msprobe_core.rl.recorded import open_run
    from msprobe_core.rl_page.build import RLPageOptions, page_of

    run, golden = open_run(asked.subject), None if asked.golden is None else open_run(asked.golden)
    options = RLPageOptions(
        steps=asked.chosen.steps, reads_tensors=asked.has_maps, tokenizer=asked.tokenizer
    )  # fmt: skip
    with progress_bar("compared") as progress:
        return page_of(run, golden, options, progress)


def built(subject: Subject, asked: Asked, graphs: StoredGraphs) -> ViewData:
    """Return the data of a page, drawing a progress bar meanwhile."""
    from msprobe_core.view.build import build

    with progress_bar("looked at") as progress:
        options = _options(subject, asked)
        return build(subject.target, subject.golden, graphs, options, subject.location, progress, subject.checks)


def _options(subject: Subject, asked: Asked) -> ViewOptions:
    from msprobe_core.compare import CompareOptions
    from msprobe_core.locate.engine import LocateOptions
    from msprobe_core.view.build import ViewOptions

    if asked.mapping is not None:
        if asked.data_mapping is not None:
            raise click.UsageError("--mapping and -dm are the same; give one of them")
        asked = replace(asked, data_mapping=str(asked.mapping))
    layouts = asked.declared or asked.layout_rules
    compare = CompareOptions(
        limits=asked.limit_table,
        matching=asked.matching,
        layouts=layouts,
        noise=None if subject.golden is None else noise_given(asked.noise, subject.golden),
    )
    ranks = None if asked.groups is None else _ranks_of(asked.groups)
    if ranks is None and layouts is not None:
        from msprobe_core.compare.layouts.rules import Side

        ranks = layouts.ranks.get(Side.TARGET)
    locate = LocateOptions(
        compare=compare, chosen=asked.chosen, executor=asked.executor_name, workers=asked.executor_options
    )
    return ViewOptions(locate=locate, ranks=ranks, has_maps=asked.has_maps)


def _ranks_of(text: str) -> Ranks:
    from msprobe_core.compare.layouts.rules import Ranks

    sizes: list[tuple[str, int]] = []
    for part in text.split(","):
        axis, _, size = part.strip().partition("=")
        if not (axis.isidentifier() and size.isascii() and size.isdigit() and int(size)):
            raise click.UsageError(f"--groups is {text!r}; give axes with their sizes, for example tp=2,pp=2,dp=4")
        sizes.append((axis, int(size)))
    return Ranks(tuple(sizes))


def page_path(path: Path) -> Path:
    """Return the path of the page: the named file, or one in the named directory."""
    is_file = path.suffix.lower() in {".html", ".htm"} and not path.is_dir()
    return path if is_file else path / PAGE


def write(data: ViewData, graphs: StoredGraphs, path: Path) -> None:
    """Write the page, and print its path."""
    from msprobe_core.findings import Finding
    from msprobe_core.view.data import said_of, text_of
    from msprobe_core.view.page_file import units_that_fit, write_page
    from msprobe_core.view.view_codes import ViewCode

    units = units_that_fit(data, graphs)
    left_out = len(graphs.sizes) - len(units)
    if left_out:
        fields = {"count": left_out, "total": len(graphs.sizes)}
        data = replace_notes(data, said_of(Finding(ViewCode.NO_ROOM, fields=fields)))
    size = write_page(data, graphs, path, units)
    click.echo(printable(text_of(data.verdict.sentence)))
    for note in data.notes[-1:] if left_out else ():
        click.echo(f"note: {printable(text_of(note))}", err=True)
    click.echo(f"Page, {size / 1e6:.1f} MB: {path}")


def replace_notes(data: ViewData, note: Said) -> ViewData:
    """Return the data with one more note."""
    import msgspec

    return msgspec.structs.replace(data, notes=[*data.notes, note])


def _live(subject: Subject, asked: Asked) -> LiveMonitor | None:
    """Return the monitored training that is to be served as it goes on; ``None`` if there are dumps to be shown."""
    from msprobe_core.view.trends import holds_monitored_alone

    sides = [path for path in (subject.target, subject.golden) if path is not None]
    if not any(map(holds_monitored_alone, sides)):
        return None
    from msprobe_core.view.trends_live import LiveMonitor

    return LiveMonitor(subject.target, subject.golden, asked.chosen)


def serve(data: ViewData, graphs: StoredGraphs, port: int, live: LiveMonitor | None = None) -> None:
    """Serve the page until Ctrl-C."""
    from msprobe_core.view.data import text_of
    from msprobe_core.view.serve import PageServer

    with PageServer(data, graphs, port, live) as server:
        click.echo(printable(text_of(data.verdict.sentence)))
        click.echo(f"Page, for you on this machine until Ctrl-C: {server.url}")
        server.serve_forever()
