"""``msprobe plugins``: list the plugins, what each offers, and what is wrong with them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import click

from msprobe_core.cli.show import printing
from msprobe_core.findings import Level
from msprobe_core.plugins import Plugin, registry, shadowing_advice, shadowing_package
from msprobe_core.plugins.offers import KINDS
from msprobe_core.plugins.plugin_codes import PluginCode
from msprobe_core.protocols.framework import FrameworkOffer
from msprobe_core.scaffold import kinds, new_plugin

_PREFIX = "msprobe_register_"
_ADVICE = "redirect it to a file"


@click.group(invoke_without_command=True)
@click.pass_context
def plugins(ctx: click.Context) -> None:
    """List the installed plugins, and what each offers; `msprobe plugins check` tries them."""
    if ctx.invoked_subcommand is not None:
        return
    found = registry()
    # Every hook is called, so that a plugin that fails only then is listed as broken.
    offers = {hook: found.offers(hook) for hook in KINDS}
    with printing(_ADVICE):
        for plugin in found.plugins:
            _show(plugin)
        click.echo()
        for hook, offered in offers.items():
            is_framework = hook == "msprobe_register_frameworks"
            names = [_framework(offer) if is_framework else name for name, offer in offered.items()]
            click.echo(f"{hook.removeprefix(_PREFIX).replace('_', ' ')}: {', '.join(sorted(names)) or 'none'}")
    package = shadowing_package()
    if package is not None:
        click.echo(f"\nwarning: {shadowing_advice(package)}", err=True)


@plugins.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
def check(names: Sequence[str]) -> int:
    """Call every hook of the plugins of these names, or of all, and try what they offer.

    With `msprobe --debug plugins check` the traceback of each failure is shown too.

    Exit status: 0 if nothing is wrong, 1 if something is, 2 if there is no plugin of a name.
    """
    from msprobe_core.plugins.checking import are_well, check_plugins

    found = check_plugins(registry(), names)
    is_well = are_well(found)
    with printing(_ADVICE):
        for plugin in found:
            _show(plugin)
        click.echo("nothing is wrong" if is_well else "something is wrong")
    return 0 if is_well else 1


@plugins.command()
@click.argument("name")
@click.option("--kind", required=True, type=click.Choice(kinds()), help="What the plugin adds.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Directory to write; msprobe-NAME if left out.")
def new(name: str, kind: str, output: Path | None) -> None:
    """Write the package of a new plugin, msprobe-NAME, whose contract tests pass as they are."""
    written = new_plugin(name, kind, output)
    module = name.replace("-", "_")
    with printing("the package is written"):
        for path in written:
            click.echo(path)
        click.echo(
            f"Next: pip install -e '{output or f'msprobe-{name}'}[test]'; msprobe plugins check {module}; pytest"
        )


def _framework(offer: FrameworkOffer) -> str:
    is_there = importlib.util.find_spec(offer.package) is not None
    return offer.name if is_there else f"{offer.name} ({offer.package} is not installed)"


def _show(plugin: Plugin) -> None:
    offers = ", ".join(hook.removeprefix(_PREFIX) for hook in plugin.hooks) or "nothing"
    what = f"{offers}  {plugin.summary}"
    if any(problem.code is PluginCode.DISABLED for problem in plugin.problems):
        what = "DISABLED"
    elif any(problem.level is Level.ERROR for problem in plugin.problems):
        what = f"BROKEN  {offers}" if plugin.hooks else "BROKEN"
    click.echo(f"{plugin.name:<18} {plugin.version or '-':<9} {plugin.source:<18} {what}")
    for problem in plugin.problems:
        click.echo(f"    {problem.text}")
