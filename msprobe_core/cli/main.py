"""Entry point: parse, call, print; the only place that turns errors into sentences and exit codes."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import traceback
from difflib import get_close_matches
from typing import Any

import click

from msprobe_core._version import __version__
from msprobe_core.errors import (
    FILE_CODE,
    INTERNAL_CODE,
    BrokenPluginError,
    MsprobeError,
    UnknownCommandError,
    printable,
)
from msprobe_core.former_names.table import COMMANDS
from msprobe_core.guard import described
from msprobe_core.interrupts import Interrupts

EXIT_AGREES = 0
EXIT_DIFFERENT = 1
EXIT_FAILED = 2
EXIT_SIGNAL = 128
"""The signal's number is added to this."""

_ALLOCATOR = "_RJEM_MALLOC_CONF", "dirty_decay_ms:100,muzzy_decay_ms:0"
"""Makes polars' allocator return memory soon after it is freed; by default it keeps most of it until a short command
ends. It is read when polars is imported, here and in the processes that a command starts."""

DEBUG_VARIABLE = "MSPROBE_DEBUG"

PLUGIN_LOGGER = "msprobe_core.plugins"
_OFF = {"", "0", "false", "no", "off"}


class _PluginGroup(click.Group):
    """A group whose commands come from plugins, which are loaded when a command is looked up."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (MsprobeError, OSError, click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            raise _named_error(ctx.invoked_subcommand, error) from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return _commands().get(cmd_name) or _former(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest commands if there is none of a name; the oldest click that is allowed does not."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            close = get_close_matches(name.lower(), self.list_commands(ctx))
            advice = f"did you mean {' or '.join(map(repr, close))}?" if close else "`msprobe --help` lists them"
            ctx.fail(f"there is no command {name!r}; {advice}")
        return super().resolve_command(ctx, args)


def _commands() -> dict[str, click.Command]:
    from msprobe_core.plugins import registry

    return registry().commands()


def _named_error(command: str | None, error: Exception) -> Exception:
    """Return an error that names the plugin of a command that failed; the error itself if the core has the command."""
    from msprobe_core.plugins import registry

    plugin = None if command is None else registry().provider_of("msprobe_register_commands", command)
    if plugin is None:
        return error
    return BrokenPluginError(
        f"the command {command!r} of the plugin '{plugin}' failed ({described(error)}); run it again with "
        "`msprobe --debug …`, and report the traceback to the plugin's authors"
    )


def _leave_out(_ctx: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> None:
    """Leave plugins out, here and in the processes that a command starts."""
    if names:
        from msprobe_core.plugins.discovery import DISABLE_VARIABLE  # imported when a command is looked up

        given = os.environ.get(DISABLE_VARIABLE, "")
        os.environ[DISABLE_VARIABLE] = ",".join([*filter(None, [given]), *names])


def _former(name: str) -> click.Command | None:
    """Return a placeholder for a command of another release, which names the replacement, whatever its arguments."""
    if name not in COMMANDS:
        return None

    def refuse() -> None:
        raise UnknownCommandError(f"there is no command {name!r}: {COMMANDS[name]}")

    anything = click.Argument(["arguments"], nargs=-1, expose_value=False, type=click.UNPROCESSED)
    settings: dict[str, Any] = {"ignore_unknown_options": True}
    return click.Command(name, params=[anything], callback=refuse, context_settings=settings, add_help_option=False)


@click.group(cls=_PluginGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="msprobe", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "--no-plugin",
    multiple=True,
    metavar="NAME",
    is_eager=True,
    expose_value=False,
    callback=_leave_out,
    help="Leave a plugin out; may be given several times.",
)
@click.option(
    "-f",
    "--framework",
    metavar="NAME",
    help="Accepted as in published tutorials (-f pytorch), without effect: dumps name their framework.",
)
@click.pass_context
def _root(ctx: click.Context, *, debug: bool, framework: str | None) -> None:
    """Find where a training run goes wrong: compare its dump with that of a trusted run."""
    del debug  # `_run` has evaluated it already, because parsing may fail too
    ctx.obj = framework


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: Without the program's name; ``None`` uses those of the process.

    Exit status: 0 on success, 1 if a comparison found differences, 2 if a command could not do its work, and 128 plus
    the number of the signal that ended it: 130 after Ctrl-C, 143 after SIGTERM.
    """
    os.environ.setdefault(*_ALLOCATOR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # paths may contain bytes that are not text
    logging.basicConfig(format="msprobe: %(levelname)s: %(message)s", level=logging.WARNING)
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    with Interrupts() as interrupts:
        status = _status_of(arguments, interrupts)
    return status if interrupts.number is None else EXIT_SIGNAL + interrupts.number


def _status_of(arguments: list[str], interrupts: Interrupts) -> int:
    wants_traceback = "--debug" in arguments or os.environ.get(DEBUG_VARIABLE, "").lower() not in _OFF
    if wants_traceback:
        logging.getLogger(PLUGIN_LOGGER).setLevel(logging.DEBUG)  # has the tracebacks of plugins that are left out
    try:
        status: Any = _root.main(arguments, prog_name="msprobe", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return EXIT_FAILED
    except (click.Abort, KeyboardInterrupt):
        return EXIT_SIGNAL + signal.SIGINT
    except Exception as error:  # noqa: BLE001  # users get a sentence, not a traceback
        if interrupts.number is not None:  # the error is a consequence of the signal, in native code
            return EXIT_FAILED
        if wants_traceback:
            traceback.print_exc()
        if isinstance(error, MsprobeError):
            return _fail(str(error), error.code)
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            return _fail(
                f"{_name_in(error)}: {error.strerror}; change the permissions, free space or choose another path",
                FILE_CODE,
            )
        return _fail(
            f"internal error ({type(error).__name__}: {error}); run again with `msprobe --debug …` and report the "
            "traceback",
            INTERNAL_CODE,
        )
    return status if isinstance(status, int) else EXIT_AGREES


def _name_in(error: OSError) -> str:
    return os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)


def _fail(sentence: str, code: str) -> int:
    # At the end, where scripts that look for the begin of the line, and people, find the sentence first.
    click.echo(f"msprobe: error: {printable(' '.join(sentence.split()))} [{code}]", err=True)
    return EXIT_FAILED
