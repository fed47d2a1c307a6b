"""Monitor a training with the `Trainer` of transformers.

::

    trainer = Trainer(…, callbacks=[MonitorCallback("monitor_config.json")])
    trainer.train()
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msprobe.pytorch import TrainerMon
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class MonitorCallback(TrainerCallback):
    """Sets the monitor when the training begins, and ends it with the training."""

    def __init__(self, config_path: str | Path) -> None:
        """Read the configuration.

        Raises:
            ConfigError: it cannot be used.
        """
        self.monitor = TrainerMon(config_path, params_have_main_grad=False)
        self._is_set = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the monitor: models and optimizer exist now, and a resumed training has its step."""
        del control
        if self._is_set:
            return
        self._is_set = True
        # Accelerate passes an optimizer that calls the real one.
        optimizer = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])
        self.monitor.set_monitor(
            kwargs["model"],
            optimizer,
            grad_acc_steps=args.gradient_accumulation_steps,
            start_iteration=state.global_step,
        )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End it: the last files are written."""
        del args, state, control, kwargs
        self.monitor.close()
