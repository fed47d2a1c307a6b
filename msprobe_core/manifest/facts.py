"""The content of a manifest: settings, versions, modules, optimizers, groups, random states and data of one process.

A manifest holds what took effect, read from live objects, and no more than is needed to tell two runs apart: values of
environment variables on a list only, digests of random states instead of the states, hashes instead of the data.

``gc=False``: see `msprobe_core.model`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

SCHEMA = 1
"""Version of the file format; readers reject later ones."""

Scalar: TypeAlias = bool | int | float | str | None
"""A setting. Sequences are text, as ``[0.9, 0.95]``."""


class Library(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One installed distribution.

    Attributes:
        name: Name of the distribution, normalised as in PEP 503.
        version: Its version.
        git: The commit that it was built from, if it says so.
        build: Digest of the identities of its compiled modules; ``None`` if it has none.
    """

    name: str
    version: str
    git: str | None = None
    build: str | None = None


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The accelerator of the process.

    Attributes:
        kind: ``cpu``, ``cuda``, ``npu``, ….
        name: Name of the product.
        driver: Version of the driver.
        runtime: Version of the runtime: CUDA, CANN, ….
        count: Number of devices that the process can use.
    """

    kind: str
    name: str | None = None
    driver: str | None = None
    runtime: str | None = None
    count: int = 0


class Variable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One environment variable.

    Attributes:
        name: Its name.
        value: Its value; ``None`` if only the name is kept.
    """

    name: str
    value: str | None = None


class Generator(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """State of one random generator when the first recorded step began.

    Attributes:
        name: ``python``, ``numpy``, ``torch.cpu``, ``torch.cuda:0``, ….
        state: Digest of its state.
        seed: The seed it was given, if it can tell.
    """

    name: str
    state: str
    seed: int | None = None


class Parameter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A parameter or buffer of a module, without its values.

    Attributes:
        name: Name in its module.
        shape: Shape of the part that the process holds.
        dtype: Dtype without the framework's name.
        device: Kind of the device.
        placement: Placement over ranks, as text; ``None`` if it is whole or unknown.
        takes_gradient: Whether it is trained.
        tied_to: Full name of the parameter that it is the same object as, which comes earlier.
        is_buffer: Whether it is a buffer.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    placement: str | None = None
    takes_gradient: bool = True
    tied_to: str | None = None
    is_buffer: bool = False


class Module(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One module.

    Attributes:
        path: Dotted path in its model; empty for the model itself.
        type: Full name of its class.
        settings: Scalars among its own attributes, and what its own text representation shows.
        is_training: Whether it is in training mode.
        hooks: Hooks of users on it: kind of hook, and names of the functions.
        parameters: Its own parameters and buffers.
    """

    path: str
    type: str
    settings: dict[str, Scalar] = {}
    is_training: bool = True
    hooks: dict[str, tuple[str, ...]] = {}
    parameters: tuple[Parameter, ...] = ()


class Model(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One model given to the debugger.

    Attributes:
        name: Empty, or its position if several were given.
        modules: Its modules, a module before its children.
        settings: Its own configuration object, flattened, such as that of `transformers`.
    """

    name: str = ""
    modules: tuple[Module, ...] = ()
    settings: dict[str, Scalar] = {}


class ParameterGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One group of an optimizer.

    Attributes:
        settings: Its settings, for example ``lr``.
        parameters: Full names of its parameters; empty text for a parameter of no known model.
    """

    settings: dict[str, Scalar] = {}
    parameters: tuple[str, ...] = ()


class Optimizer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One optimizer.

    Attributes:
        type: Full name of its class.
        defaults: Its defaults.
        groups: Its groups.
        state_dtypes: Dtypes of its state, by the name of the state: ``exp_avg``: ``float32``.
        steps: Number of steps that its state counts when the first recorded step has ended, the most of all parameters;
            ``None`` if it counts none.
        first_rates: Learning rates of the groups when that step began; empty if they were not seen.
    """

    type: str
    defaults: dict[str, Scalar] = {}
    groups: tuple[ParameterGroup, ...] = ()
    state_dtypes: dict[str, str] = {}
    steps: int | None = None
    first_rates: tuple[float, ...] = ()


class Group(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One process group that the process is in.

    Attributes:
        name: Its name or axis.
        ranks: Its ranks, in order.
        backend: Its communication library.
    """

    name: str
    ranks: tuple[int, ...]
    backend: str | None = None


class DataRows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The rows of one input of the outermost modules, in one step.

    Attributes:
        step: The step.
        name: Place of the input: ``args.0``, ``kwargs.input_ids``.
        micro_step: Number of the forward in the step, from 0.
        count: Number of rows.
        ordered: Hash that depends on the order of the rows.
        unordered: Hash that does not.
        rows: Hash of each row; only of the first ones if there are many.
    """

    step: int
    name: str
    count: int
    ordered: str
    unordered: str
    micro_step: int = 0
    rows: tuple[str, ...] = ()


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The part of a manifest that a framework contributes.

    Attributes:
        framework: The framework itself.
        device: The accelerator.
        switches: Settings of the framework: determinism, matmul precision, autocast, attention back ends, compilation.
        generators: Its random generators.
        models: The models.
        optimizers: The optimizers that update them, as far as they are known.
        groups: The process groups.
        settings: Settings of a trainer that the framework can read, such as Megatron's arguments.
    """

    framework: Library
    device: Device
    switches: dict[str, Scalar] = {}
    generators: tuple[Generator, ...] = ()
    models: tuple[Model, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()
    groups: tuple[Group, ...] = ()
    settings: dict[str, Scalar] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The manifest of one process.

    Attributes:
        schema: Version of the format.
        created: Time in UTC, ISO 8601.
        rank: Rank in the job; ``None`` outside of a job.
        world_size: Number of processes of the job.
        host: Digest of the name of the host.
        python: Version of Python.
        program: Name of the main script, without directories.
        program_digest: Digest of its content.
        run: What the framework contributes.
        libraries: Installed libraries that can change results.
        environment: Environment variables that can change results; secrets and other names' values are not kept.
        settings: Settings of trainers, by the name of the trainer and the path of the setting.
        data: Rows of the data of the recorded steps.
        notes: What could not be found out, as text.
    """

    schema: int = SCHEMA
    created: str
    rank: int | None = None
    world_size: int = 1
    host: str = ""
    python: str = ""
    program: str = ""
    program_digest: str | None = None
    run: RunFacts
    libraries: tuple[Library, ...] = ()
    environment: tuple[Variable, ...] = ()
    settings: dict[str, dict[str, Scalar]] = {}
    data: tuple[DataRows, ...] = ()
    notes: tuple[str, ...] = ()
