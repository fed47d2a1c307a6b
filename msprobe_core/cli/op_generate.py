"""``msprobe op_generate``: write a script that measures one call of a dump by published standards."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from msprobe_core.errors import ConfigError, ReplayError


@click.command("op_generate")
@click.option(
    "-i", "--config_input", "config", required=True, type=click.Path(path_type=Path),
    help="JSON file with dump_json_path, api_name, extract_api_path, propagation, data_mode, random_seed, iter_times.",
)  # fmt: skip
@click.option(
    "-o", "--api_output_path", "directory", default=".", type=click.Path(path_type=Path),
    help="Directory for the script.",
)  # fmt: skip
def op_generate(*, config: Path, directory: Path) -> int:
    """Write a script of one API, such as Functional.softmax.3.backward.py.

    It runs without msprobe: it makes the call on a device and in float64 on the CPU, and prints what published
    standards say of each result. `acc_check --script` writes one with limits from the call itself.

    Exit status: 0 if the script was written, 2 if not.
    """
    # numpy, polars and the framework are not needed for --help.
    from msprobe_core.api_check.op_config import read_op_config
    from msprobe_core.api_check.op_generate_script import write_op_script
    from msprobe_core.cli.main import EXIT_AGREES

    given = read_op_config(config)
    try:
        path = write_op_script(given, directory, command=shlex.join(["msprobe", *sys.argv[1:]]))
    except ReplayError as error:
        raise ConfigError(f"{config}: the call cannot be written as a script ({error})") from error
    click.echo(f"Written: {path}")
    return EXIT_AGREES
