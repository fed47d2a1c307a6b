"""Monitor a training with Lightning's `Trainer`.

::

    trainer = Trainer(…, callbacks=[MonitorCallback("monitor_config.json")])
    trainer.fit(module, batches)
"""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from msprobe.pytorch import TrainerMon


class MonitorCallback(Callback):
    """Sets the monitor when the training begins, and ends it with the training."""

    def __init__(self, config_path: str | Path) -> None:
        """Read the configuration.

        Raises:
            ConfigError: it cannot be used.
        """
        self.monitor = TrainerMon(config_path, params_have_main_grad=False)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the monitor: optimizers exist now; of several the first one's steps are counted."""
        self.monitor.set_monitor(
            pl_module,
            trainer.optimizers[0],
            grad_acc_steps=trainer.accumulate_grad_batches,
            start_iteration=trainer.global_step,
        )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End it: the last files are written."""
        del trainer, pl_module
        self.monitor.close()
