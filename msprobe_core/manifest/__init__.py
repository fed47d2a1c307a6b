"""The manifest of a run: what a training process was at its first recorded step, apart from its values.

A framework plugin returns `RunFacts` from `msprobe_core.plugin.DescribingFramework`; the core adds what it finds out
itself, and writes a `Manifest` beside the dump. `flattened` makes settings of configurations of any kind.
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
from msprobe_core.manifest.generators import common_generators
from msprobe_core.manifest.libraries import digest_of
from msprobe_core.manifest.settings import flattened, name_of, scalar_of

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
    "common_generators",
    "digest_of",
    "flattened",
    "name_of",
    "scalar_of",
]
