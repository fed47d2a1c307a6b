"""A callback that records in `mindspore.train.Model.train`."""

from __future__ import annotations

from typing import Any

from mindspore.train import Callback

from msprobe_core import PrecisionDebugger


class MsprobeStep(Callback):
    """Records each step of ``Model.train``: ``model.train(1, data, callbacks=[MsprobeStep(debugger)])``.

    Records the net that the model trains, without the loss and the optimizer around it.
    """

    def __init__(self, debugger: PrecisionDebugger) -> None:
        """Create a callback.

        Args:
            debugger: Started before each step, and stopped and stepped after it.
        """
        super().__init__()
        self._debugger = debugger
        self._is_started = False

    def on_train_begin(self, run_context: Any) -> None:
        """Begin to record: in a static graph, before anything is compiled."""
        self._start(run_context)

    def on_train_step_begin(self, run_context: Any) -> None:
        """Begin to record a step; the first one has begun already."""
        if not self._is_started:
            self._start(run_context)

    def on_train_step_end(self, run_context: Any) -> None:  # noqa: ARG002  # the framework's signature
        """End the step."""
        self._is_started = False
        self._debugger.stop()
        self._debugger.step()

    def _start(self, run_context: Any) -> None:
        parameters: Any = run_context.original_args()
        self._debugger.start(parameters.network)
        self._is_started = True
