"""The published bugs, by name."""

from __future__ import annotations

from functools import cache

from bench.bugs.bug import Bug, Catalogue


@cache
def bugs() -> dict[str, Bug]:
    """Return all bugs by name. Their programs import libraries only when they are made."""
    from bench.bugs.catalogue import jobs, libraries, models, optimizers, trainings, vision

    catalogue = Catalogue()
    for module in (models, vision, libraries, optimizers, trainings, jobs):
        module.add_to(catalogue)
    return catalogue.bugs


def bug_of(name: str) -> Bug:
    """Return a bug by its name."""
    return bugs()[name]


def in_layers(*patterns: str, number: int = 2) -> tuple[str, ...]:
    """Return paths of modules in each of the first layers."""
    return tuple(pattern.format(i) for i in range(number) for pattern in patterns)
