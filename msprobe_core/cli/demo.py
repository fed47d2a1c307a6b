"""``msprobe demo``: record a tiny model with and without a fault, locate the fault, and show it on a page."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.errors import ConfigError, MissingFrameworkError, MissingLibraryError, PluginError, printable

if TYPE_CHECKING:
    from msprobe_core.locate import LocateResult
    from msprobe_core.protocols.framework import FrameworkOffer

_PROGRAM = "train.py"
_TIMEOUT_S = 300
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
"""Environment variables of which one is set where windows can be opened, on Linux."""


@click.command()
@click.option(
    "-o",
    "--output_path",
    type=click.Path(path_type=Path),
    default=Path("msprobe_demo"),
    show_default=True,
    help="Directory for the program, both runs and the page.",
)
@click.option("--framework", metavar="NAME", help="Framework of the model, if several are installed.")
@click.option("--browser/--no-browser", default=True, help="Whether to open the page, where there is a display.")
@click.pass_context
def demo(ctx: click.Context, *, output_path: Path, framework: str | None, browser: bool) -> int:
    """Find a fault in a tiny model: record it twice, the second time with one wrong layer, and locate that layer.

    It takes a few seconds, and needs a framework and its plugin. The program stays in the directory to be read.

    Exit status: 0 if the fault was located and the page written, 2 if not.
    """
    from msprobe_core.cli.main import EXIT_AGREES, EXIT_FAILED
    from msprobe_core.cli.show import show
    from msprobe_core.cli.view import view
    from msprobe_core.locate import LocateVerdict
    from msprobe_core.report.locate_file import write_location
    from msprobe_core.report.locate_text import print_culprit

    offer = _chosen(framework or ctx.obj)
    program = _prepared(output_path, offer)
    click.echo(f"A tiny model of {offer.name}, trained for one step without a fault and with one: {program}")
    golden, target = _loss(program, ["golden"]), _loss(program, ["target", "--fault"])
    click.echo(f"Losses: golden {printable(golden)}, target {printable(target)}. What was recorded inside:")
    result = _located(output_path)
    file = write_location(result, output_path / "result")
    show(lambda console: print_culprit(result, console), f"it is in {file}")
    page = output_path / "view.html"
    if ctx.invoke(view, subject=output_path / "result", output_path=page, overwrites=True) != EXIT_AGREES:
        return EXIT_FAILED
    if browser and _has_display():
        _open(page)
    click.echo(_next_steps(output_path))
    return EXIT_AGREES if result.verdict is LocateVerdict.FAULT else EXIT_FAILED


def _chosen(name: str | None) -> FrameworkOffer:
    """Return the framework of a name, or the first that is installed, of those that have a demo."""
    from msprobe_core.plugins import registry

    offers = {each: offer for each, offer in registry().frameworks().items() if offer.demo is not None}
    if name is not None and name not in offers:
        known = ", ".join(offers) or "none"
        raise MissingFrameworkError(
            f"no plugin here has a demo of the framework {name!r}; known: {known}; see `msprobe doctor`"
        )
    for offer in offers.values() if name is None else [offers[name]]:
        if importlib.util.find_spec(offer.package) is not None:
            return offer
    if not offers:
        raise MissingFrameworkError(
            "no plugin of a framework is installed; install one, such as: pip install msprobe-pytorch; "
            "`msprobe doctor` says what is here"
        )
    missing = ", ".join(offer.package for offer in offers.values() if name in (None, offer.name))
    raise MissingLibraryError(
        f"the demo trains a model, and none of these packages is installed here: {missing}; install one"
    )


def _prepared(directory: Path, offer: FrameworkOffer) -> Path:
    """Return the path of the program in the directory, where results of an earlier demo are removed.

    Raises:
        ConfigError: the directory holds what no demo has written.
    """
    assert offer.demo is not None
    from msprobe_core.store.layout import check_place, create_file, make_directory

    check_place(directory)
    text = offer.demo.read_bytes()
    program = directory / _PROGRAM
    if directory.is_dir() and any(directory.iterdir()):
        if program.is_symlink() or not program.is_file() or program.read_bytes() != text:
            raise ConfigError(
                f"{directory} is not empty, and is not of an earlier demo of {offer.name}; name another with -o"
            )
        for name in ("golden", "target", "result"):
            if (directory / name).is_dir():
                shutil.rmtree(directory / name)
    make_directory(directory)
    with create_file(program) as file:
        file.write(text)
    return program


def _loss(program: Path, arguments: list[str]) -> str:
    """Run the program, and return the loss, which it prints last.

    Raises:
        PluginError: it failed.
    """
    command, place = [sys.executable, program.name, *arguments], program.parent
    try:
        done = subprocess.run(  # noqa: S603  # the program that a plugin brings
            command, cwd=place, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PluginError(f"{program} did not end within {_TIMEOUT_S} s; run it yourself: {_shown(command)}") from error
    lines = done.stdout.split()
    if done.returncode or not lines:
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        raise PluginError(
            f"{program} failed with status {done.returncode} and said: {said}; run it yourself in {place}: "
            f"{_shown(command)}; `msprobe doctor` says what is installed"
        )
    return lines[-1]


def _shown(command: list[str]) -> str:
    return shlex.join(command)


def _located(directory: Path) -> LocateResult:
    from msprobe_core.cli.pairing import noise_given
    from msprobe_core.compare import CompareOptions
    from msprobe_core.locate import LocateOptions, locate

    target, golden = directory / "target", directory / "golden"
    return locate(target, golden, LocateOptions(compare=CompareOptions(noise=noise_given("auto", golden))))


def _has_display() -> bool:
    return sys.platform != "linux" or any(os.environ.get(name) for name in _DISPLAYS)


def _open(page: Path) -> None:
    """Open the page in a browser with a window; one in the terminal would cover what was printed."""
    import webbrowser

    try:
        is_in_terminal = type(webbrowser.get()) is webbrowser.GenericBrowser and "BROWSER" not in os.environ
        if is_in_terminal or not webbrowser.open(page.absolute().as_uri()):
            click.echo("no browser could be opened; open the page yourself", err=True)
    except webbrowser.Error as error:
        click.echo(f"no browser could be opened ({error}); open the page yourself", err=True)


def _next_steps(directory: Path) -> str:
    place = f"./{directory}" if str(directory).startswith("-") else directory  # no option
    locate = shlex.join(["msprobe", "locate", f"{place}/target", f"{place}/golden"])
    return (
        "Next:\n"
        f"  read {directory / _PROGRAM}: four lines record a step, and your script needs the same\n"
        f"  {locate}   shows all of the evidence\n"
        "  msprobe doctor   says what would be recorded on this machine, and what hinders it"
    )
