"""`PrecisionDebugger`: what users put into their training script."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from msprobe_core.capture.controller import Controller
from msprobe_core.capture.framework_choice import find_framework
from msprobe_core.capture.window import Window
from msprobe_core.compat.members import Gone
from msprobe_core.compat.table import GRADIENT_PROBE
from msprobe_core.config import Config
from msprobe_core.errors import SessionError
from msprobe_core.model import Level
from msprobe_core.protocols.framework import Framework

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger(__name__)

_MAX_WAIT_AT_EXIT_S = 10.0
"""So long a process that ends waits for a thread that starts or stops; a daemon thread may never come to its end."""


class PrecisionDebugger:
    """Records what flows through modules and APIs between ``start`` and ``stop``.

    There is one per process. ``start``, ``stop`` and ``step`` may be called on the object or on the class, so that
    other files of a training program reach it without passing it around::

        debugger = PrecisionDebugger(dump_path="run", level="mix", step=[0])
        for batch in loader:
            debugger.start(model)
            train_step(batch)
            debugger.stop()
            debugger.step()

    As a context manager it stops at the end of the block, also when an exception leaves it::

        with debugger.start(model):
            train_step(batch)
    """

    framework_name: ClassVar[str | None] = None
    """The framework of a plugin's subclass; ``None`` here, where it is found out."""

    _instance: ClassVar[PrecisionDebugger | None] = None
    _controller: Controller
    _has_refused_to_save: bool = False
    _model: Any
    """What ``start`` takes where it is given no model."""

    def __new__(
        cls,
        config_path: str | os.PathLike[str] | None = None,
        task: str | None = None,
        dump_path: str | os.PathLike[str] | None = None,
        level: str | None = None,
        step: list[int | str] | None = None,
        *,
        model: Any = None,
        **others: Any,
    ) -> Self:
        """Return the debugger of this process, made by the first call.

        Another call returns the same object, whatever its arguments; a warning says so where they differ.

        Args:
            config_path: JSON or YAML file; ``None`` takes the defaults (statistics at level L1 to ``./dump_path``).
            task: Wins over the file: ``statistics`` or ``tensor``.
            dump_path: Wins over the file: directory that the steps are written under.
            level: Wins over the file: ``L0``, ``L1``, ``L2``, ``mix`` or ``debug``.
            step: Wins over the file: steps to record, for example ``[0, "2-5"]``; empty records all.
            model: What ``start`` records where it is given no model, as in scripts for releases up to 8.x.
            others: Any other common field of the configuration, for example ``rank=[0]``; each wins over the file.

        Raises:
            ConfigError: the configuration is wrong.
            SessionError: there is a debugger of another framework already.
            StoreError: the directory that the dump is to go to cannot be created.
        """
        given = {"task": task, "dump_path": dump_path, "level": level, "step": step, **others}
        if PrecisionDebugger._instance is not None:
            return cls._existing(config_path, given, model)
        debugger = object.__new__(cls)

        def forget() -> None:
            if PrecisionDebugger._instance is debugger:
                PrecisionDebugger._instance = None  # the child may make its own

        debugger._controller = Controller(config_path, given, debugger._framework, forget)
        debugger._model = model
        PrecisionDebugger._instance = debugger
        atexit.register(debugger._close_at_exit)
        if cls.framework_name is not None:
            try:
                debugger._controller.opened()
            except Exception:
                debugger.close()
                raise
        return debugger

    @classmethod
    def _existing(cls, config_path: str | os.PathLike[str] | None, given: dict[str, Any], model: Any) -> Self:
        existing = PrecisionDebugger._instance
        if not isinstance(existing, cls):
            raise SessionError(
                f"this process already has a {type(existing).__module__}.{type(existing).__name__}; close() it first"
            )
        existing._model = existing._model if model is None else model
        if not existing._controller.has_configuration(config_path, given):
            _logger.warning(
                "this process already has a PrecisionDebugger; it is returned, and the arguments of this construction "
                "are ignored: call close() before making another"
            )
        return existing

    @classmethod
    def start(
        cls,
        model: Any = None,
        token_range: Sequence[int] | None = None,
        rank_id: int | None = None,
        scheduled_tokens: Mapping[str, int] | None = None,
    ) -> Self:
        """Begin to record, if this step and this rank are selected.

        Args:
            model: A model or a list of models; needed at the levels L0 and mix, and with ``token_range``. Of a list,
                paths of modules begin with the position: ``Module.0.fc.Linear.forward.0``.
            token_range: First and last forward of the model, counted from this call on and from 0, that are recorded,
                with what runs inside them and with their gradients. Calls outside of them are not counted either.
            rank_id: The rank of this process, where the framework does not know it.
            scheduled_tokens: With the setting ``request_id``: how many tokens of each request the batch holds, by
                request, in the order of dimension 0.

        Returns: the debugger, so that it can be used in a ``with`` statement.

        Raises:
            SessionError: no debugger has been made, ``model`` is missing or is none, or an argument is wrong.
        """
        debugger = cls._current()
        with debugger._controller.lock:
            models = _listed(debugger._model if model is None else model)
            given: Any = token_range  # the session checks it
            window = Window(models, isinstance(model, list | tuple), given, rank_id)
            debugger._controller.start(window, scheduled_tokens)
            return debugger

    @classmethod
    def stop(cls) -> None:
        """Stop recording. When it returns, everything recorded is on disk and nothing of ours is in the model.

        Raises:
            SessionError: no debugger has been made.
        """
        controller = cls._current()._controller
        with controller.lock:
            controller.stop()

    # Of releases up to 8.x.
    forward_backward_dump_end = stop
    monitor = Gone(GRADIENT_PROBE)

    @classmethod
    def step(cls) -> None:
        """End the step: the next ``start`` records the next one. A debugger that is recording goes on recording.

        Raises:
            SessionError: no debugger has been made.
        """
        controller = cls._current()._controller
        with controller.lock:
            controller.step()

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """Let the current step have this number, for example that of a checkpoint; later ones count on from it.

        Raises:
            SessionError: no debugger has been made, ``step`` is no integer from 0, or a step is being recorded.
        """
        controller = cls._current()._controller
        with controller.lock:
            controller.opened().begin_at(step)

    @classmethod
    def dump_module(cls, module: Any, name: str) -> None:
        """Record calls of one module, as ``Module.{name}.…``, and nothing else, until ``end_module_dump``.

        Raises:
            SessionError: no debugger has been made, ``module`` is none, or ``name`` is no name.
        """
        controller = cls._current()._controller
        with controller.lock:
            controller.opened(module).dump_module(module, name)

    @classmethod
    def end_module_dump(cls) -> None:
        """Record again what was recorded before ``dump_module``.

        Raises:
            SessionError: no debugger has been made.
        """
        controller = cls._current()._controller
        with controller.lock:
            if controller.session is not None:
                controller.session.end_module_dump()

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record a value of the training program, at level debug; needs neither ``start`` nor ``stop``.

        At other levels nothing is recorded, and a warning says so once.

        Args:
            variable: A tensor, a number or text, or a dict, list or tuple of such, nested as one likes.
            name: What it is to be called in ``debug.json``: ``{name}.{n}.debug``, n from 0 in each step.
            save_backward: Whether the gradients of its tensors are recorded too, as ``{name}_grad.{n}.debug``.

        Raises:
            SessionError: no debugger has been made, or ``name`` is no text.
        """
        debugger = cls._current()
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # of the user
            raise SessionError(f"save() got {type(name).__name__} as the name of a value; give text")
        controller = debugger._controller
        if controller.config.level is not Level.DEBUG:
            if not debugger._has_refused_to_save:
                debugger._has_refused_to_save = True
                level = controller.config.level.value
                _logger.warning("save(%r): the level is %s; values are saved at level debug only", name, level)
            return
        with controller.lock:
            controller.opened().save(variable, name, save_backward=save_backward)

    @classmethod
    def register_custom_api(cls, module: Any, api: str, api_prefix: str | None = None) -> None:
        """Record a function that the framework does not see, such as one of an extension, at the levels L1 and mix.

        May be called before ``start``, or while something is recorded. The function is stood for between ``start`` and
        ``stop`` only, also where other modules have imported it by name.

        Args:
            module: Module, class or object that has the function.
            api: Name of the function there.
            api_prefix: First part of the entries' names, ``{api_prefix}.{api}.{n}.forward``; ``None`` takes the name
                of ``module``, or ``Custom`` if it has none.

        Raises:
            ConfigError: there is no such function, it cannot be replaced, or the prefix is no word.
            SessionError: no debugger has been made.
        """
        cls._current()._controller.custom_apis.register(module, api, api_prefix)

    @classmethod
    def restore_custom_api(cls, module: Any, api: str) -> None:
        """Record a function no more that ``register_custom_api`` has named.

        Raises:
            SessionError: it is not registered, or no debugger has been made.
        """
        cls._current()._controller.custom_apis.restore(module, api)

    @property
    def config(self) -> Config:
        """What is recorded."""
        return self._controller.config

    @property
    def directory(self) -> Path | None:
        """Where the current step is being written, or the last one was; ``None`` before the first."""
        return self._controller.directory

    def close(self) -> None:
        """Stop for good and let another debugger be made; also called when the process ends."""
        with self._controller.lock:
            self._give_way()
            self._controller.close()

    def _give_way(self) -> None:
        if PrecisionDebugger._instance is self:
            PrecisionDebugger._instance = None
            atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        lock = self._controller.lock
        is_locked = lock.acquire(timeout=_MAX_WAIT_AT_EXIT_S)
        try:
            self._give_way()
            self._controller.close_at_exit()
        finally:
            if is_locked:
                lock.release()

    def __enter__(self) -> Self:
        if not self._controller.is_in_window:  # which may be one that is not recorded
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._controller.break_off(f"{kind.__name__} has left the window")
        self.stop()

    @classmethod
    def _current(cls) -> Self:
        existing = PrecisionDebugger._instance
        if existing is None:
            raise SessionError(f"no {cls.__name__} has been made yet; construct one before start(), stop() or step()")
        if not isinstance(existing, cls):
            raise SessionError(
                f"the debugger of this process is a {type(existing).__module__}.{type(existing).__name__}"
            )
        return existing

    def _framework(self, model: Any) -> Framework:
        return find_framework(self.framework_name, model)


def controller_of(debugger: PrecisionDebugger) -> Controller:
    """Return what a debugger records with: for the parts of the core that record a step several times."""
    return debugger._controller  # pyright: ignore[reportPrivateUsage]


def _listed(model: Any) -> list[Any]:
    if model is None:
        return []
    return list(cast("Sequence[Any]", model)) if isinstance(model, list | tuple) else [model]


def module_dump(module: Any, name: str) -> None:
    """Record calls of one module or Cell and nothing else, until ``module_dump_end``.

    Its entries are called ``Module.{name}.{Class}.forward.N``, in MindSpore ``Cell.{name}.…``, and so on. APIs, other
    modules and what runs inside this one are passed over, also where the level would have them; a module that the level
    records anyway is not recorded under its own name meanwhile. Takes effect between ``start`` and ``stop`` of a
    selected step.

    Raises:
        SessionError: no debugger has been made, ``module`` is none, or ``name`` is no name.
    """
    PrecisionDebugger.dump_module(module, name)


def module_dump_end() -> None:
    """Record again what was recorded before ``module_dump``.

    Raises:
        SessionError: no debugger has been made.
    """
    PrecisionDebugger.end_module_dump()
