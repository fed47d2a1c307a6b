"""The RL trainer verl: record every stage of a step without editing verl, and compare stages and runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msprobe_core.plugin import Checkup, Condition, ModuleMap, RunSettings, TrainerStages, hookimpl

if TYPE_CHECKING:
    import click

    from msprobe_core.manifest import Scalar

__version__ = "0.1.0"

_STAGES = {
    "rollout_generate": "the serving engine: prompts and further tokens",
    "reward": "the rewards of samples",
    "actor_compute_log_prob": "log-probs of the actor before it is updated",
    "ref_compute_log_prob": "log-probs of the reference",
    "compute_values": "values of the critic",
    "critic_update": "forward, backward and update of the critic",
    "actor_update": "forward, backward and update of the actor",
    "update_weights_send": "parameters as the trainer sends them",
    "update_weights_recv": "parameters as the serving engine has them then",
    "trainer": "the driver's batch and metrics",
}


@hookimpl
def msprobe_register_stages() -> Sequence[TrainerStages]:
    """Offer verl's stages."""
    return [TrainerStages("verl", _STAGES)]


@hookimpl
def msprobe_register_run_settings() -> Sequence[RunSettings]:
    """Offer the configuration of the trainer and of its workers."""
    return [RunSettings("verl", _settings)]


def _settings() -> Mapping[str, Scalar] | None:
    if "msprobe.verl._process_recording" not in sys.modules:  # nothing of verl is recorded here
        return None
    from msprobe.verl._settings import settings_of_process

    return settings_of_process()


@hookimpl
def msprobe_register_commands() -> Sequence[click.Command]:
    """Offer ``verl``, a group of commands."""
    from msprobe.verl._cli import verl

    return [verl]


@hookimpl
def msprobe_register_module_maps() -> Sequence[ModuleMap]:
    """Offer the names that FSDP and Megatron give to modules of a serving engine."""
    from msprobe_core.rl import FSDP, MEGATRON

    return [FSDP, MEGATRON]


@hookimpl
def msprobe_register_checkups() -> Sequence[Checkup]:
    """Offer what is here of verl."""
    return [Checkup("verl", _examine)]


def _examine() -> Sequence[Condition]:
    from msprobe.verl._checkup import examine

    return examine()
