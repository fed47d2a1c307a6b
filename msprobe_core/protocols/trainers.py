"""What frameworks and trainers call things, as data: maps of names, and the stages of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ModuleMap:
    """What a backend of training calls modules that a serving engine has too, and which of them the engine fuses.

    Attributes:
        name: The backend, a value of ``msprobe compare --consistent_check --backend``.
        segments: By a part of a module's path, what the engine calls it: ``{"self_attention": "self_attn"}``.
        wrappers: Parts of paths that stand for nothing, such as ``_fsdp_wrapped_module``.
        fused: By the last part of the path of a module of the engine, those that it is made of, in their order:
            ``{"gate_up_proj": ("gate_proj", "up_proj")}``.
        reordered: Modules, by the last part of the engine's path, whose elements lie in another order in training: of
            these, statistics are compared alone.
        merges_heads: Whether outputs of training may have heads and their size in two dimensions, where the engine has
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
    """What a framework calls things, in canonical names, so that dumps of two frameworks can be compared.

    Canonical names are those of PyTorch. What a map does not mention has its canonical name already. Between two
    frameworks, spellings of one operation are one: ``Torch.add``, ``Tensor.add_`` and ``Tensor.__add__`` are ``add``.

    Attributes:
        name: The framework, as the field ``framework`` of a dump has it.
        apis: Canonical name by own name, both with prefix and without index: ``{"Functional.dense":
            "Functional.linear"}``. ``Primitive.MatMul`` stands for ``Primitive.matmul.MatMul``, whatever is in between.
        prefixes: Canonical prefix by own prefix, for modules and for APIs that ``apis`` does not mention:
            ``{"Mint": "Torch", "Cell": "Module"}``.
        module_types: Canonical class by own class: ``{"Dense": "Linear"}``. Modules are paired by their path; classes
            tell whether two that are paired are of one kind.
        parameters: By own class of the module, the canonical name by a parameter's own name: ``{"LayerNorm": {"gamma":
            "weight"}}``; those of the class ``""`` are for all classes.
        arguments: By own name of the API, or by operation, the canonical place of an argument by its own place, each a
            position or a keyword: ``{"Functional.gather": {"1": "2", "2": "1", "axis": "1"}}``. Positions are canonical
            where PyTorch takes the argument by position too. ``"*"`` is the position from which on a list stands for
            the rest, as in ``x.reshape((2, 3))``. Gradients of arguments follow.
        buffers: Canonical names of parameters that other frameworks may keep without recording them.
        unit_dimensions: By own class, the parameters that are stored with further dimensions of size 1.
        inexact: Functions that the framework approximates by more than a digit or two, by the canonical name of the
            operation in lower case without ``_``: up to which magnitude of the argument they are off by no more than
            how much, ascending. An absolute error of what is bounded, a relative one of exponentials.
    """

    name: str
    apis: Mapping[str, str] = field(default_factory=dict[str, str])
    prefixes: Mapping[str, str] = field(default_factory=dict[str, str])
    module_types: Mapping[str, str] = field(default_factory=dict[str, str])
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    arguments: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    buffers: Sequence[str] = ()
    unit_dimensions: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    inexact: Mapping[str, Sequence[tuple[float, float]]] = field(
        default_factory=dict[str, Sequence[tuple[float, float]]]
    )


@dataclass(frozen=True)
class TrainerStages:
    """The stages of a trainer's step, which are recorded one by one; see `msprobe_core.capture.stages`.

    Attributes:
        name: Of the trainer, for example ``verl``.
        stages: What each stage holds, in a few words, by name; in the order in which they run. A name is a directory
            of the run.
    """

    name: str
    stages: Mapping[str, str]
