"""Names of frameworks and trainers, as data: name maps, and the stages of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msprobe_core.manifest.facts import Scalar


@dataclass(frozen=True, kw_only=True)
class ModuleMap:
    """The module names of a training backend with counterparts in a serving engine, and the modules it fuses.

    Attributes:
        name: The backend, a value of ``msprobe compare --consistent_check --backend``.
        segments: The engine's name for a part of a module's path: ``{"self_attention": "self_attn"}``.
        wrappers: Parts of paths to drop, such as ``_fsdp_wrapped_module``.
        fused: By the last part of the path of the engine's module, the modules that it fuses, in order:
            ``{"gate_up_proj": ("gate_proj", "up_proj")}``.
        reordered: Modules, by the last part of the engine's path, whose elements have a different order in training;
            only their statistics are compared.
        merges_heads: Whether outputs of training may have heads and head size in two dimensions, where the engine has
            one.
    """

    name: str
    segments: Mapping[str, str] = field(default_factory=dict[str, str])
    wrappers: Sequence[str] = ()
    fused: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    reordered: Sequence[str] = ()
    merges_heads: bool = False


@dataclass(frozen=True, kw_only=True)
class ApiMap:
    """A framework's names translated to canonical names, so that dumps of two frameworks can be compared.

    Canonical names are those of PyTorch. A name that the map does not mention is already canonical. Between two
    frameworks, spellings of one operation are equivalent: ``Torch.add``, ``Tensor.add_`` and ``Tensor.__add__`` are
    ``add``.

    Attributes:
        name: The framework, as in the field ``framework`` of a dump; any other name if ``extends`` is given.
        extends: The framework to whose map this one adds; its own entries stay as they are. Empty for a map of its own.
        apis: Canonical name by own name, both with prefix and without index: ``{"Functional.dense":
            "Functional.linear"}``. ``Primitive.MatMul`` matches ``Primitive.matmul.MatMul``, whatever is in between.
        prefixes: Canonical prefix by own prefix, for modules and for APIs that ``apis`` does not mention: ``{"Mint":
            "Torch", "Cell": "Module"}``.
        module_types: Canonical class by own class: ``{"Dense": "Linear"}``. Modules are paired by their path; classes
            show whether two paired modules are of one kind.
        parameters: By own class of the module, the canonical name by a parameter's own name: ``{"LayerNorm": {"gamma":
            "weight"}}``; those of the class ``""`` apply to all classes.
        arguments: By own name of the API, or by operation, the canonical position of an argument by its own position,
            each a number or a keyword: ``{"Functional.gather": {"1": "2", "2": "1", "axis": "1"}}``. Numbers are
            canonical if PyTorch accepts the argument by position too. ``"*"`` is the position from which on a list
            takes the place of the remaining arguments, as in ``x.reshape((2, 3))``. Gradients of arguments follow.
        buffers: Canonical names of parameters that other frameworks may hold without recording them.
        unit_dimensions: By own class, the parameters that are stored with additional dimensions of size 1.
        permuted: By own class, for the own names of parameters that are stored with their dimensions in another order,
            the order of the own dimensions that is PyTorch's: ``{"Dense": {"kernel": (1, 0)}}`` for ``[in, out]``.
        inexact: Functions that the framework approximates with an error of more than a digit or two, by the canonical
            name of the operation in lower case without ``_``: pairs of the largest magnitude of the argument and the
            maximum error up to it, ascending. The error is absolute for bounded functions, relative for exponentials.
    """

    name: str
    apis: Mapping[str, str] = field(default_factory=dict[str, str])
    prefixes: Mapping[str, str] = field(default_factory=dict[str, str])
    module_types: Mapping[str, str] = field(default_factory=dict[str, str])
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    arguments: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    buffers: Sequence[str] = ()
    unit_dimensions: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    permuted: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict[str, Mapping[str, Sequence[int]]])
    inexact: Mapping[str, Sequence[tuple[float, float]]] = field(
        default_factory=dict[str, Sequence[tuple[float, float]]]
    )
    extends: str = ""


@dataclass(frozen=True)
class TrainerStages:
    """The stages of a trainer's step, which are recorded separately; see `msprobe_core.capture.stages`.

    Attributes:
        name: Name of the trainer, for example ``verl``.
        stages: A short description of each stage by its name, in execution order. A name is a directory of the run.
        hidden_frames: Prefixes of file paths whose frames are left out of call stacks: those of the plugin, and of the
            trainer if its users do not look into it.
    """

    name: str
    stages: Mapping[str, str]
    hidden_frames: Sequence[str] = ()


@dataclass(frozen=True)
class RunSettings:
    """What a trainer was told, for the manifest of a run; secrets among it need no attention, since they are not kept.

    Attributes:
        name: Name of the trainer, for example ``verl``.
        read: Returns the settings by dotted path, ``{"actor.optim.lr": 1e-6}``; ``None`` if the process does not use
            the trainer. Called when the first recorded step begins; `msprobe_core.manifest.flattened` makes them of
            configurations of any kind.
    """

    name: str
    read: Callable[[], Mapping[str, Scalar] | None]
