"""``msprobe verl doctor``."""

from __future__ import annotations

import sys

import click


@click.command()
def doctor() -> None:
    """Show which hooks attach to the installed verl, without importing it."""
    from msprobe.verl._doctor import check

    checkup = check()
    versions = ", ".join(f"{name} {version}" for name, version in checkup.versions.items())
    click.echo(f"installed: {versions or 'neither verl nor an engine'}")
    click.echo(checkup.switch)
    click.echo()
    width = max(len(finding.point.hook) for finding in checkup.findings)
    for finding in checkup.findings:
        point = finding.point
        click.echo(f"{finding.status:<15} {point.hook:<{width}}  {point.target}  (since {point.since})")
    click.echo()
    if "verl" not in checkup.versions and not checkup.records:
        click.echo("verl is not installed here: run this where the training runs")
        sys.exit(2)
    if checkup.lacks or not checkup.records:
        names = ", ".join(finding.point.target for finding in checkup.lacks) or "all stages of workers"
        click.echo(f"this verl lacks {names}: what they are for is not recorded, everything else is")
        sys.exit(1)
    click.echo("every hook that this verl has a module for attaches")
    sys.exit(2 if checkup.has_switch_error else 0)
