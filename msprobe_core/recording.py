"""What plugins and programs record with: public. `PrecisionDebugger` itself is in `msprobe_core`.

* Stages: `StageRecorder` records the stages of a trainer's step, each as a run of its own; `check_stage_config` checks
  its configuration. What a micro-batch holds is described by `msprobe_core.store.Row` and `BatchLayout`.
* Repeated steps: `calibration` records a step and repetitions of it with other last digits, `repeats` unchanged
  ones; `repeated` is the same for any `Variant` of a step; `bisect_step` finds the module that explains a step's loss
  or gradients.
* Compiled modules: `check_modules` compiles modules one by one and judges each (`CompileCheck`); `write_published`
  writes the table that mindstudio-probe's ``PrecisionChecker`` writes.
* Flight recorder: `FlightRecorder` keeps the extremes of a model's last steps, which go into the `Tape` of a framework,
  and has them written when something goes wrong; `FlightRing` and `Emergency` are its parts.
* Monitor: `TrainerMon` and `TrainerMonitorV2` monitor a whole training; a plugin's own are those that name its
  framework.
* Weights: `parts_of` takes the fused tensors of a running model apart, so that trainer and engine have the same ones;
  `key_of` is a tensor's name in the vocabulary that all frameworks share.
* Configuration: `ConfigChecker` packs what a training was told and what took effect.
* Other: `module_dump` records one module; `kernel_options` is what a configuration of level L2 asks of a framework;
  `ProcessManifest` writes the manifest of a process that records something else than calls.

Names are imported on first use.
"""

from typing import TYPE_CHECKING

from msprobe_core.lazy import lazy_names

if TYPE_CHECKING:
    from msprobe_core.capture.debugger import module_dump, module_dump_end
    from msprobe_core.capture.described_process import ProcessManifest
    from msprobe_core.capture.flight_recorder import FlightRecorder, first_tensors
    from msprobe_core.capture.kernel_dump import kernel_options
    from msprobe_core.capture.ring_recorder import DEFAULT_SIGNALS, Emergency, FlightRing, FlightStep, Seen, Tape
    from msprobe_core.capture.stages import Stage, StageRecorder, trainer_stages
    from msprobe_core.capture.step_repetition import (
        Run,
        Variant,
        calibration,
        listed,
        repeated,
        repeats,
        shadow_variant,
    )
    from msprobe_core.checkpoint.canonical import key_of
    from msprobe_core.checkpoint.live import ModelSizes, other_dtypes, parts_of
    from msprobe_core.compile_check.check import CompileCheck, check_modules
    from msprobe_core.compile_check.check_files import write_published
    from msprobe_core.config.load import load_config, read_fields, without_comments
    from msprobe_core.config.ranges import parse_ranges
    from msprobe_core.config.schema import Config
    from msprobe_core.config.stages import StageConfig, check_stage_config
    from msprobe_core.config_check.checker import ConfigChecker
    from msprobe_core.free_benchmark.bisect import bisect_step
    from msprobe_core.monitor.trainer_mon import TrainerMon
    from msprobe_core.monitor.trainer_monitor_v2 import TrainerMonitorV2
    from msprobe_core.names import without_wrappers
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "msprobe_core.capture.debugger": "module_dump module_dump_end",
            "msprobe_core.capture.described_process": "ProcessManifest",
            "msprobe_core.capture.flight_recorder": "FlightRecorder first_tensors",
            "msprobe_core.capture.kernel_dump": "kernel_options",
            "msprobe_core.capture.step_repetition": "Run Variant calibration listed repeated repeats shadow_variant",
            "msprobe_core.capture.ring_recorder": "DEFAULT_SIGNALS Emergency FlightRing FlightStep Seen Tape",
            "msprobe_core.capture.stages": "Stage StageRecorder trainer_stages",
            "msprobe_core.checkpoint.canonical": "key_of",
            "msprobe_core.checkpoint.live": "ModelSizes other_dtypes parts_of",
            "msprobe_core.compile_check.check": "CompileCheck check_modules",
            "msprobe_core.compile_check.check_files": "write_published",
            "msprobe_core.config.load": "load_config read_fields without_comments",
            "msprobe_core.config.ranges": "parse_ranges",
            "msprobe_core.config.schema": "Config",
            "msprobe_core.config.stages": "StageConfig check_stage_config",
            "msprobe_core.config_check.checker": "ConfigChecker",
            "msprobe_core.free_benchmark.bisect": "bisect_step",
            "msprobe_core.monitor.trainer_mon": "TrainerMon",
            "msprobe_core.monitor.trainer_monitor_v2": "TrainerMonitorV2",
            "msprobe_core.names": "without_wrappers",
        },
    )

__all__ = [  # noqa: RUF022  # by purpose
    # Stages of a trainer
    "Stage", "StageRecorder", "trainer_stages", "StageConfig", "check_stage_config",
    # Configuration
    "Config", "load_config", "read_fields", "without_comments", "parse_ranges",
    "ConfigChecker",
    # Repeated steps
    "Run", "Variant", "bisect_step", "calibration", "listed", "repeated", "repeats", "shadow_variant",
    # Compiled modules
    "CompileCheck", "check_modules", "write_published",
    # Flight recorder
    "DEFAULT_SIGNALS", "Emergency", "FlightRecorder", "FlightRing", "FlightStep", "Seen", "Tape", "first_tensors",
    # Monitor
    "TrainerMon", "TrainerMonitorV2",
    # Weights
    "ModelSizes", "key_of", "other_dtypes", "parts_of",
    # Modules, kernels and processes
    "ProcessManifest", "module_dump", "module_dump_end", "kernel_options", "without_wrappers",
]  # fmt: skip
