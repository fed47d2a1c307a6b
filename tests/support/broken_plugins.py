"""A plugin that is well, and the ways in which any one of its hooks, or any method of what it offers, can be broken."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import click
import polars as pl
from numpy_layers import ArrayFramework

from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import TaskLost
from msprobe_core.plugin import (
    ApiMap,
    Checkup,
    Column,
    Condition,
    FrameworkOffer,
    Health,
    ModuleMap,
    RunSettings,
    Statistic,
    Table,
    TrainerStages,
)
from msprobe_core.plugins import Plugin, registry
from msprobe_core.store.json_reader import read_json_dump
from msprobe_core.store.json_writer import JsonWriterFactory

NAME = "broken"
"""Of the plugin, and of everything that it offers."""


class Framework(ArrayFramework):
    name = NAME


class Recognised:
    """A dump of another format."""

    def recognises(self, path):
        return path.suffix == ".broken" or (path / "dump.broken").exists()

    def read(self, path):
        return read_json_dump(path / "dump.json")


def tables():
    def table(unit, choices):
        return Table([Column("value", pl.coalesce("name_target", "name_golden"))], unit.rows)

    return SimpleNamespace(name=NAME, summary="one column", table=table, titles=lambda: ["value"])


def executors():
    def run(function, tasks, options):
        for number, task in enumerate(tasks):
            outcome = function(task)
            yield number, outcome if outcome is not None else TaskLost("nothing")

    return SimpleNamespace(name=NAME, check=lambda options: None, run=run)


def writers():
    factory = JsonWriterFactory()
    return SimpleNamespace(name=NAME, check=factory.check, open=factory.open)


def monitor_writers():
    def opened(directory, rank, *, steps_per_file, ndigits):
        return SimpleNamespace(add=lambda step, values: None, close=lambda: None)

    return SimpleNamespace(name=NAME, open=opened)


def exports():
    def write(page):
        page.directory.mkdir(parents=True, exist_ok=True)
        path = page.directory / "broken.txt"
        path.write_text("written")
        return [path]

    return SimpleNamespace(name=NAME, summary="a text", needs_graphs=False, write=write)


HEALTHY: dict[str, Callable[[], Any]] = {
    "frameworks": lambda: FrameworkOffer(NAME, "numpy_layers", Framework),
    "processors": lambda: SimpleNamespace(
        name=NAME, reduce=lambda tensor, digest, reducer: reducer.statistics(tensor, digest)
    ),
    "statistics": lambda: Statistic(name=NAME, summary="largest magnitude", reduce=lambda values, _: abs(values).max()),
    "writers": writers,
    "monitor_writers": monitor_writers,
    "readers": lambda: SimpleNamespace(name=NAME, recognises=Recognised().recognises, read=Recognised().read),
    "executors": executors,
    "tables": tables,
    "exports": exports,
    "metrics": lambda: SimpleNamespace(name=NAME, compare=lambda target, golden: 1.0),
    "dump_checks": lambda: SimpleNamespace(name=NAME, summary="a look", check=lambda dump: []),
    "comparison_checks": lambda: SimpleNamespace(name=NAME, check=lambda unit: []),
    "live_checks": lambda: SimpleNamespace(name=NAME, check=lambda entry: []),
    "reports": lambda: SimpleNamespace(
        name=NAME, summary="a text", suffix="md", comparison=lambda summary: "", location=lambda found: ""
    ),
    "api_maps": lambda: ApiMap(name=NAME),
    "module_maps": lambda: ModuleMap(name=NAME),
    "commands": lambda: click.Command(NAME, callback=lambda: click.echo("done")),
    "stages": lambda: TrainerStages(NAME, {"train": "one step"}),
    "features": lambda: SimpleNamespace(name=NAME, make=lambda host: None),
    "checkups": lambda: Checkup(NAME, lambda: [Condition(code="broken.well", health=Health.OK, state="well")]),
    "run_settings": lambda: RunSettings(NAME, lambda: {"lr": 0.1}),
}
"""By hook, without ``msprobe_register_``: what makes an offer that works."""

METHODS = {
    "frameworks": ("load",),
    "processors": ("reduce",),
    "statistics": ("reduce",),
    "writers": ("check", "open"),
    "monitor_writers": ("open",),
    "readers": ("recognises", "read"),
    "executors": ("check", "run"),
    "tables": ("table", "titles"),
    "exports": ("write",),
    "metrics": ("compare",),
    "dump_checks": ("check",),
    "comparison_checks": ("check",),
    "live_checks": ("check",),
    "reports": ("comparison",),
    "commands": ("callback",),
    "features": ("make",),
    "run_settings": ("read",),
    "checkups": ("examine",),
}
"""By hook: what the core calls of its offers."""

PLACES = [(hook, None) for hook in HEALTHY] + [(hook, name) for hook, names in METHODS.items() for name in names]
"""Each hook itself, and each method of its offers."""


def raise_error(*_args: Any, **_kwargs: Any) -> None:
    raise RuntimeError("planted")


def leave(*_args: Any, **_kwargs: Any) -> None:
    sys.exit(3)


WAYS: dict[str, Callable[..., Any]] = {
    "raises": raise_error,
    "exits": leave,
    "returns None": lambda *_args, **_kwargs: None,
    "wrong type": lambda *_args, **_kwargs: 42,
}


class Lacking:
    """An offer without one of its members."""

    def __init__(self, offer: Any, member: str) -> None:
        self._offer, self._member = offer, member

    def __getattr__(self, name: str) -> Any:
        if name == self._member:
            raise AttributeError(name)
        return getattr(self._offer, name)


class Replacing(Lacking):
    """An offer with another method in the place of one of its own."""

    def __init__(self, offer: Any, member: str, method: Any) -> None:
        super().__init__(offer, member)
        self._method = method

    def __getattr__(self, name: str) -> Any:
        return self._method if name == self._member else getattr(self._offer, name)


def broken_offer(hook: str, method: str, way: str, linger: Callable[[], object] = lambda: None) -> Any:
    """Return an offer that is broken in one way; one that hangs does at each call what is given."""
    offer = HEALTHY[hook]()
    if way == "missing member":
        return Lacking(offer, method)
    own = getattr(offer, method)

    def slow(*args: Any, **kwargs: Any) -> Any:
        linger()
        return own(*args, **kwargs)

    if isinstance(offer, Statistic):
        return dataclasses.replace(offer, reduce=WAYS.get(way, slow))
    if isinstance(offer, click.Command):
        offer.callback = WAYS.get(way, slow)
        return offer
    return Replacing(offer, method, WAYS.get(way, slow))


def implementation(
    hook: str, method: str | None, way: str, linger: Callable[[], object] = lambda: None
) -> Callable[[], Any]:
    """Return a hook that is broken, or that offers something broken."""
    if method is not None:
        return lambda: [broken_offer(hook, method, way, linger)]
    if way == "missing member":
        return lambda: [SimpleNamespace(name=NAME)]

    def slow() -> Any:
        linger()
        return [HEALTHY[hook]()]

    return WAYS.get(way, slow)


@contextmanager
def plugged(hook: str, offering: Callable[[], Any], name: str = NAME) -> Iterator[Plugin]:
    """Register a plugin with one hook for the block."""
    specname = f"msprobe_register_{hook}"

    @hookimpl(specname=specname)
    def offer() -> Any:
        return offering()

    plugin = Plugin(name, "1.0", f"msprobe-{name}")
    registry().add(plugin, lambda: SimpleNamespace(**{specname: offer}))
    try:
        yield plugin
    finally:
        registry().manager.unregister(name=name) if registry().manager.has_plugin(name) else None
        registry()._plugins.pop(name, None)
