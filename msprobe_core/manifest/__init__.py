"""The manifest of a run: what a training process was at its first recorded step, apart from its values.

A framework plugin returns `RunFacts` from `msprobe_core.plugin.DescribingFramework`; the core adds what it finds out
itself, and writes a `Manifest` beside the dump.
"""

from msprobe_core.manifest.facts import (
    DataRows,
    Device,
    Generator,
    Group,
    Library,
    Manifest,
    Model,
    Module,
    Optimizer,
    Parameter,
    ParameterGroup,
    RunFacts,
    Scalar,
    Variable,
)

__all__ = [
    "DataRows",
    "Device",
    "Generator",
    "Group",
    "Library",
    "Manifest",
    "Model",
    "Module",
    "Optimizer",
    "Parameter",
    "ParameterGroup",
    "RunFacts",
    "Scalar",
    "Variable",
]
