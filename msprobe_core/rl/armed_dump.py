"""What an anomalous answer opens: a window of recording in one of the next forwards of the engine.

::

    dump = ArmedDump(model, "runs/a", level="L0", task="tensor")
    guard = ResponseGuard(action=dump)
    while requests:
        with dump.forward():
            tokens, log_probs = step(model, requests)
        for request, token, log_prob in zip(requests, tokens, log_probs):
            guard.feed(request, [token], [log_prob])
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from msprobe_core.capture.framework_choice import find_framework
from msprobe_core.monitor.alarm_action import Answer
from msprobe_core.monitor.alarm_dump import AlarmDump, window_config

_logger = logging.getLogger(__name__)

MOST_WINDOWS = 3
COOLDOWN_S = 300.0
"""As alarms of the monitor have it; vllm-ascend's guard waits as long."""


class ArmedDump:
    """An action of `ResponseGuard`. Until it is asked, a forward costs a comparison of numbers."""

    def __init__(
        self,
        models: Any,
        out: str | os.PathLike[str],
        *,
        most: int = MOST_WINDOWS,
        cooldown_s: float = COOLDOWN_S,
        framework: str = "pytorch",
        **settings: Any,
    ) -> None:
        """Arm the window.

        Args:
            models: The engine's model, or several.
            out: Directory in which ``alarm_dump`` is written.
            most: How many windows there may be.
            cooldown_s: Seconds between two of them.
            framework: Of the models.
            settings: What is recorded, by the fields of `PrecisionDebugger`'s configuration; level mix and statistics
                by default.

        Raises:
            ConfigError: the settings are wrong, or would change the results.
            PluginError: the framework's plugin is missing.
        """
        found = find_framework(framework, None)
        config = window_config(settings, "ArmedDump", Path(out))
        given = list(cast("Sequence[Any]", models)) if isinstance(models, list | tuple) else [models]
        self._dump = AlarmDump(config, found, given, self._note_failure, most=most, cooldown_s=cooldown_s)
        self._count = 0

    @staticmethod
    def _note_failure(what: str, error: Exception) -> None:
        _logger.warning("%s failed: %s", what, error)

    @contextmanager
    def forward(self) -> Generator[None, None, None]:
        """Surround one forward of the engine; it is recorded if a window is due."""
        self._dump.begin_step(self._count)
        try:
            yield
        finally:
            self._dump.end_step()
            self._count += 1

    def ask(self) -> Answer | None:
        """Have one of the next forwards recorded; ``None`` if none will be: too many, too soon, or by the program."""
        return self._dump.ask()
