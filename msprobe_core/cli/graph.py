"""``msprobe graph_visualize``, formerly ``graph``: the page, with the options of established scripts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msprobe_core.cli.incomplete import allow_incomplete_option
from msprobe_core.cli.output_options import output_option, with_options
from msprobe_core.cli.view import Asked, built, status_of_page, write
from msprobe_core.protocols.presentation import Page

if TYPE_CHECKING:
    from msprobe_core.compare.layouts.rules import LayoutRules, Ranks

_BOTH = "one value, or one for the target and one for the golden run"
_LISTS = ("--rank_size", "--tp", "--pp", "--vpp", "--order")
_ORDER = "tp-cp-ep-dp-pp"


class _ListCommand(click.Command):
    """Takes options with one value or two, as argparse does: ``--tp 4 2``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the values of such options before they are parsed."""
        joined: list[str] = []
        option = ""
        for arg in args:
            if option and not arg.startswith("-") and joined[-1] != option:
                joined[-1] += f" {arg}"
                continue
            if arg.startswith("-"):
                option = arg if arg in _LISTS else ""
            joined.append(arg)
        return super().parse_args(ctx, joined)


_options = with_options(
    click.option("-tp", "--target_path", type=click.Path(path_type=Path), help="Directory of a rank, a step or a run."),
    click.option("-gp", "--golden_path", type=click.Path(path_type=Path), help="Trusted run, of the same kind."),
    click.option(
        "-i",
        "--input_path",
        type=click.Path(path_type=Path),
        help="compare.json with npu_path and, optionally, bench_path.",
    ),
    output_option("Directory for build_TIME.html or compare_TIME.html."),
    click.option("-f", "-fm", "--fuzzy_match", is_flag=True, help="Pair calls even if their order differs."),
    click.option(
        "-lm", "--layer_mapping", metavar="[YAML]", is_flag=False, flag_value="", help="Layers that belong together."
    ),
    click.option("-oc", "--overflow_check", is_flag=True, help="Accepted; calls that make NaN or Inf always show."),
    click.option("-tensor_log", "--is_print_compare_log", is_flag=True, help="Accepted; the page has every value."),
    click.option("-progress_log", "--progress_log", is_flag=True, help="Accepted; on a terminal there is a bar."),
    click.option("--rank_size", metavar="N [N]", help=f"Number of ranks: {_BOTH}."),
    click.option("--tp", metavar="N [N]", help=f"Ranks that share each layer: {_BOTH}; they are merged."),
    click.option("--pp", metavar="N [N]", help=f"Stages of the pipeline: {_BOTH}; they are merged."),
    click.option("--vpp", metavar="N [N]", help="Model chunks of a stage; only 1 can be merged."),
    click.option("--order", metavar="ORDER [ORDER]", help=f"How ranks are numbered; {_ORDER} by default."),
    click.option(
        "--file_type",
        type=click.Choice(["db", "json"]),
        help="db: also the SQLite file that the TensorBoard plugin reads; json: not supported, see msprobe convert.",
    ),
    allow_incomplete_option,
)


def _command(name: str, short_help: str, *, hidden: bool) -> click.Command:
    @click.command(name, cls=_ListCommand, help=_run.__doc__, short_help=short_help, hidden=hidden)
    @_options
    def run(**given: Any) -> int:
        return _run(**given)

    return run


def _run(
    *,
    target_path: Path | None,
    golden_path: Path | None,
    input_path: Path | None,
    output_path: Path,
    fuzzy_match: bool,
    layer_mapping: str | None,
    rank_size: str | None,
    tp: str | None,
    pp: str | None,
    vpp: str | None,
    order: str | None,
    file_type: str | None,
    allows_incomplete: bool,
    **accepted: bool,
) -> int:
    """Show the graph of a run, or of two side by side, on one page: `msprobe view` with established options."""
    del accepted  # the page always has what they ask for
    from msprobe_core.view.inputs import Subject, requested
    from msprobe_core.view.stored_graphs import StoredGraphs

    if (input_path is None) == (target_path is None):
        raise click.UsageError("give the run: -tp TARGET [-gp GOLDEN], or -i compare.json")
    if file_type == "json":
        raise click.UsageError(
            "--file_type json, a merged run as dumps, is not written here; leave it out for the page, or give db"
        )
    subject = requested(input_path) if input_path is not None else Subject(_given(target_path), golden_path)
    asked = Asked(
        subject=subject.target, golden=subject.golden, output_path=output_path, noise="auto", mapping=None, groups=None,
        fuzzy_match=fuzzy_match, data_mapping=None, cell_mapping=None, api_mapping=None, layer_mapping=layer_mapping,
        layouts=None, limits=(), limits_file=None, steps=None, ranks=None, executor=None, workers=None,
        ray_address=None,
    )  # fmt: skip
    rules = _rules(rank_size, tp, pp, vpp, order)
    if rules is not None:
        asked = replace(asked, declared=rules)
    stem = f"{'build' if subject.golden is None else 'compare'}_{time.strftime('%Y%m%d%H%M%S')}"
    with closing(StoredGraphs()) as graphs:
        data = built(subject, asked, graphs)
        write(data, graphs, output_path / f"{stem}.html")
        if file_type == "db":
            from msprobe_core.exports.exports_offer import DATABASE
            from msprobe_core.plugins import registry

            (path,) = registry().exports()[DATABASE].write(Page(data, graphs, output_path, stem))
            click.echo(f"Database: {path}")
    return status_of_page(data, allows_incomplete=allows_incomplete)


def _given(path: Path | None) -> Path:
    assert path is not None
    return path


def _rules(
    rank_size: str | None, tp: str | None, pp: str | None, vpp: str | None, order: str | None
) -> LayoutRules | None:
    """Return how the ranks of both sides are arranged; ``None`` if not given."""
    if all(text is None for text in (rank_size, tp, pp, vpp, order)):
        return None
    from msprobe_core.compare.layouts.rules import LayoutRules, Side

    if rank_size is None or tp is None or pp is None:
        raise click.UsageError("to merge ranks, --rank_size, --tp and --pp are all needed, for example 8, 2 and 2")
    if any(number != 1 for number in _numbers("--vpp", vpp or "1")):
        raise click.UsageError("--vpp: several model chunks in a stage cannot be put together; leave --tp and --pp out")
    sizes, tps, pps = (_numbers(name, text) for name, text in (("--rank_size", rank_size), ("--tp", tp), ("--pp", pp)))
    orders = (order or _ORDER).split()
    ranks = {side: _ranks(_of(sizes, i), _of(tps, i), _of(pps, i), _of(orders, i)) for i, side in enumerate(Side)}
    return LayoutRules(ranks=ranks)


def _numbers(name: str, text: str) -> list[int]:
    parts = text.split()
    if len(parts) not in (1, 2) or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise click.UsageError(f"{name} is {text!r}; give {_BOTH}")
    return [int(part) for part in parts]


def _of(values: Sequence[Any], side: int) -> Any:
    return values[min(side, len(values) - 1)]


def _ranks(rank_size: int, tp: int, pp: int, order: str) -> Ranks:
    from msprobe_core.compare.layouts.rules import Ranks

    if rank_size % (tp * pp):
        raise click.UsageError(f"--rank_size {rank_size} is no multiple of --tp {tp} times --pp {pp}")
    axes = order.split("-")
    if sorted(axes) != sorted(_ORDER.split("-")):
        raise click.UsageError(f"--order is {order!r}; give the axes of {_ORDER} in another order")
    sizes = {"tp": tp, "pp": pp, "dp": rank_size // (tp * pp)}
    return Ranks(tuple((axis, sizes[axis]) for axis in axes if sizes.get(axis, 1) > 1))


graph_visualize = _command("graph_visualize", "The page of msprobe view, with the options of 26.x.", hidden=False)
graph = _command("graph", "The former name of graph_visualize.", hidden=True)
