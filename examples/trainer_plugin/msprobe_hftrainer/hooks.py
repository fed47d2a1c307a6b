"""The Trainer of transformers: training and evaluation, each recorded separately."""

from __future__ import annotations

from collections.abc import Sequence

from msprobe_core.plugin import TrainerStages, hookimpl

NAME = "hftrainer"
TRAIN, EVALUATE = "train", "evaluate"


@hookimpl
def msprobe_register_stages() -> Sequence[TrainerStages]:
    """Offer the stages of the Trainer."""
    return [
        TrainerStages(
            NAME, {TRAIN: "forward, backward and update of one optimizer step", EVALUATE: "forward of an evaluation"}
        )
    ]
