"""The stages of TRL's `GRPOTrainer`."""

from __future__ import annotations

from collections.abc import Sequence

from msprobe_core.plugin import TrainerStages, hookimpl

NAME = "trl"
LOG_PROBS, UPDATE = "actor_compute_log_prob", "actor_update"
"""As verl's are called, so that `msprobe rl` compares them."""


@hookimpl
def msprobe_register_stages() -> Sequence[TrainerStages]:
    """Offer the stages that are recorded as dumps."""
    return [
        TrainerStages(
            NAME, {LOG_PROBS: "forward of the actor before it is updated", UPDATE: "forward and loss of a mini-batch"}
        )
    ]
