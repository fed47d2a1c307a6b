"""The table: each name that scripts for mindstudio-probe or mstt use, and where it is here or what to use instead.

A part that msprobe does not have is described once, as a sentence that names the alternative. A later release that
brings the part removes its lines.
"""

from __future__ import annotations

from typing import Final

# --- parts of the established tools that msprobe does not have ---------------------------------------------------

MONITOR_FILES: Final = "the files of a monitor are read by `msprobe view` and `msprobe monitor analyze`"
API_CHECK: Final = "single calls are checked by `msprobe acc_check`; programs use msprobe_core.api_check.dump_check"
CONFIG_CHECK: Final = (
    "packs of a configuration are made by ConfigChecker, from msprobe.core.config_check, and compared by "
    "`msprobe config_check`"
)
PARSER: Final = (
    "its commands are `msprobe show FILE` (pk), `msprobe show FILE --against OTHER` (vc, cn, and cad for directories) "
    "and `msprobe parse -d PATH` (dc, pt)"
)
OFFLINE_MODELS: Final = (
    "ONNX, OM, ATB and torchair dumps are not part of msprobe; keep mindstudio-probe in a virtual environment of its "
    "own for them"
)
EXTRA_DEPENDENCIES: Final = (
    "there is nothing to install afterwards; `pip install 'msprobe-core[arrow]'` and `'msprobe-core[ray]'` add the "
    "optional parts"
)
CODE_MAPPING: Final = (
    "there is no separate mapping to source code; dumps hold the call stack of every call, and `msprobe view` and "
    "the tables of `msprobe compare` show it"
)
GRADIENT_PROBE: Final = (
    "gradients are recorded by the task 'grad_probe' of PrecisionDebugger, and compared by `msprobe gradients compare` "
    "and msprobe.core.grad_probe.grad_compare.GradComparator"
)
FREE_BENCHMARK: Final = (
    "perturbed repetitions of calls are the task 'free_benchmark' of PrecisionDebugger's configuration, with the same "
    "fields; `msprobe free_benchmark show` reads its results"
)
ONLINE_CHECK: Final = (
    "online checks of APIs are not part of msprobe; record two runs and compare them with `msprobe compare`"
)
GRAPH_RECORDING: Final = (
    "recording inside of NPU graphs (ACL graphs, torchair) is not part of msprobe; run eagerly and record with "
    "PrecisionDebugger"
)
COMPILE_CHECK: Final = (
    "PrecisionChecker is in msprobe.pytorch.compile_accuracy_checker; `msprobe compile check` checks all modules"
)
SINGLE_SAVE: Final = (
    "SingleSave and SingleComparator are in msprobe.core; PrecisionDebugger(level='debug').save(variable, name) also "
    "saves gradients, and `msprobe compare` compares them"
)
RESPONSES: Final = (
    "analyze_output_anomaly is in msprobe.core.response_anomaly; `msprobe responses` and ResponseGuard of "
    "msprobe_core.rl find more"
)
INIT_STEP: Final = "the number of the first step is set by PrecisionDebugger.set_init_step(step)"
INTERNAL: Final = (
    "this is an internal module of mindstudio-probe, which msprobe does not have; what scripts use is in "
    "msprobe.pytorch, msprobe.mindspore and msprobe_core"
)

# --- import paths ------------------------------------------------------------------------------------------------

_DEBUGGER = "msprobe.{}:PrecisionDebugger"
_SEED = "msprobe.{}:seed_all"
_COMPARE = "msprobe_core.compat.functions:compare"
_COMPARE_RANKS = "msprobe_core.compat.functions:compare_distributed"

MOVED: Final = {
    "msprobe.pytorch.monitor.csv2tb.csv2tensorboard_by_step": (
        "msprobe_core.exports.monitor_events:csv2tensorboard_by_step"
    ),
    "msprobe.core.SingleComparator": "msprobe_core.compat.single_save:SingleComparator",
    "msprobe.core.SingleSave": "msprobe_core.compat.single_save:SingleSave",
    "msprobe.core.checkpoint.open_checkpoint": "msprobe_core.checkpoint:open_checkpoint",
    "msprobe.core.checkpoint.compare": "msprobe_core.checkpoint:compare_checkpoints",
    "msprobe.core.checkpoint.fingerprint": "msprobe_core.checkpoint:fingerprint_checkpoint",
    "msprobe.core.response_anomaly.analyze_output_anomaly": "msprobe_core.rl.published_anomaly:analyze_output_anomaly",
    "msprobe.core.parse.identify": "msprobe_core.tensor_files.recognition:identify",
    "msprobe.core.parse.open_tensors": "msprobe_core.tensor_files.recognition:open_tensors",
    "msprobe.core.config_check.ConfigChecker": "msprobe_core.recording:ConfigChecker",
    "msprobe.core.grad_probe.grad_compare.GradComparator": "msprobe_core.compat.grad_comparator:GradComparator",
    "msprobe.core.monitor_v2.trainer.TrainerMonitorV2": "msprobe_core.recording:TrainerMonitorV2",
    "msprobe.pytorch.compile_accuracy_checker.PrecisionChecker": (
        "msprobe.pytorch._precision_checker:PrecisionChecker"
    ),
    "msprobe.pytorch.common.utils.seed_all": _SEED.format("pytorch"),
    "msprobe.pytorch.compare": _COMPARE,
    "msprobe.pytorch.compare.distributed_compare.compare_distributed": _COMPARE_RANKS,
    "msprobe.pytorch.compare.pt_compare.compare": _COMPARE,
    "msprobe.pytorch.compare.pt_compare.pt_compare": "msprobe_core.compat.functions:compare_pair",
    "msprobe.pytorch.debugger.precision_debugger.PrecisionDebugger": _DEBUGGER.format("pytorch"),
    "msprobe.pytorch.debugger.precision_debugger.module_dump": "msprobe.pytorch:module_dump",
    "msprobe.pytorch.debugger.precision_debugger.module_dump_end": "msprobe.pytorch:module_dump_end",
    "msprobe.mindspore.common.utils.seed_all": _SEED.format("mindspore"),
    "msprobe.mindspore.compare": _COMPARE,
    "msprobe.mindspore.compare.distributed_compare.ms_compare_distributed": _COMPARE_RANKS,
    "msprobe.mindspore.compare.ms_compare": "msprobe_core.compat.functions:compare_pair",
    "msprobe.mindspore.compare.ms_compare.ms_compare": "msprobe_core.compat.functions:compare_pair",
    "msprobe.mindspore.debugger.precision_debugger.PrecisionDebugger": _DEBUGGER.format("mindspore"),
}
"""Former names, and ``module:name`` of what they mean. A name that others continue is a module that can be called."""


PROGRAMS: Final = {
    "msprobe.core.monitor.anomaly_processor": "msprobe_core.cli.monitor_first_alarms",
}
"""Former names of modules that are run by ``python -m``, and the modules that are run instead."""


def _in_frameworks(paths: dict[str, str]) -> dict[str, str]:
    return {f"msprobe.{framework}.{path}": why for framework in ("pytorch", "mindspore") for path, why in paths.items()}


ABSENT: Final = {
    **_in_frameworks(
        {
            "api_accuracy_checker": API_CHECK,
            "free_benchmark": FREE_BENCHMARK,
            "grad_probe": GRADIENT_PROBE,
            "common": INTERNAL,
            "dump": INTERNAL,
            "service": INTERNAL,
        }
    ),
    "msprobe.core": INTERNAL,
    "msprobe.core.grad_probe": GRADIENT_PROBE,
    "msprobe.core.monitor": MONITOR_FILES,
    "msprobe.core.response_anomaly": RESPONSES,
    "msprobe.core.single_save": SINGLE_SAVE,
    "msprobe.mindspore.MsprobeInitStep": INIT_STEP,
    "msprobe.mindspore.code_mapping": CODE_MAPPING,
    "msprobe.mindspore.compare.ms_graph_compare": (
        "dumps of static graphs are compared by `msprobe compare` too, which finds their ranks and steps"
    ),
    "msprobe.pytorch.AclGraphDumper": GRAPH_RECORDING,
    "msprobe.pytorch.acl_save": GRAPH_RECORDING,
    "msprobe.pytorch.compile_accuracy_checker": COMPILE_CHECK,
    "msprobe.pytorch.config_checking": CONFIG_CHECK,
    "msprobe.pytorch.hook_module": INTERNAL,
    "msprobe.pytorch.online_dispatch": ONLINE_CHECK,
    "msprobe.pytorch.parse_tool": PARSER,
    "msprobe.pytorch.set_fx_dump_config": GRAPH_RECORDING,
    "msprobe.pytorch.set_ge_dump_config": GRAPH_RECORDING,
    "msprobe.visualization": "graphs are shown by `msprobe view`, and `msprobe graph_visualize` takes the same options",
}
"""Names that have no counterpart, with all that begins with them and a dot, and what to use instead."""

# --- commands ----------------------------------------------------------------------------------------------------

COMMANDS: Final = {
    "code_mapping": CODE_MAPPING,
    "install_deps": EXTRA_DEPENDENCIES,
    "offline_dump": OFFLINE_MODELS,
}
"""Subcommands of mindstudio-probe 26.x and mstt that msprobe does not have. A plugin may offer one of that name."""

COMPARE_MODES: Final = ("auto", "offline_data", "torchair", "offline_model", "atb")
"""Values of ``compare --mode``; all but the first are of `OFFLINE_MODELS`."""

COMPARE_OPTIONS: Final = (
    ("-fr",), ("-qfr",), ("-cfr",), ("--input_data",), ("--input_shape",), ("--output_size",), ("--dym_shape_range",),
    ("-ofs", "--onnx_fusion_switch"),
)  # fmt: skip
"""Options of ``compare`` that go with these modes."""

# --- configuration -----------------------------------------------------------------------------------------------

TASKS: Final = {
    "diff_check": (
        "it has no run to compare with; take the task 'tensor' with 'bench_path', the directory of an earlier run, and "
        "'summary_mode' md5"
    ),
    "exception_dump": (
        "kernels are not dumped at exceptions; the task 'overflow_check' records the calls that make NaN or Inf"
    ),
    "nan_check": "take the task 'overflow_check', which records the calls that make NaN or Inf, on any device",
    "run_ut": "its name is 'acc_check' now, with the same fields",
}
"""Tasks that msprobe does not have. Their blocks are passed over where another task is selected."""

COMMON_FIELDS: Final = {
    "enable_dataloader": "it is ignored: steps are counted by debugger.step()",
    "is_deterministic": "it is ignored: call seed_all(mode=True)",
    "seed": "it is ignored: call seed_all(seed=…)",
}
"""Fields of older releases, and what they mean now."""

TASK_FIELDS: Final = {
    "file_format": "it is ignored: PyTorch tensors are stored as .pt, MindSpore tensors as .npy",
    "backward_input": "it is ignored: gradients are recorded in the running step",
    "check_mode": "it is ignored: NaN and Inf are looked for in the tensors themselves, on any device",
    **dict.fromkeys(
        ("online_run_ut", "online_run_ut_recompute", "nfs_path", "host", "port", "tls_path"),
        f"it is ignored: {ONLINE_CHECK}",
    ),
}
"""Fields of older releases in the block of a task."""

STATISTICS: Final = (
    "max", "min", "mean", "l2norm", "count", "negative zero count", "positive zero count", "zero count", "nan count",
    "negative inf count", "positive inf count",
)  # fmt: skip
"""Statistics that ``summary_mode`` may list; all are in the mode ``statistics`` except `ZERO_COUNTS`."""

ZERO_COUNTS: Final = frozenset(name for name in STATISTICS if "zero" in name)

CHECKSUMS: Final = ("md5", "hash", "hash:md5", "hash:sha1")
"""Checksums that such a list may have; all mean the mode ``md5`` here."""

COMMENT_PREFIXES: Final = ("_", "//")
"""How the keys begin by which files of users hold comments."""
