"""The data model: calls, their recorded values, and digests of tensors.

Nothing here has behaviour beyond describing itself. Capture fills these objects, a writer stores them, and a reader
turns them into the columns that `msprobe_core.compare` works on.

``gc=False`` hides the many objects of a step from the garbage collector, which would otherwise scan all objects of the
training process more often. None of these objects refers to an object that refers back to it.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import msgspec


class Level(str, Enum):
    """What capture records. ``MIX`` is modules and APIs together."""

    L0 = "L0"
    L1 = "L1"
    L2 = "L2"
    MIX = "mix"
    DEBUG = "debug"

    @property
    def has_modules(self) -> bool:
        """Whether modules are recorded at this level."""
        return self in (Level.L0, Level.MIX)

    @property
    def has_apis(self) -> bool:
        """Whether APIs are recorded at this level."""
        return self in (Level.L1, Level.MIX)


class RiskLevel(str, Enum):
    """Which APIs are recorded: the numerically heavy ones, those that compute, or all."""

    CORE = "CORE"
    FOCUS = "FOCUS"
    ALL = "ALL"


class Task(str, Enum):
    """What a run records."""

    STATISTICS = "statistics"
    TENSOR = "tensor"
    STRUCTURE = "structure"
    OVERFLOW_CHECK = "overflow_check"
    ACC_CHECK = "acc_check"
    FREE_BENCHMARK = "free_benchmark"
    GRAD_PROBE = "grad_probe"


class SiteKind(str, Enum):
    """Kind of a call."""

    MODULE = "module"
    API = "api"


class Phase(str, Enum):
    """Phase of a call in which a value was recorded."""

    FORWARD = "forward"
    BACKWARD = "backward"
    PARAMETERS_GRAD = "parameters_grad"
    DEBUG = "debug"  # a value that the program saved itself


class Role(str, Enum):
    """Role of a value in its call."""

    INPUT = "input"
    PARAMETERS = "parameters"
    OUTPUT = "output"
    PARAMETERS_GRAD = "parameters_grad"


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """One call and phase; `msprobe_core.names` converts it to an entry name and back.

    Attributes:
        kind: Module or API.
        prefix: Family of the name: ``Module``, ``Functional``, ``Tensor``, ``Torch``, ``Mint``, …
        path: Dotted path of a module (empty for the root), or name of an API.
        type_name: Class of a module; empty for an API.
        phase: Forward, backward, or gradients of parameters.
        index: 0-based number of the call of this module or API within the step. A backward has the index of its
            forward.
        backward_pass: For a backward, 0-based number of the pass among those that reached the call.
    """

    kind: SiteKind
    prefix: str
    path: str
    type_name: str
    phase: Phase
    index: int
    backward_pass: int = 0


class Placement(msgspec.Struct, frozen=True):
    """Placement of a tensor over one dimension of a mesh of ranks.

    Attributes:
        kind: ``Shard``, ``Replicate`` or ``Partial``; any other kind by the framework's own name.
        dim: For a shard, the dimension of the tensor that is split.
        reduce_op: For a partial result, the reduction of the ranks' parts: ``sum``, ``avg``, …
        split_factor: For a ``StridedShard``, the number of pieces into which the dimension is split before each piece
            is sharded.
    """

    kind: str
    dim: int | None = None
    reduce_op: str | None = None
    split_factor: int | None = None


class Distribution(msgspec.Struct, frozen=True):
    """The part of a distributed tensor that this rank holds; recorded values are those of this part.

    Attributes:
        device_mesh: The ranks, nested, with one level for each dimension of the mesh.
        placements: One for each dimension of the mesh.
        local_shape: Shape of the part that this rank holds.
        local_offset: Index of its first element in the whole tensor, if the part is one block of it. Hash and sketch
            then use global indices, so that those of the parts add up to those of the whole. ``None`` otherwise.
    """

    device_mesh: tuple[Any, ...]
    placements: tuple[Placement, ...]
    local_shape: tuple[int, ...]
    local_offset: tuple[int, ...] | None = None


class TensorMeta(msgspec.Struct, frozen=True, gc=False):
    """Properties of a tensor that are known without reading its values.

    Attributes:
        type: Qualified name of the tensor's class, for example ``torch.Tensor``.
        dtype: As the framework spells it, for example ``torch.bfloat16`` or ``Float32``.
        shape: Sizes of the dimensions; ``()`` for a 0-d tensor.
        requires_grad: ``None`` if the framework has no such notion.
        distribution: ``None`` for a tensor that is not distributed, or if the framework does not know.
        transforms: The function transforms that wrap the tensor; ``None`` for a plain tensor. Shape and values are then
            those of the inner tensor, with the dimensions that are hidden from the program in front.
    """

    type: str
    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool | None = None
    distribution: Distribution | None = None
    transforms: str | None = None


class Stats(msgspec.Struct, frozen=True, gc=False):
    """Summary of the values of one tensor.

    Maximum, minimum and mean are those of the values (of the magnitudes if the dtype is complex); NaN anywhere makes
    all four NaN. The norm is the Euclidean norm. Sums are accumulated in float32 or wider, and in float64 if float32
    overflows on a host tensor.

    Attributes:
        max: ``None`` if the dtype has no arithmetic or the tensor has no element; so are the other three.
        min: See ``max``.
        mean: See ``max``.
        l2_norm: See ``max``.
        num_nan: Number of elements that are NaN; ``None`` if not counted.
        num_inf: Number of elements that are +Inf or -Inf; ``None`` if not counted.
    """

    max: float | bool | None = None
    min: float | bool | None = None
    mean: float | None = None
    l2_norm: float | None = None
    num_nan: int | None = None
    num_inf: int | None = None


class Fp8Stats(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Error of quantising one tensor to 8-bit floating point, or how an 8-bit tensor uses its format.

    The scale is per tensor: the largest value of the format over ``amax``. Shares are of all elements, from 0 to 1.

    Attributes:
        amax: Largest magnitude of the finite elements.
        e4m3_scale: Factor that the elements would be multiplied by; 1 if ``amax`` is 0. ``None``, like the next seven,
            for a tensor that is float8 already.
        e4m3_underflow: Share of elements that are not 0 and would be 0 after scaling and rounding.
        e4m3_overflow: Share of finite elements beyond the largest value of the format without scaling.
        e4m3_mse: Mean squared error, over the finite elements, of scaling, rounding and scaling back; ``None`` if no
            element is finite.
        e5m2_scale: As for e4m3; so are the next three.
        e5m2_underflow: See above.
        e5m2_overflow: See above.
        e5m2_mse: See above.
        zeros: For a float8 tensor, share of elements that are 0; ``None``, like the next two, for any other.
        saturated: Share of elements whose magnitude is the largest value of the format, or Inf.
        nan: Share of elements that are NaN.
    """

    amax: float | None = None
    e4m3_scale: float | None = None
    e4m3_underflow: float | None = None
    e4m3_overflow: float | None = None
    e4m3_mse: float | None = None
    e5m2_scale: float | None = None
    e5m2_underflow: float | None = None
    e5m2_overflow: float | None = None
    e5m2_mse: float | None = None
    zeros: float | None = None
    saturated: float | None = None
    nan: float | None = None


class Digest(msgspec.Struct, gc=False):
    """What the recorder keeps of a tensor's values. A `Reducer` fills it in, immediately or at its ``collect``.

    Attributes:
        stats: Summary of the values.
        checksum: Checksum or hash of the bytes, as text; the processor determines which kind.
        sketch: 64 little-endian float32, see `msprobe_core.fingerprint.sketch`.
        fp8: ``None`` if not requested, and for tensors that are not floating point.
        extra: Values of the statistics that plugins offer, by name; ``None`` if none is requested or the tensor has no
            elements. A statistic that failed is missing.
    """

    stats: Stats | None = None
    checksum: str | None = None
    sketch: bytes | None = None
    fp8: Fp8Stats | None = None
    extra: dict[str, float] | None = None


class TensorValue(msgspec.Struct, gc=False):
    """A tensor recorded at a call.

    Attributes:
        meta: Its properties; if only a slice is recorded, with the shape of the slice.
        digest: Digest of its values.
        file_name: File of the tensor itself; ``None`` if the tensor is not stored.
        sliced_from: Whole shape of the tensor if only a slice is recorded; otherwise ``None``.
        failure: Why its values could not be recorded; ``None`` if they were.
    """

    meta: TensorMeta
    digest: Digest
    file_name: str | None = None
    sliced_from: tuple[int, ...] | None = None
    failure: str | None = None


MAX_DEPTH = 64
"""Containers nested deeper than this are recorded as null. Arguments of real calls are less deep."""


class TensorContent(msgspec.Struct, frozen=True):
    """The elements of a tensor, on the host.

    Attributes:
        dtype: Name without the framework's, for example ``bfloat16``, ``float8_e4m3fn``, ``int64``, ``bool``.
        shape: Sizes of the dimensions.
        data: The elements' bytes, contiguous in C order, little-endian.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class Argument(msgspec.Struct, frozen=True, gc=False):
    """A value that is not a tensor.

    Attributes:
        type: ``int``, ``float``, ``bool``, ``str``, ``slice``, ``torch.dtype``, …; empty for a plain value that is a
            field of another argument.
        value: The value as a JSON type; ``None`` if the value has several parts, which are in ``fields``.
        fields: Additional named parts, for example a process group's ranks.
    """

    type: str
    value: Any = None  # any JSON value: its type is what ``type`` says
    fields: dict[str, Any] | None = None


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Replaces a value that could not be recorded; ``reason`` says why, for the user."""

    reason: str


class GradientSlot(msgspec.Struct, gc=False):
    """Holds the gradient of one tensor of a call; ``value`` stays ``None`` if no gradient arrives."""

    value: TensorValue | Failure | None = None


Value: TypeAlias = "TensorValue | Argument | Failure | GradientSlot | list[Value] | dict[str, Value] | None"


class Entry(msgspec.Struct, kw_only=True, gc=False):
    """All recorded values of one phase of one call: one entry of ``dump.json``.

    A part that was not requested (``data_mode``) is ``None`` and is not written.

    Attributes:
        name: Entry name, see `msprobe_core.names`.
        phase: Determines the names of the parts on disk.
        parent: Entry name of the enclosing module call; ``None`` at the top.
        stack: Frames that led to the call, innermost first; ``None`` for backward entries.
        sequence: Position in execution order within the step, from 0; -1 until the entry is complete.
        micro_step: 0-based index, within the step, of the outermost module's call that this call belongs to: the
            enclosing or preceding one or, for a gradient, that of its forward. ``None`` if no module is recorded.
        is_recomputed: Whether the forward ran inside a backward pass, to recompute values that were not kept.
        inputs: Forward: positional arguments. Backward: gradients with respect to the outputs.
        input_kwargs: Forward: keyword arguments.
        outputs: Forward: results. Backward: gradients with respect to the positional arguments. Debug: the saved value.
        output_kwargs: Backward: gradients with respect to the keyword arguments.
        parameters: Forward: a module's own parameters. Parameter gradients: the gradients by parameter name.
    """

    name: str
    phase: Phase
    parent: str | None = None
    stack: tuple[str, ...] | None = None
    sequence: int = -1
    micro_step: int | None = None
    is_recomputed: bool = False
    inputs: list[Value] | None = None
    input_kwargs: dict[str, Value] | None = None
    outputs: list[Value] | None = None
    output_kwargs: dict[str, Value] | None = None
    parameters: dict[str, Value] | None = None


class Batch(msgspec.Struct):
    """The entries of one flush to a writer.

    Attributes:
        entries: In execution order.
        parents: The enclosing call of every call seen, including calls that are not recorded.
    """

    entries: list[Entry]
    parents: dict[str, str | None]


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The job and process that recorded a dump.

    Attributes:
        job: Identity common to all processes of a job and distinct from other jobs, as far as the launcher provides it;
            empty for a process outside of a job.
        host: Name of the machine.
        process: Process id there.
        started: Start time of the process, in seconds since 1970 (UTC).
    """

    job: str
    host: str
    process: int
    started: float


class EndState(str, Enum):
    """How a recording of one step of one rank ended. All values but the last occur in files."""

    COMPLETE = "complete"
    """The step was ended, or the program ended after its last window."""
    STOPPED = "stopped"
    """The process was killed between two windows; whether another window would have followed is unknown."""
    EARLY = "early"
    """Recording ended inside a window: the process was killed, or recording was aborted."""
    DAMAGED = "damaged"
    """Records were lost after they had been written: the file is truncated, or parts of it cannot be read."""
    UNKNOWN = "unknown"
    """The dump was written by another tool, or by an earlier version, and has no mark."""


class Ending(msgspec.Struct, frozen=True, kw_only=True, rename={"num_calls": "calls", "num_windows": "windows"}):
    """Whether a dump holds all of its step.

    Attributes:
        state: How the recording ended.
        num_calls: Number of calls in the dump; in a mark, the number written before it.
        num_windows: How often recording was started and stopped; 0 if unknown.
        reason: Why it ended early or is damaged, in words; empty if unknown.
        ended: Time of this state, in seconds since 1970 (UTC); 0 if unknown.
    """

    state: EndState = EndState.UNKNOWN
    num_calls: int = 0
    num_windows: int = 0
    reason: str = ""
    ended: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether there is no sign that a part of the step is missing."""
        return self.state not in (EndState.EARLY, EndState.DAMAGED)


class RunHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a whole dump.

    Attributes:
        task: Value of `Task`; a plain string because readers also read tasks of other tools.
        level: Value of `Level`; a plain string for the same reason.
        framework: Name of the framework plugin, for example ``pytorch``.
        summary_mode: Name of the processor that computed the digests; empty if an older dump lacks it.
        has_extra_info: Whether stacks and the nesting of calls are stored too.
        keeps_tensors: Whether files of whole tensors are stored with the records.
        run: Identity of the process that recorded it; ``None`` in dumps of other tools and of earlier versions.
    """

    task: str
    level: str
    framework: str
    summary_mode: str = "statistics"
    has_extra_info: bool = True
    keeps_tensors: bool = False
    run: RunIdentity | None = None


class KernelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a kernel dump (level L2), for a framework that dumps its kernels itself.

    Attributes:
        directory: Destination; absolute.
        task: ``STATISTICS`` or ``TENSOR``.
        steps: Empty for all.
        ranks: Empty for all.
        kernels: Names of kernels in the framework's spelling; empty for all.
        sides: Values of a kernel to dump: ``all``, ``input`` or ``output``.
        statistics: Statistics of each tensor, as in the user's ``summary_mode``.
        on_device: Whether statistics are computed on the device.
        is_precise: Whether they are accumulated there in float32 rather than in the tensor's own precision.
        is_async: Whether the program continues while its tensors are written.
    """

    directory: Path
    task: Task
    steps: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    kernels: tuple[str, ...] = ()
    sides: str = "all"
    statistics: tuple[str, ...] = ()
    on_device: bool = False
    is_precise: bool = True
    is_async: bool = False


class ExecutorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an executor runs its tasks.

    Attributes:
        workers: Maximum number of concurrent tasks; ``None`` for one per core.
        address: Address of a cluster; ``None`` if the executor needs none, or starts its own.
    """

    workers: int | None = None
    address: str | None = None


class TaskLost(msgspec.Struct, frozen=True):
    """Replaces the result of a task that failed or whose process died; ``reason`` says why, for the user."""

    reason: str


class PerturbMode(str, Enum):
    """Values whose last digits are perturbed: the inputs of a model, or the results of every operation."""

    INPUTS = "inputs"
    EVERYWHERE = "everywhere"


class RoundingUnit(str, Enum):
    """A number format, whose rounding determines the size of a perturbation."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TFLOAT32 = "tfloat32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def roundoff(self) -> float:
        """The unit round-off: half the distance from 1 to the next larger number."""
        return 2.0 ** -_SIGNIFICANT_BITS[self]


_SIGNIFICANT_BITS = {
    RoundingUnit.FLOAT64: 53,
    RoundingUnit.FLOAT32: 24,
    RoundingUnit.TFLOAT32: 11,
    RoundingUnit.FLOAT16: 11,
    RoundingUnit.BFLOAT16: 8,
}
"""Including the leading one: IEEE 754-2019, table 3.5, and the vendors' definitions of bfloat16 and TF32."""


class Perturbation(msgspec.Struct, frozen=True, kw_only=True):
    """How the last digits of a run are perturbed; see `msprobe_core.interception.perturbation`.

    Attributes:
        seed: From 0; different seeds perturb different digits. The training's own random numbers are not affected.
        mode: Which values are perturbed.
        dtype: Format whose rounding is used, if it is coarser than a tensor's own; ``None``: the tensor's own.
    """

    seed: int = 1
    mode: PerturbMode = PerturbMode.EVERYWHERE
    dtype: RoundingUnit | None = None


class ReplayTensor(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An input or result tensor of a replayed call.

    Attributes:
        values: A NumPy array that holds the values exactly: bfloat16 and float8 in float32.
        dtype: Dtype of the framework's tensor, without the framework's name, for example ``bfloat16``.
        takes_gradient: Whether the gradient with respect to it is requested.
        identity: Tensors with the same number were one tensor in the program; ``None`` if there is no other.
    """

    values: Any
    dtype: str
    takes_gradient: bool = False
    identity: int | None = None


ReplayValue: TypeAlias = "ReplayTensor | Argument | list[ReplayValue] | dict[str, ReplayValue] | None"


class ReplayModule(msgspec.Struct, frozen=True, kw_only=True):
    """How a recorded module was made, as far as the manifest beside a dump says it.

    Attributes:
        path: From the module that is called; empty for this one itself.
        type: Full name of its class.
        settings: Its attributes that are scalars; sequences of these are there as text.
        has_hooks: Whether it had hooks of the program, which may change its inputs and results.
        parameters: Names of its own parameters.
        buffers: Names of its own buffers, whose values no dump has.
    """

    path: str
    type: str
    settings: dict[str, bool | int | float | str | None] = {}
    has_hooks: bool = False
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()


class ReplayCall(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded call to be replayed.

    Attributes:
        site: The API or module; of the forward or, if gradients are requested, the backward.
        args: Positional arguments of the forward.
        kwargs: Keyword arguments.
        parameters: For a module: recorded parameters of it and of the modules inside it, by their path from it.
        modules: For a module: how it and the modules inside it were made, itself first; empty if that is not known.
        gradients: Gradients with respect to the outputs, by path; empty for a forward.
        is_widened: Whether this is the replay in float64: tensors are float64 already, and every floating-point dtype
            that the call or anything inside it asks for becomes float64 too.
        dtype: Recorded dtype of its first floating tensor, which an epsilon that is left out depends on; may be empty.
        has_lists: Whether nested sequences are lists; otherwise they are tuples. Dumps do not distinguish the two.
        by_reference: Whether an independent formula is replayed instead of the function; see
            `msprobe_core.plugin.ReferringFramework`.
        max_elements: A call with more elements in its results is rejected.
    """

    site: Site
    args: list[ReplayValue]
    kwargs: dict[str, ReplayValue]
    parameters: dict[str, ReplayTensor] = {}
    modules: tuple[ReplayModule, ...] = ()
    gradients: dict[str, ReplayTensor] = {}
    is_widened: bool = False
    dtype: str = ""
    has_lists: bool = False
    by_reference: bool = False
    max_elements: int = 1 << 28


class ReferenceFormat(str, Enum):
    """A format in which single modules of a repeated step compute."""

    FP32 = "fp32"
    FP64 = "fp64"


class RaisedModule(msgspec.Struct, frozen=True):
    """A module whose own code can be raised to a finer format; those that it calls are separate.

    Attributes:
        path: In its model; begins with the model's name if there are several.
        type_name: Its class.
    """

    path: str
    type_name: str


class CompiledResults(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What one call of a module gives when it runs eagerly, compiled, and in float64.

    Results are outputs and, if there are gradients, those of inputs and parameters in random directions of the outputs.

    Attributes:
        path: Path of the module.
        type_name: Its class.
        oracle: Results in float64, by name.
        eager: Results without the compiler.
        compiled: Results of the module compiled alone.
        disturbed: Results in float64 with the result of each operator scaled, at random, by what rounding in the eager
            run may change it by.
        roundoff: Unit round-off of the coarsest format of the eager run; 0 without floating-point numbers.
        num_graphs: Number of graphs that were compiled.
        graph_breaks: Why there is more than one.
    """

    path: str
    type_name: str
    oracle: dict[str, ReplayTensor]
    eager: dict[str, ReplayTensor]
    compiled: dict[str, ReplayTensor]
    disturbed: list[dict[str, ReplayTensor]]
    roundoff: float
    num_graphs: int
    graph_breaks: tuple[str, ...]


class CompilerPart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a compiler without which a module is right.

    Attributes:
        backend: The first backend that is wrong, of those that do ever more.
        subsystem: Its part, such as ``lowerings``; empty if it is not known.
        number: Which of the changes of that part; ``None`` if it is not known.
        detail: What this change is, such as an operator or a node of a graph.
    """

    backend: str
    subsystem: str = ""
    number: int | None = None
    detail: str = ""


OUTSIDE = "(outside)"
"""Stands for the code of a step outside of all modules, which takes what the outermost modules return."""


class LinearKind(str, Enum):
    """How a function depends on each of its floating-point tensors: linearly, so that integers give integers."""

    SUM = "sum"
    """Results are sums of elements, or of products of elements of different arguments."""
    MEAN = "mean"
    """Such sums, divided by the number of their terms."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay.

    Attributes:
        values: By path: the outputs of a forward; for a backward, the gradients with respect to the arguments.
        is_random: Whether the call drew random numbers.
        is_unique: Whether there is one right result. Eigenvectors have any sign, and those of equal eigenvalues any
            direction in their space, so that another result is not wrong for being another.
    """

    values: dict[str, ReplayTensor]
    is_random: bool = False
    is_unique: bool = True


class CallScript(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded call as source code.

    Attributes:
        version: The framework and its version, for example ``PyTorch 2.9.1``.
        imports: What a script must import, for example ``import torch``.
        function: Expression of what is called.
        call: Source of a function ``call``, which makes the call.
        parts: Sources of further functions. One is ``run(device, *, is_wide)``, which returns the results of the call,
            or the gradients, as NumPy arrays by their paths: in the call's own precision or, if ``is_wide``, in
            float64, as far as ``ALLOWED`` names them. What it is called with is in ``INPUTS``: by the names of
            `msprobe_core.interception.script_tensors`, the arguments of ``load``.
        dtypes: Expressions of the dtypes of all tensors, the first of the arguments of ``load``.
        constants: Further lines at the top of the script.
        formula: Source of the functions that compute the exact result, if that is not the function itself; beside
            these, a script has a limited number of lines.
        device: Expression of the device on which the call is made again, unless the user of the script chooses one.
    """

    version: str
    imports: str
    function: str
    call: str
    parts: tuple[str, ...]
    dtypes: dict[str, str]
    constants: str = ""
    formula: str = ""
    device: str = '"cpu"'
