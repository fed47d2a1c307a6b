"""accelerate: updates and evaluations, each recorded separately."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from msprobe_core.plugin import TrainerStages, hookimpl

NAME = "accelerate"
TRAIN, EVALUATE = "train", "evaluate"


@hookimpl
def msprobe_register_stages() -> Sequence[TrainerStages]:
    """Offer the stages. Frames of this plugin and of accelerate are left out of call stacks."""
    spec = importlib.util.find_spec(NAME)  # imports nothing
    hidden = [str(Path(__file__).parent), *(spec.submodule_search_locations or () if spec else ())]
    return [
        TrainerStages(
            NAME,
            {
                TRAIN: "all micro-batches of one update, and the update",
                EVALUATE: "batches that are given to models in evaluation mode",
            },
            hidden,
        )
    ]
