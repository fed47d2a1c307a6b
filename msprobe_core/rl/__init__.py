"""Recorded runs of RL trainers: their files, and what they are compared by. These names are public.

* Runs: `RunWriter` writes what a trainer has by itself: batches, rewards, weights, choices of experts
  (`RoutedTokens`). `RLStage` names the stages.
* Files: the structs of a run's files, and functions that read and write them.
* Weights: `WeightDigests` takes fingerprints of parameters on their device, one by one as they pass;
  `WeightLog` writes those of one hop.
* Answers: `ResponseGuard` watches what a model answers, while it does; `ArmedDump` records what goes on then.
* Names: `FSDP` and `MEGATRON` map modules of training backends to those of serving engines.

Names are imported on first use.
"""

from typing import TYPE_CHECKING

from msprobe_core.lazy import lazy_names

if TYPE_CHECKING:
    from msprobe_core.rl.armed_dump import ArmedDump
    from msprobe_core.rl.files import (
        VERSION,
        BatchFile,
        BatchRow,
        Capability,
        HookStatus,
        PolicyVersions,
        ProcessInfo,
        Reward,
        RewardWriter,
        RLStage,
        RunInfo,
        Sampling,
        WeightsFile,
        announce_policy_version,
        announced_policy_version,
        load_batch,
        rank_directory,
        recorded_config,
        save_batch,
        save_process,
        save_run,
        save_weights,
        trainer_directory,
    )
    from msprobe_core.rl.module_maps import FSDP, MEGATRON
    from msprobe_core.rl.published_weights import PublishedPlaces, places_asked_for
    from msprobe_core.rl.response_guard import Anomaly, AnomalyKind, ResponseGuard
    from msprobe_core.rl.routing_files import RoutedTokens
    from msprobe_core.rl.weight_digests import WeightDigests, placements_of, sizes_of, tee
    from msprobe_core.rl.weight_log import Hop, Parallel, WeightLog, log_checkpoint
    from msprobe_core.rl.writer import RunWriter
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "msprobe_core.rl.armed_dump": "ArmedDump",
            "msprobe_core.rl.files": (
                "BatchFile BatchRow Capability HookStatus PolicyVersions ProcessInfo RLStage Reward RewardWriter "
                "RunInfo Sampling VERSION WeightsFile announce_policy_version announced_policy_version load_batch "
                "rank_directory recorded_config save_batch save_process save_run save_weights trainer_directory"
            ),
            "msprobe_core.rl.module_maps": "FSDP MEGATRON",
            "msprobe_core.rl.published_weights": "PublishedPlaces places_asked_for",
            "msprobe_core.rl.response_guard": "Anomaly AnomalyKind ResponseGuard",
            "msprobe_core.rl.routing_files": "RoutedTokens",
            "msprobe_core.rl.weight_digests": "WeightDigests placements_of sizes_of tee",
            "msprobe_core.rl.weight_log": "Hop Parallel WeightLog log_checkpoint",
            "msprobe_core.rl.writer": "RunWriter",
        },
    )

__all__ = [  # noqa: RUF022  # by purpose
    # Runs
    "RoutedTokens", "RunWriter",
    # Files
    "BatchFile", "BatchRow", "Capability", "HookStatus", "PolicyVersions", "ProcessInfo", "RLStage", "Reward",
    "RewardWriter", "RunInfo", "Sampling", "VERSION", "WeightsFile", "announce_policy_version",
    "announced_policy_version", "load_batch", "rank_directory", "recorded_config", "save_batch", "save_process",
    "save_run", "save_weights", "trainer_directory",
    # Weights
    "Hop", "Parallel", "PublishedPlaces", "WeightLog", "places_asked_for",
    "WeightDigests", "log_checkpoint", "placements_of", "sizes_of", "tee",
    # Answers
    "Anomaly", "AnomalyKind", "ArmedDump", "ResponseGuard",
    # Names
    "FSDP", "MEGATRON",
]  # fmt: skip
