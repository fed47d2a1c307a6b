"""The schema of a configuration: its fields and their allowed values.

The structs describe the file as users write it, field by field. The rest of the program reads `Config`.
``docs/configuration.md`` describes each field.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.config.apis import ListedApi
from msprobe_core.model import Level, Perturbation, RiskLevel, Task


class DataMode(str, Enum):
    """Directions and sides of a call that are recorded."""

    ALL = "all"
    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT = "input"
    OUTPUT = "output"


class Precision(str, Enum):
    """Accepted for files of other tools: statistics are accumulated in float32 or wider with either value."""

    LOW = "low"
    HIGH = "high"


class ReduceDevice(str, Enum):
    """Where MindSpore computes statistics of kernels."""

    HOST = "host"
    DEVICE = "device"


class PertMode(str, Enum):
    """How the task ``free_benchmark`` perturbs a call. ``EXCHANGE_VALUE`` is MindSpore's name of ``CHANGE_VALUE``."""

    IMPROVE_PRECISION = "improve_precision"
    ADD_NOISE = "add_noise"
    BIT_NOISE = "bit_noise"
    NO_CHANGE = "no_change"
    CHANGE_VALUE = "change_value"
    EXCHANGE_VALUE = "exchange_value"
    TO_CPU = "to_cpu"


class DumpMode(str, Enum):
    """Of which calls the mode ``to_cpu`` of ``free_benchmark`` keeps the results of both sides."""

    AUTO = "auto"
    """Of calls that fail."""
    ALL = "all"
    LIST = "list"
    """Of calls that ``list`` selects."""
    OFF = "OFF"


class HandlerType(str, Enum):
    """What the task ``free_benchmark`` does with the result of a perturbed call."""

    CHECK = "check"
    FIX = "fix"


class FuzzStage(str, Enum):
    """Which calls the task ``free_benchmark`` perturbs."""

    FORWARD = "forward"
    BACKWARD = "backward"


class FuzzDevice(str, Enum):
    """Where the task ``free_benchmark`` repeats calls: on the device of the training, or on the host."""

    NPU = "npu"
    CUDA = "cuda"
    CPU = "cpu"


class FuzzLevel(str, Enum):
    """Which calls the task ``free_benchmark`` repeats: those of APIs."""

    L1 = "L1"


class ReactionJudge(str, Enum):
    """What decides whether a reaction is a fault: what rounding explains, or the published ratios."""

    NOISE = "noise"
    RATIO = "ratio"


class OnDifference(str, Enum):
    """What a follower does when it disagrees with its leader; the training goes on in any case."""

    REPORT = "report"
    STOP = "stop"
    """End recording."""


class TensorFormat(str, Enum):
    """Storage of whole tensors: one file each, or in safetensors shards that hold each distinct tensor once."""

    FILES = "files"
    SAFETENSORS = "safetensors"


class GradLevel(str, Enum):
    """What the task ``grad_probe`` keeps of gradients: a checksum, their signs, or signs and their distribution."""

    L0 = "L0"
    L1 = "L1"
    L2 = "L2"


class SliceRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keep ``[begin, end)`` of dimension ``dim`` of tensors whose size there is ``size``."""

    dim: int = 0
    size: int | None = None
    begin: int = 0
    end: int | None = None


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The block of one task; ``TASK_FIELDS`` lists the fields of each task."""

    scope: tuple[str, ...] = ()
    list: tuple[str, ...] = ()
    tensor_list: tuple[str, ...] = ()
    data_mode: tuple[DataMode, ...] = (DataMode.ALL,)
    summary_mode: str | tuple[str, ...] = "statistics"
    device: ReduceDevice = ReduceDevice.HOST
    precision: Precision = Precision.HIGH
    slice: tuple[SliceRule, ...] = ()
    request_id: str | None = None
    bench_path: str | None = None
    diff_nums: int = 1
    overflow_nums: int = 1
    white_list: tuple[str, ...] = ()
    black_list: tuple[str, ...] = ()
    error_data_path: str | None = None
    budget: float = 0.05
    sample: int = 64
    seed: int = 0
    fuzz_device: FuzzDevice = FuzzDevice.NPU
    pert_mode: PertMode = PertMode.IMPROVE_PRECISION
    handler_type: HandlerType = HandlerType.CHECK
    fuzz_level: FuzzLevel = FuzzLevel.L1
    fuzz_stage: FuzzStage = FuzzStage.FORWARD
    if_preheat: bool = False
    preheat_step: int = 15
    max_sample: int = 20
    judge: ReactionJudge = ReactionJudge.NOISE
    dump_mode: DumpMode = DumpMode.AUTO
    grad_level: GradLevel = GradLevel.L1
    param_list: tuple[str, ...] = ()
    bounds: tuple[float, ...] = (-1, 0, 1)


_SELECTION = ("scope", "list", "data_mode")

TASK_FIELDS: dict[Task, tuple[str, ...]] = {
    Task.STATISTICS: (
        *_SELECTION, "tensor_list", "summary_mode", "device", "precision", "slice", "request_id",
    ),
    Task.TENSOR: (*_SELECTION, "summary_mode", "slice", "request_id", "bench_path", "diff_nums"),
    Task.STRUCTURE: (),
    Task.OVERFLOW_CHECK: (*_SELECTION, "overflow_nums"),
    Task.ACC_CHECK: ("white_list", "black_list", "error_data_path", "budget", "sample", "seed"),
    Task.FREE_BENCHMARK: (
        "scope", "list", "fuzz_device", "pert_mode", "handler_type", "fuzz_level", "fuzz_stage", "if_preheat",
        "preheat_step", "max_sample", "budget", "sample", "seed", "judge", "dump_mode",
    ),
    Task.GRAD_PROBE: ("grad_level", "param_list", "bounds"),
}  # fmt: skip
"""The fields that the block of each task may have."""


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Replace the inputs of named modules by recorded ones."""

    path: str
    modules: tuple[str, ...]
    step: tuple[int, ...] = ()
    rank: tuple[int, ...] = ()
    dump_after_load: bool = False


class TwinOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a job the follower of another one, the leader, whose dumps it compares its own with while both run.

    Attributes:
        leader: Directory that the leader records to; it may not exist yet.
        offset: The leader's step that corresponds to step 0.
        wait: Seconds that a step of the training may wait for the leader's dump of a finished step.
        budget: Share of the training's time that judging may take.
        on_difference: What follows from the first disagreement.
    """

    leader: str
    offset: int = 0
    wait: float = 0.0
    budget: float = 0.05
    on_difference: OnDifference = OnDifference.REPORT


class CommonFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields outside of any task's block."""

    task: Task = Task.STATISTICS
    dump_path: str = "./dump_path"
    rank: tuple[int, ...] = ()
    step: tuple[int, ...] = ()
    level: Level = Level.L1
    dump_enable: bool = True
    extra_info: bool = True
    async_dump: bool = False
    precision: Precision = Precision.LOW
    risk_level: RiskLevel = RiskLevel.FOCUS
    aten: bool = False
    custom_op_namespaces: tuple[str, ...] = ("_C_ascend",)
    custom_apis: str | None = None
    load: LoadOptions | None = None
    perturb: Perturbation | None = None
    twin: TwinOptions | None = None
    writer: str = "json"
    tensor_format: TensorFormat = TensorFormat.FILES
    manifest: bool = True
    live_checks: tuple[str, ...] = ()
    extra_statistics: tuple[str, ...] = ()


class Config(CommonFields, frozen=True, kw_only=True):
    """A whole configuration: the common fields, and the block of the selected task as ``options``.

    ``listed_apis`` is the content of the file ``custom_apis``.
    """

    options: TaskOptions = TaskOptions()
    listed_apis: tuple[ListedApi, ...] = ()
    is_live: bool = False
    """Whether the file has ``dump_enable``: it is then watched while the training runs; see `ConfigWatch`."""

    @property
    def directory(self) -> Path:
        """Absolute directory that holds all steps of the run."""
        return Path(self.dump_path).expanduser().absolute()

    def selects_step(self, step: int) -> bool:
        """Whether step ``step`` is to be recorded."""
        return not self.step or step in self.step

    def selects_rank(self, rank: int) -> bool:
        """Whether rank ``rank`` is to be recorded."""
        return not self.rank or rank in self.rank

    @property
    def last_step(self) -> int | None:
        """The last step to record; ``None`` without such a step."""
        return self.step[-1] if self.step else None


JsonObject = dict[str, Any]
