"""``msprobe responses``: anomalous answers of a training or a service."""

from __future__ import annotations

from pathlib import Path

import click

from msprobe_core.cli.output_options import output_option, overwrite_option
from msprobe_core.cli.show import show


@click.command()
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--tokens", metavar="FIELD", help="Field of the token ids, or of the text; known names by default.")
@click.option("--by", metavar="FIELD", help="Field by which answers are counted, such as step or policy_version.")
@click.option(
    "--max-share", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Share that may be anomalous."
)
@click.option(
    "--max-drift",
    metavar="TIMES",
    type=click.FloatRange(1, min_open=True),
    help="How many times length, log-probs and repetitions may change over all steps, of which at least 8 are needed.",
)
@output_option()
@overwrite_option
@click.option("--format", "form", type=click.Choice(["csv", "xlsx", "parquet"]), default="csv", help="What tables are.")
def responses(
    *,
    path: Path,
    tokens: str | None,
    by: str | None,
    max_share: float,
    max_drift: float | None,
    output_path: Path,
    overwrites: bool,
    form: str,
) -> int:
    """Find answers that loop, that are garbage, or whose log-probs are NaN.

    FILE has one answer per line, as JSON; or is a directory of such files, or a recorded run of an RL trainer. Exit
    status: 0 if no answer is anomalous, 1 if some are, 2 if there is none to check.
    """
    from msprobe_core.report.files import TableForm
    from msprobe_core.rl.outcome import print_outcome, write_outcome
    from msprobe_core.rl.responses import ResponseOptions, check_responses

    outcome = check_responses(path, ResponseOptions(tokens=tokens, by=by, max_share=max_share, max_drift=max_drift))
    files = write_outcome(outcome, output_path, TableForm(form), overwrites=overwrites, group="answers")
    show(lambda console: print_outcome(outcome, files, console), f"it is in {files[-1]}")
    return 0 if outcome.agrees else 1
