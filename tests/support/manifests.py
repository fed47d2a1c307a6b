"""Manifests for tests, made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msprobe_core.manifest.facts import (
    DataRows,
    Device,
    Generator,
    Library,
    Manifest,
    Model,
    Module,
    Optimizer,
    ParameterGroup,
    RunFacts,
    Scalar,
    Variable,
)
from msprobe_core.store.manifest_file import write_manifest


def model_of(*modules: tuple[str, str, dict[str, Scalar]], **settings: Scalar) -> Model:
    """Return a model of modules, each given as path, class and settings."""
    parts = tuple(Module(path=path, type=kind, settings=own) for path, kind, own in modules)
    return Model(modules=(Module(path="", type="torch.nn.Module"), *parts), settings=settings)


def manifest(
    models: tuple[Model, ...] = (),
    *,
    lr: float = 1e-3,
    seed: int = 1,
    rows: tuple[str, ...] = ("a", "b"),
    environment: Mapping[str, str] | None = None,
    **switches: Any,
) -> Manifest:
    """Return the manifest of a process with PyTorch, one optimizer, one generator and one input."""
    run = RunFacts(
        framework=Library(name="torch", version="2.13.0"),
        device=Device(kind="cpu", count=1),
        switches=switches,
        generators=(Generator(name="torch.cpu", state=f"{seed:016x}", seed=seed),),
        models=models,
        optimizers=(Optimizer(type="torch.optim.SGD", groups=(ParameterGroup(settings={"lr": lr}),)),),
    )
    ordered, unordered = ".".join(rows), ".".join(sorted(rows))
    data = DataRows(step=0, name="args.0", count=len(rows), ordered=ordered, unordered=unordered, rows=rows)
    variables = tuple(Variable(name=name, value=value) for name, value in (environment or {}).items())
    return Manifest(created="2026-11-24T00:00:00+00:00", run=run, environment=variables, data=(data,))


def write_beside(unit: Path, content: Manifest) -> Path:
    """Write a manifest beside a dump."""
    unit.mkdir(parents=True, exist_ok=True)
    return write_manifest(unit, content)
