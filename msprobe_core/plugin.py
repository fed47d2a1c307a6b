"""The contract of plugins: the hook marker, the protocols of objects that hooks return, data types and errors.

A plugin is a module with functions named like the hooks in `msprobe_core.hookspecs` and marked with `hookimpl`, in the
entry point group ``msprobe``; ``docs/plugins.md`` builds one. Other public modules have what a plugin builds on:
`msprobe_core.interception` and `msprobe_core.fingerprint` (frameworks), `msprobe_core.recording` (trainers),
`msprobe_core.comparison` (comparisons), `msprobe_core.store` (files) and `msprobe_core.testing` (contract tests).
Everything else is private.

* A training framework offers a `FrameworkOffer`, which loads a `Framework`. Its optional capabilities are the protocols
  of `msprobe_core.protocols.capabilities`. It reports calls to a `CallRecorder`.
* A format offers a `WriterFactory` and a `Reader`, which returns a `Dump`; a reduction offers a `Processor`, and a
  number of each tensor a `Statistic`.
* A comparison is extended with a `Metric`, an `Executor`, an `ApiMap` or a `ModuleMap`; a `TableFormat` and an `Export`
  show its results, and so does a `ReportFormat`; a trainer has `TrainerStages` and `RunSettings`; a `Checkup` says what
  `msprobe doctor` reports.
* Checks of one's own look at a dump (`DumpCheck`), at a comparison (`ComparisonCheck`), or at calls while they are
  recorded (`LiveCheck`); what they find are texts or a `Finding` with a `Code`.
* A block around user code lets the exceptions of `is_of_the_program` pass and handles what `kept` returns;
  `UserCodeError` carries an error of the training through the probe's code.
* The package of a plugin calls `refuse_shadowing`, and gives its names with `lazy_names`, which imports them on first
  use. `registry` returns what all plugins offer.
"""

from typing import TYPE_CHECKING

from msprobe_core.errors import (
    CompareError,
    ConfigError,
    DumpError,
    EntryNameError,
    MsprobeError,
    PluginError,
    ReplayError,
    SessionError,
    StoreError,
    UnwrittenError,
)
from msprobe_core.findings import Code, Finding
from msprobe_core.hookspecs import hookimpl, requires_api
from msprobe_core.lazy import lazy_names
from msprobe_core.model import (
    MAX_DEPTH,
    OUTSIDE,
    Argument,
    Batch,
    CallScript,
    CompiledResults,
    CompilerPart,
    Digest,
    Distribution,
    Ending,
    Entry,
    ExecutorOptions,
    Fp8Stats,
    GradientSlot,
    KernelOptions,
    Level,
    LinearKind,
    Perturbation,
    PerturbMode,
    Phase,
    Placement,
    RaisedModule,
    ReferenceFormat,
    ReplayCall,
    Replayed,
    ReplayModule,
    ReplayTensor,
    RiskLevel,
    Role,
    RoundingUnit,
    RunHeader,
    Site,
    SiteKind,
    Stats,
    Task,
    TaskLost,
    TensorContent,
    TensorMeta,
    TensorValue,
)
from msprobe_core.protocols.capabilities import (
    ArrivingNumbers,
    CallFixer,
    CallWatcher,
    CheckingFramework,
    CommunicatingFramework,
    CompileCheckingFramework,
    CompilingFramework,
    DataWatchingFramework,
    DescribingFramework,
    DeviceGauge,
    DeviceReplayingFramework,
    ElementMeasure,
    ExtraReducer,
    FetchingFramework,
    FixingFramework,
    ForwardDescribingFramework,
    Fp8Reducer,
    KernelChecker,
    KernelDump,
    KernelDumper,
    LateReducer,
    LinearFramework,
    MeasuringFramework,
    ModuleCompiler,
    MonitoringFramework,
    OperatorFramework,
    PendingRows,
    PerturbingFramework,
    RaisedModules,
    RaisingFramework,
    RandomDraw,
    RandomFramework,
    ReferringFramework,
    ReplayingFramework,
    ScriptingFramework,
    ShardReducer,
    TrainingState,
    UpdateObservingFramework,
    UpdatingFramework,
    WatchingFramework,
)
from msprobe_core.protocols.checks import ComparisonCheck, DumpCheck, LiveCheck
from msprobe_core.protocols.checkups import Checkup, Condition, Health
from msprobe_core.protocols.comparison import Executor, Metric
from msprobe_core.protocols.framework import (
    Attachment,
    AttachOptions,
    Framework,
    FrameworkOffer,
    NamedModel,
    Reducer,
    Removable,
)
from msprobe_core.protocols.monitoring import BeforeUpdate, MonitoredValue, MonitorWriter, MonitorWriterFactory, Part
from msprobe_core.protocols.presentation import (
    Colours,
    Column,
    Companion,
    Export,
    Page,
    PageGraphs,
    ReportFormat,
    Table,
    TableChoices,
    TableFormat,
    TableRows,
    Width,
)
from msprobe_core.protocols.recording import Call, CallRecorder, FeatureOffer
from msprobe_core.protocols.statistics import Merging, Statistic
from msprobe_core.protocols.storage import (
    Dump,
    EndingWriter,
    MarkedDump,
    Processor,
    Reader,
    TensorSource,
    Writer,
    WriterFactory,
)
from msprobe_core.protocols.trainer_tools import Reductions, TrainerFramework, TrainerTools
from msprobe_core.protocols.trainers import ApiMap, ModuleMap, RunSettings, TrainerStages

if TYPE_CHECKING:
    from msprobe_core.compare.map_files import load_api_map
    from msprobe_core.former_names.imports import former_attribute, offer_former_names
    from msprobe_core.guard import UserCodeError, is_of_the_program, kept, reason_of
    from msprobe_core.plugins import refuse_shadowing, registry
    from msprobe_core.store.entry_values import tensors_of
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "msprobe_core.compare.map_files": "load_api_map",
            "msprobe_core.former_names.imports": "former_attribute offer_former_names",
            "msprobe_core.guard": "UserCodeError described is_of_the_program kept reason_of",
            "msprobe_core.plugins": "refuse_shadowing registry",
            "msprobe_core.store.entry_values": "tensors_of",
        },
    )

__all__ = [  # noqa: RUF022  # by purpose
    # Hooks
    "hookimpl", "requires_api",
    # Frameworks
    "Framework", "FrameworkOffer", "NamedModel", "AttachOptions", "Attachment", "Reducer", "Removable",
    # Optional capabilities of a framework
    "ArrivingNumbers", "CallFixer", "CallWatcher", "CheckingFramework", "CommunicatingFramework",
    "CompileCheckingFramework", "CompilingFramework",
    "DataWatchingFramework", "DescribingFramework", "DeviceGauge", "DeviceReplayingFramework",
    "ElementMeasure", "ExtraReducer", "FetchingFramework", "FixingFramework",
    "ForwardDescribingFramework", "Fp8Reducer", "KernelChecker", "KernelDump", "KernelDumper",
    "LateReducer", "LinearFramework", "MeasuringFramework", "ModuleCompiler", "MonitoringFramework",
    "OperatorFramework", "PendingRows",
    "PerturbingFramework", "RaisedModules", "RaisingFramework", "RandomDraw", "RandomFramework",
    "ReferringFramework", "ReplayingFramework", "ScriptingFramework",
    "ShardReducer",
    "TrainerFramework",
    "TrainingState", "UpdateObservingFramework", "UpdatingFramework", "WatchingFramework",
    # Recording
    "Call", "CallRecorder", "FeatureOffer",
    # Storage
    "Dump", "EndingWriter", "MarkedDump", "Merging", "Processor", "Reader", "Statistic", "TensorSource", "Writer",
    "WriterFactory",
    # Training monitor
    "BeforeUpdate", "MonitorWriter", "MonitorWriterFactory", "MonitoredValue", "Part", "Reductions", "TrainerTools",
    # Comparison, pages and trainers
    "Executor", "Metric", "Export", "Page", "PageGraphs", "ApiMap", "ModuleMap", "RunSettings",
    "TrainerStages",
    # Checks of one's own
    "ComparisonCheck", "DumpCheck", "LiveCheck", "Entry", "TensorValue", "tensors_of",
    # Checkups of machines
    "Checkup", "Condition", "Health",
    # What they find, in codes of one's own
    "Code", "Finding",
    # Tables of results, and reports
    "Colours", "Column", "Companion", "ReportFormat", "Table", "TableChoices", "TableFormat", "TableRows",
    "Width",
    # Data
    "Argument", "Batch", "CallScript", "CompiledResults", "CompilerPart", "Digest", "Distribution", "Ending",
    "ExecutorOptions", "Fp8Stats",
    "GradientSlot", "KernelOptions", "Level", "LinearKind", "MAX_DEPTH", "OUTSIDE", "PerturbMode", "Perturbation",
    "Phase", "Placement", "RaisedModule", "ReferenceFormat", "ReplayCall", "ReplayModule", "ReplayTensor", "Replayed",
    "RiskLevel",
    "Role", "RoundingUnit", "RunHeader", "Site", "SiteKind", "Stats", "Task", "TaskLost", "TensorContent", "TensorMeta",
    # Errors
    "CompareError", "ConfigError", "DumpError", "EntryNameError", "MsprobeError", "PluginError", "ReplayError",
    "SessionError", "StoreError", "UnwrittenError",
    # Errors of user code
    "UserCodeError", "is_of_the_program", "kept", "reason_of",
    # Packages of plugins
    "former_attribute", "lazy_names", "load_api_map", "offer_former_names", "refuse_shadowing", "registry",
]  # fmt: skip
