"""The data model: what a call was, what was seen of it, and what is kept of a tensor.

Nothing here has behaviour beyond describing itself. Capture fills these objects, a writer stores them, a reader
turns them into the columns that `msprobe_core.compare` works on.

``gc=False`` keeps the many objects of a step away from the garbage collector, which would go through all objects of the
training's process the more often for them; none of them refers to what refers to it.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import msgspec


class Level(str, Enum):
    """How deep capture looks. ``MIX`` is modules and APIs together."""

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


class Task(str, Enum):
    """What a run records."""

    STATISTICS = "statistics"
    TENSOR = "tensor"
    STRUCTURE = "structure"
    OVERFLOW_CHECK = "overflow_check"


class SiteKind(str, Enum):
    """What was called."""

    MODULE = "module"
    API = "api"


class Phase(str, Enum):
    """When a value was seen."""

    FORWARD = "forward"
    BACKWARD = "backward"
    PARAMETERS_GRAD = "parameters_grad"
    DEBUG = "debug"  # a value that the program saved itself


class Role(str, Enum):
    """Which side of a call a value is on."""

    INPUT = "input"
    PARAMETERS = "parameters"
    OUTPUT = "output"
    PARAMETERS_GRAD = "parameters_grad"


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where a value was seen; `msprobe_core.names` turns it into an entry name and back.

    Attributes:
        kind: Module or API.
        prefix: Family of the name: ``Module``, ``Functional``, ``Tensor``, ``Torch``, ``Mint``, …
        path: Dotted path of a module (empty for the root), or name of an API.
        type_name: Class of a module; empty for an API.
        phase: Forward, backward, or gradients of parameters.
        index: Which call of this site within the step, from 0. A backward has the index of its forward.
        backward_pass: Of a backward, which of the passes that have reached the call, from 0.
    """

    kind: SiteKind
    prefix: str
    path: str
    type_name: str
    phase: Phase
    index: int
    backward_pass: int = 0


class Placement(msgspec.Struct, frozen=True):
    """How a tensor is spread over one dimension of a mesh of ranks.

    Attributes:
        kind: ``Shard``, ``Replicate`` or ``Partial``; whatever else the framework has, by its own name.
        dim: Of a shard, the dimension of the tensor that is cut.
        reduce_op: Of a partial result, how the ranks' parts become the whole: ``sum``, ``avg``, …
        split_factor: Of a ``StridedShard``, into how many pieces the dimension is cut before each of them is.
    """

    kind: str
    dim: int | None = None
    reduce_op: str | None = None
    split_factor: int | None = None


class Distribution(msgspec.Struct, frozen=True):
    """Which part of a distributed tensor this rank holds; what is recorded of its values is of that part.

    Attributes:
        device_mesh: The ranks, nested, with one level for each dimension of the mesh.
        placements: One for each dimension of the mesh.
        local_shape: Sizes of the part that this rank holds.
        local_offset: Where its first element is in the whole, if it is one block of it; hash and sketch then count
            elements as the whole has them, so that those of the parts add up to its own. ``None`` where they do not.
    """

    device_mesh: tuple[Any, ...]
    placements: tuple[Placement, ...]
    local_shape: tuple[int, ...]
    local_offset: tuple[int, ...] | None = None


class TensorMeta(msgspec.Struct, frozen=True, gc=False):
    """What is known of a tensor without reading it.

    Attributes:
        type: Qualified name of the tensor's class, for example ``torch.Tensor``.
        dtype: As the framework spells it, for example ``torch.bfloat16`` or ``Float32``.
        shape: Sizes of the dimensions; ``()`` for a 0-d tensor.
        requires_grad: ``None`` where the framework has no such notion.
        distribution: ``None`` for a tensor that is whole, or whose framework does not know.
        transforms: What a transformation of functions has wrapped the tensor in; ``None`` for a tensor as it is. Shape
            and values are then those of what is inside, with dimensions that are hidden from the program in front.
    """

    type: str
    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool | None = None
    distribution: Distribution | None = None
    transforms: str | None = None


class Stats(msgspec.Struct, frozen=True, gc=False):
    """Summary of the values of one tensor.

    Maximum, minimum and mean are those of the values (of the magnitudes where the dtype is complex); NaN anywhere
    makes all four NaN. The norm is the Euclidean norm. Sums are accumulated in float32 or wider, and in float64
    where float32 overflows on a host tensor.

    Attributes:
        max: ``None`` where the dtype has no arithmetic or the tensor has no element; likewise the other three.
        min: See ``max``.
        mean: See ``max``.
        l2_norm: See ``max``.
        num_nan: How many elements are NaN; ``None`` where nobody counted.
        num_inf: How many elements are +Inf or -Inf; ``None`` where nobody counted.
    """

    max: float | bool | None = None
    min: float | bool | None = None
    mean: float | None = None
    l2_norm: float | None = None
    num_nan: int | None = None
    num_inf: int | None = None


class Fp8Stats(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What quantisation to 8-bit floating point would lose of one tensor, or how an 8-bit tensor uses its format.

    The scale is per tensor: the largest value of the format over ``amax``. Shares are of all elements, from 0 to 1.

    Attributes:
        amax: Largest magnitude of the finite elements.
        e4m3_scale: What the elements would be multiplied by; 1 where ``amax`` is 0. ``None``, as the next seven, for a
            tensor that is float8 already.
        e4m3_underflow: Share of elements that are not 0 and would be 0 after scaling and rounding.
        e4m3_overflow: Share of finite elements beyond the largest value of the format without scaling.
        e4m3_mse: Mean squared error, over the finite elements, of scaling, rounding and scaling back; ``None`` where no
            element is finite.
        e5m2_scale: As for e4m3; likewise the next three.
        e5m2_underflow: See above.
        e5m2_overflow: See above.
        e5m2_mse: See above.
        zeros: Of a float8 tensor, share of elements that are 0; ``None``, as the next two, for any other.
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
    """What is kept of the values of one tensor: filled in by a `Reducer`, at once or when it collects.

    Records of one tensor share one digest, so that each tensor is read once however many calls it passes through.

    Attributes:
        stats: Summary of the values.
        checksum: Of the bytes or bits, as text; what kind the processor decides.
        sketch: 64 little-endian float32, see `msprobe_core.fingerprint.sketch`.
        fp8: ``None`` where it was not asked for, and for tensors that are not floating point.
    """

    stats: Stats | None = None
    checksum: str | None = None
    sketch: bytes | None = None
    fp8: Fp8Stats | None = None


class TensorValue(msgspec.Struct, gc=False):
    """A tensor seen at a call.

    Attributes:
        meta: What it is; where only a part of it is recorded, with the shape of that part.
        digest: What is kept of its values.
        file_name: Set where the tensor itself is kept: it leads to it.
        sliced_from: Its whole shape, where only a part of it is recorded; ``None`` elsewhere.
        failure: Why its values could not be recorded; ``None`` where they were.
    """

    meta: TensorMeta
    digest: Digest
    file_name: str | None = None
    sliced_from: tuple[int, ...] | None = None
    failure: str | None = None


MAX_DEPTH = 64
"""Containers nested deeper than this are recorded as null: those of real calls stay below it."""


class TensorContent(msgspec.Struct, frozen=True):
    """The elements of a tensor, on the host.

    Attributes:
        dtype: Name without the framework's, for example ``bfloat16``, ``float8_e4m3fn``, ``int64``, ``bool``.
        shape: Sizes of the dimensions.
        data: The elements' bytes, one after the other in C order, little-endian.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class Argument(msgspec.Struct, frozen=True, gc=False):
    """A value that is not a tensor.

    Attributes:
        type: ``int``, ``float``, ``bool``, ``str``, ``slice``, ``torch.dtype``, …; empty for a value that stands in a
            dump by itself, as a field of what encloses it.
        value: The value in JSON's own types; ``None`` where ``fields`` has more than one value to give.
        fields: Further named parts, for example a process group's ranks.
    """

    type: str
    value: Any = None  # any JSON value: its type is what ``type`` says
    fields: dict[str, Any] | None = None


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Stands in the place of a value that could not be recorded; ``reason`` says why, for people."""

    reason: str


class GradientSlot(msgspec.Struct, gc=False):
    """A place for the gradient of one tensor of a call; ``value`` stays ``None`` if no gradient arrives."""

    value: TensorValue | Failure | None = None


Value: TypeAlias = "TensorValue | Argument | Failure | GradientSlot | list[Value] | dict[str, Value] | None"


class Entry(msgspec.Struct, kw_only=True, gc=False):
    """Everything recorded of one call in one phase: one entry of ``dump.json``.

    A part that was not asked for (``data_mode``) is ``None`` and is not written.

    Attributes:
        name: Entry name, see `msprobe_core.names`.
        phase: Decides how the parts are called on disk.
        parent: Entry name of the enclosing module call; ``None`` at the top.
        stack: Frames that led to the call, innermost first; ``None`` for backward entries.
        sequence: Position in execution order within the step, from 0; -1 until the entry is complete.
        micro_step: Which micro-batch of the step, from 0: the how manieth call of the outermost module the call is part
            of, comes after, or sends gradients through; ``None`` where no module is recorded.
        is_recomputed: Whether a forward ran inside a backward pass, to compute again what was not kept.
        inputs: Forward: positional arguments. Backward: gradients with respect to the outputs.
        input_kwargs: Forward: keyword arguments.
        outputs: Forward: results. Backward: gradients with respect to the positional arguments. Debug: the one value
            that was saved.
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
    """What one flush hands to a writer.

    Attributes:
        entries: In execution order.
        parents: The enclosing call of every call seen, also of those that are not recorded.
    """

    entries: list[Entry]
    parents: dict[str, str | None]


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which process of which job recorded a dump.

    Attributes:
        job: What all processes of a job have in common and other jobs have not, as far as the launcher says;
            empty for a process outside of a job.
        host: Name of the machine.
        process: Number of the process there.
        started: When the process began, in seconds since 1970 (UTC).
    """

    job: str
    host: str
    process: int
    started: float


class EndState(str, Enum):
    """How a recording of one step of one rank ended. All but the last stand in files."""

    COMPLETE = "complete"
    """The step was ended, or the program ended after its last window."""
    STOPPED = "stopped"
    """The process was killed between two windows; whether another window would have followed is unknown."""
    EARLY = "early"
    """Recording broke off inside a window: the process was killed, or recording was given up."""
    DAMAGED = "damaged"
    """Records were lost after they had been written: the file is cut off, or parts of it cannot be read."""
    UNKNOWN = "unknown"
    """The dump is of another tool, or of an earlier version, and has no mark."""


class Ending(msgspec.Struct, frozen=True, kw_only=True, rename={"num_calls": "calls", "num_windows": "windows"}):
    """Whether a dump holds all of its step.

    Attributes:
        state: How the recording ended.
        num_calls: How many calls the dump holds; in a mark, how many were written before it.
        num_windows: How often recording was started and stopped; 0 if that is unknown.
        reason: Why it ended early or is damaged, in words; empty if that is unknown.
        ended: When this was so, in seconds since 1970 (UTC); 0 if that is unknown.
    """

    state: EndState = EndState.UNKNOWN
    num_calls: int = 0
    num_windows: int = 0
    reason: str = ""
    ended: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether nothing says that a part of the step is missing."""
        return self.state not in (EndState.EARLY, EndState.DAMAGED)


class RunHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a dump says about itself.

    Attributes:
        task: Value of `Task`; a plain string because readers meet tasks of other tools.
        level: Value of `Level`, likewise.
        framework: Name of the framework plugin, for example ``pytorch``.
        summary_mode: Name of the processor that made the digests; empty where an older dump does not say it.
        has_extra_info: Whether stacks and the nesting of calls are kept too.
        keeps_tensors: Whether files of whole tensors lie beside the records.
        run: Which process recorded it; ``None`` in dumps of other tools and of earlier versions.
    """

    task: str
    level: str
    framework: str
    summary_mode: str = "statistics"
    has_extra_info: bool = True
    keeps_tensors: bool = False
    run: RunIdentity | None = None


class KernelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be dumped at level L2, by a framework that dumps its kernels itself.

    Attributes:
        directory: Where to; absolute.
        task: ``STATISTICS`` or ``TENSOR``.
        steps: Empty for all.
        ranks: Likewise.
        kernels: Which ones, as the framework names them; empty for all.
        sides: Which values of a kernel: ``all``, ``input`` or ``output``.
        statistics: What is kept of each tensor, as users write ``summary_mode``.
        on_device: Whether statistics are computed where the tensors live.
        is_precise: Whether there they are accumulated in float32 rather than in the tensor's own precision.
        is_async: Whether the program goes on while its tensors are written.
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
        workers: How many at a time; ``None`` for one per core.
        address: Of a cluster; ``None`` where the executor needs none, or starts its own.
    """

    workers: int | None = None
    address: str | None = None


class TaskLost(msgspec.Struct, frozen=True):
    """Stands in the place of the result of a task whose process or machine is gone; ``reason`` says why, for people."""

    reason: str


class PerturbMode(str, Enum):
    """Where last digits are changed: in what comes into a model, or in what every operation makes."""

    INPUTS = "inputs"
    EVERYWHERE = "everywhere"


class RoundingUnit(str, Enum):
    """A format of numbers, whose rounding a perturbation has the size of."""

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
"""With the leading one: IEEE 754-2019, table 3.5, and the vendors' definitions of bfloat16 and TF32."""


class Perturbation(msgspec.Struct, frozen=True, kw_only=True):
    """How the last digits of a run are changed; see `msprobe_core.capture.perturbation`.

    Attributes:
        seed: From 0; other seeds change other digits. The training's own random numbers are not touched.
        mode: Where.
        dtype: Rounding of which format, where that is coarser than a tensor's own; ``None``: the tensor's own.
    """

    seed: int = 1
    mode: PerturbMode = PerturbMode.EVERYWHERE
    dtype: RoundingUnit | None = None


class ReplayTensor(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A tensor that goes into a replayed call, or comes out of it.

    Attributes:
        values: A NumPy array that holds the values exactly: bfloat16 and float8 in float32.
        dtype: What the framework's tensor has, without the framework's name, for example ``bfloat16``.
        takes_gradient: Whether the gradient with respect to it is wanted.
        identity: Those that have the same number were one tensor in the program; ``None`` stands alone.
    """

    values: Any
    dtype: str
    takes_gradient: bool = False
    identity: int | None = None


ReplayValue: TypeAlias = "ReplayTensor | Argument | list[ReplayValue] | dict[str, ReplayValue] | None"


class ReplayCall(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded call that is to be made again.

    Attributes:
        site: Which API or module; of the forward or, where gradients are wanted, the backward.
        args: Positional arguments of the forward.
        kwargs: Keyword arguments.
        parameters: Of a module: recorded parameters of it and of what is inside it, by their path from it.
        gradients: Gradients with respect to the outputs, by path; empty for a forward.
        is_widened: Whether this is the replay in float64: tensors are float64 already, and every floating dtype that
            the call or anything inside it asks for is float64 too.
        has_lists: Whether nested sequences are lists; they are tuples otherwise. Dumps do not tell the two apart.
        max_elements: A call whose results have more elements is refused.
    """

    site: Site
    args: list[ReplayValue]
    kwargs: dict[str, ReplayValue]
    parameters: dict[str, ReplayTensor] = {}
    gradients: dict[str, ReplayTensor] = {}
    is_widened: bool = False
    has_lists: bool = False
    max_elements: int = 1 << 28


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay gave.

    Attributes:
        values: By path: the outputs of a forward; of a backward, the gradients with respect to the arguments.
        is_random: Whether it drew random numbers.
    """

    values: dict[str, ReplayTensor]
    is_random: bool = False
