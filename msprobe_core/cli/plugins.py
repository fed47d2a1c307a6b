"""``msprobe plugins``: list the plugins, what each offers, and why one does not work."""

from __future__ import annotations

import importlib.util

import click

from msprobe_core.plugins import Plugin, registry, shadowing_advice, shadowing_package
from msprobe_core.protocols.framework import FrameworkOffer


@click.command()
def plugins() -> None:
    """List the installed plugins, and what each offers."""
    found = registry()
    # Call every hook, so that a plugin that fails only then is listed as broken.
    offers = {
        "frameworks": [_framework(offer) for offer in found.frameworks().values()],
        "processors": list(found.processors()),
        "writers": list(found.writers()),
        "monitor writers": list(found.monitor_writers()),
        "readers": [reader.name for reader in found.readers()],
        "executors": list(found.executors()),
        "commands": list(found.commands()),
    }
    for plugin in found.plugins:
        click.echo(_describe(plugin))
    click.echo()
    for what, names in offers.items():
        click.echo(f"{what}: {', '.join(sorted(names)) or 'none'}")
    package = shadowing_package()
    if package is not None:
        click.echo(f"\nwarning: {shadowing_advice(package)}", err=True)


def _framework(offer: FrameworkOffer) -> str:
    is_there = importlib.util.find_spec(offer.package) is not None
    return offer.name if is_there else f"{offer.name} ({offer.package} is not installed)"


def _describe(plugin: Plugin) -> str:
    head = f"{plugin.name:<18} {plugin.version or '-':<9} {plugin.source:<18}"
    if plugin.problem is not None:
        return f"{head} BROKEN: {plugin.problem}"
    offers = ", ".join(hook.removeprefix("msprobe_register_") for hook in plugin.hooks) or "nothing"
    return f"{head} {offers}  {plugin.summary}"
