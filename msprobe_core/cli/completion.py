"""``msprobe completion``: the script that lets a shell complete commands, options and paths."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from msprobe_core.cli.show import show

PROGRAM = "msprobe"
VARIABLE = "_MSPROBE_COMPLETE"
"""Environment variable by which the script asks for completions; click looks for this name."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes the commands, options and values of msprobe.

    \b
    bash:  msprobe completion bash > ~/.local/share/bash-completion/completions/msprobe
    zsh:   msprobe completion zsh > a directory of $fpath, with the name _msprobe
    fish:  msprobe completion fish > ~/.config/fish/completions/msprobe.fish

    It takes effect in shells that are started afterwards; bash must be 4.4 or later.
    """  # noqa: D301  # click reads the backslash: the lines after it stay as they are
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells of the choice"
    # Not the method of the class for bash, which starts a bash to look at its version.
    script = ShellComplete.source(kind(ctx.find_root().command, {}, PROGRAM, VARIABLE))
    show(lambda _: click.echo(script), "free space or choose another place")
