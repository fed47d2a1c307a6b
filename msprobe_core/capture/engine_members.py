"""Members of the debugger that engines and trainers use, which know it from mindstudio-probe.

========================================  ==========================================================================
member                                    who uses it
========================================  ==========================================================================
``debugger.config.dump_path = …``         scripts that record stages to directories of their own
``debugger.service.config.dump_path``     verl's tool ``precision_debugger``
``debugger.service.reset_status()``       the same, after each stage
``debugger.service.current_iter``         scripts that set or read the number of the step
``debugger.service.should_stop_service``  loops that end when nothing more is recorded
========================================  ==========================================================================

Whatever else is read from ``service`` raises an `AttributeError` that says what there is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from msprobe_core.capture.controller import Controller
    from msprobe_core.config import Config

_MEMBERS = "config.dump_path, current_iter, should_stop_service and reset_status()"


class EngineConfig:
    """The current configuration. Only ``dump_path`` may be set; everything else is set in the file."""

    __slots__ = ("_controller",)

    def __init__(self, controller: Controller) -> None:
        """Show the configuration of a controller."""
        object.__setattr__(self, "_controller", controller)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller.config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "dump_path":
            raise AttributeError(
                f"debugger.config.{name} cannot be set: edit the configuration file, which is read again while the "
                "program runs if it has 'dump_enable'"
            )
        with self._controller.lock:
            self._controller.redirect(Path(value))

    def __eq__(self, other: object) -> bool:
        config: object = self._controller.config
        return bool(config == (other._controller.config if isinstance(other, EngineConfig) else other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return repr(self._controller.config)


class EngineService:
    """The session that the debugger wraps, as far as others use it."""

    __slots__ = ("_controller",)

    def __init__(self, controller: Controller) -> None:
        """Act on a controller."""
        self._controller = controller

    @property
    def config(self) -> EngineConfig:
        """The current configuration."""
        return EngineConfig(self._controller)

    @property
    def current_iter(self) -> int:
        """Number of the current step; it may be set between steps."""
        return getattr(self._controller.session, "step_number", 0)

    @current_iter.setter
    def current_iter(self, step: int) -> None:
        with self._controller.lock:
            self._controller.opened().begin_at(step)

    @property
    def should_stop_service(self) -> bool:
        """Whether all selected steps are recorded, or an error has ended recording."""
        return bool(getattr(self._controller.session, "is_finished", False))

    def reset_status(self) -> None:
        """End the step, and count steps from 0 again."""
        with self._controller.lock:
            self._controller.restart()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"debugger.service has no {name!r}: here it has {_MEMBERS}; everything else is a method of the debugger"
        )


class EngineMembers:
    """These members, for `msprobe_core.capture.debugger.PrecisionDebugger`."""

    _controller: Controller

    @property
    def config(self) -> Config:
        """The current configuration; its ``dump_path`` may be set."""
        return cast("Config", EngineConfig(self._controller))

    @property
    def service(self) -> EngineService:
        """What engines and trainers set and call beside ``start``, ``stop`` and ``step``."""
        return EngineService(self._controller)

    def _maybe_reload_config(self, force: bool = False) -> None:
        """Read the configuration file, now with ``force``: called by engines that have just edited it."""
        if force:
            with self._controller.lock:
                self._controller.reload()
