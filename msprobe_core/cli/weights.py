"""``msprobe weights``: whether weights arrive as they were sent, hop by hop."""

from __future__ import annotations

from pathlib import Path

import click

from msprobe_core.cli.output_options import output_option, overwrite_option
from msprobe_core.cli.show import show


@click.group()
def weights() -> None:
    """Compare the weights of a trainer and a serving engine at each hop of each transfer."""


@weights.command()
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--chain",
    metavar="PLACES",
    help="Places to compare, for example sent,received; published names such as P2_sender,P5 are known.",
)
@click.option(
    "--map",
    "names",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="YAML or JSON file with patterns of names at any place, and what they are called in the others.",
)
@click.option("--enforce", is_flag=True, help="Places and tensors that are not there everywhere are differences too.")
@click.option(
    "--uwc",
    is_flag=True,
    envvar="UWC_ENABLE",
    help="Write stage1_bridge/report.json and so on too; also with the variable UWC_ENABLE.",
)
@output_option()
@overwrite_option
@click.option("--format", "form", type=click.Choice(["csv", "xlsx", "parquet"]), default="csv", help="What tables are.")
def compare(
    *, path: Path, chain: str | None, names: Path | None, enforce: bool, uwc: bool, output_path: Path,
    overwrites: bool, form: str,
) -> int:  # fmt: skip
    """Find the first hop that did not pass on what it was given, the tensors, and how they went wrong.

    DIR is the directory of a WeightLog, or a recorded run of an RL trainer. Exit status: 0 if all hops agree, 1 if one
    does not, 2 if nothing could be compared.
    """
    from msprobe_core.config.load import read_fields
    from msprobe_core.report.files import TableForm
    from msprobe_core.rl.outcome import print_outcome, write_outcome
    from msprobe_core.rl.published_weights import write_reports
    from msprobe_core.rl.weight_chain import compare_chain
    from msprobe_core.rl.weight_log import Hop

    hops = [Hop.named(name.strip()) for name in (chain or "").split(",") if name.strip()]
    given = {} if names is None else {str(key): str(value) for key, value in read_fields(names).items()}
    outcome = compare_chain(path, hops, names=given, is_enforced=enforce)
    if uwc:
        write_reports(outcome, output_path)
    files = write_outcome(outcome, output_path, TableForm(form), overwrites=overwrites, group="chain")
    show(lambda console: print_outcome(outcome, files, console), f"it is in {files[-1]}")
    return 0 if outcome.agrees else 1
