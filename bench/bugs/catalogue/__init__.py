"""The published bugs, by name."""

from __future__ import annotations

from functools import cache

from bench.bugs.bug import Bug, Catalogue, Variant


@cache
def bugs() -> dict[str, Bug]:
    """Return all bugs by name. Their programs import libraries only when they are made."""
    from bench.bugs.catalogue import generation, jobs, libraries, models, optimizers, quantization, trainings, vision

    catalogue = Catalogue()
    for module in (models, vision, libraries, optimizers, quantization, generation, trainings, jobs):
        module.add_to(catalogue)
    return catalogue.bugs


@cache
def variants() -> dict[str, Variant]:
    """Return all healthy programs of two ways by name."""
    from bench.bugs.catalogue.ways import VARIANTS

    return {variant.name: variant for variant in VARIANTS}


def subject_of(name: str) -> Bug | Variant:
    """Return the bug, or the healthy program of two ways, with a name."""
    return bugs().get(name) or variants()[name]


def in_layers(*patterns: str, number: int = 2) -> tuple[str, ...]:
    """Return paths of modules in each of the first layers."""
    return tuple(pattern.format(i) for i in range(number) for pattern in patterns)
