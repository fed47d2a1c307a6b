"""`PrecisionDebugger`: the class that users add to their training script."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from msprobe_core.capture.controller import Controller
from msprobe_core.capture.engine_members import EngineMembers
from msprobe_core.capture.framework_choice import listed
from msprobe_core.capture.process_debugger import ProcessDebugger
from msprobe_core.capture.window import Window
from msprobe_core.errors import SessionError
from msprobe_core.model import Level, Task

if TYPE_CHECKING:
    from typing_extensions import Self


class PrecisionDebugger(EngineMembers, ProcessDebugger):
    """Records the values that modules and APIs take and return between ``start`` and ``stop``.

    There is one debugger per process. ``start``, ``stop`` and ``step`` may be called on the object or on the class, so
    other files of a training program can use it without passing it around::

        debugger = PrecisionDebugger(dump_path="run", level="mix", step=[0])
        for batch in loader:
            debugger.start(model)
            train_step(batch)
            debugger.stop()
            debugger.step()

    As a context manager it stops at the end of the block, also after an exception::

        with debugger.start(model):
            train_step(batch)
    """

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
        """Return the debugger of this process, created by the first call.

        Further calls return the same object, whatever their arguments; a warning reports arguments that differ.

        Args:
            config_path: JSON or YAML file; ``None`` takes the defaults (statistics at level L1 to ``./dump_path``).
            task: Overrides the file: ``statistics`` or ``tensor``.
            dump_path: Overrides the file: directory of the run.
            level: Overrides the file: ``L0``, ``L1``, ``L2``, ``mix`` or ``debug``.
            step: Overrides the file: steps to record, for example ``[0, "2-5"]``; empty records all.
            model: Model that ``start`` records if it gets none, as in scripts for releases up to 8.x.
            others: Any other common field of the configuration, for example ``rank=[0]``; overrides the file.

        Raises:
            ConfigError: the configuration is wrong.
            SessionError: a debugger of another framework exists already.
            StoreError: the directory of the dump cannot be created.
        """
        return cls._made(
            config_path, {"task": task, "dump_path": dump_path, "level": level, "step": step, **others}, model
        )

    @classmethod
    def start(
        cls,
        model: Any = None,
        token_range: Sequence[int] | None = None,
        rank_id: int | None = None,
        scheduled_tokens: Mapping[str, int] | None = None,
    ) -> Self:
        """Open a window: begin to record, if this step and this rank are selected.

        Args:
            model: A model or a list of models; needed at the levels L0 and mix, and with ``token_range``. For a list,
                module paths begin with the position in the list: ``Module.0.fc.Linear.forward.0``.
            token_range: First and last forward of the model to record, both included, counted from 0 at this call.
                Calls inside these forwards and their gradients are recorded. Calls outside are not numbered either.
            rank_id: The rank of this process, if the framework does not know it.
            scheduled_tokens: With the setting ``request_id``: the number of tokens of each request in the batch, in the
                order of dimension 0.

        Returns: the debugger, so that it can be used in a ``with`` statement.

        Raises:
            SessionError: no debugger was created, ``model`` is missing or not a model, or an argument is wrong.
        """
        debugger = cls._current()
        with debugger._controller.lock:
            models = listed(debugger._model if model is None else model)
            given: Any = token_range  # checked by the session
            window = Window(models, isinstance(model, list | tuple), given, rank_id)
            debugger._controller.start(window, scheduled_tokens)
            return debugger

    @classmethod
    def stop(cls) -> None:
        """Close the window. When this returns, everything recorded is on disk and all hooks and patches are removed.

        Raises:
            SessionError: no debugger was created.
        """
        controller = cls._current()._controller
        with controller.lock:
            controller.stop()

    # Kept for scripts written for releases up to 8.x.
    forward_backward_dump_end = stop

    @classmethod
    def step(cls, dump: bool = True) -> None:
        """End the step; the next ``start`` records the next step. An open window stays open.

        Args:
            dump: Whether the step counts. If not, what it recorded is removed, and the next one has its number: for
                forwards of engines on made-up batches.

        Raises:
            SessionError: no debugger was created.
        """
        controller = cls._current()._controller
        with controller.lock:
            if dump:
                controller.step()
            else:
                controller.forget_step()

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """Set the number of the current step, for example after loading a checkpoint; later steps count from it.

        Raises:
            SessionError: no debugger was created, ``step`` is not an integer >= 0, or a step is being recorded.
        """
        controller = cls._current()._controller
        with controller.lock:
            controller.opened().begin_at(step)

    @classmethod
    def dump_module(cls, module: Any, name: str) -> None:
        """Record only calls of one module, as ``Module.{name}.…``, until ``end_module_dump``.

        Raises:
            SessionError: no debugger was created, ``module`` is not a module, or ``name`` is not a valid name.
        """
        controller = cls._current()._controller
        with controller.lock:
            controller.opened(module).dump_module(module, name)

    @classmethod
    def end_module_dump(cls) -> None:
        """Return to what was recorded before ``dump_module``.

        Raises:
            SessionError: no debugger was created.
        """
        controller = cls._current()._controller
        with controller.lock:
            if controller.session is not None:
                controller.session.end_module_dump()

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record a value of the training program, at level debug; needs neither ``start`` nor ``stop``.

        At other levels nothing is recorded, and one warning reports this.

        Args:
            variable: A tensor, a number, a text, or a dict, list or tuple of these, nested to any depth.
            name: Name of its entries in ``debug.json``: ``{name}.{n}.debug``, n from 0 in each step.
            save_backward: Whether to record the gradients of its tensors too, as ``{name}_grad.{n}.debug``.

        Raises:
            SessionError: no debugger was created, or ``name`` is not a string.
        """
        debugger = cls._current()
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users may pass anything
            raise SessionError(f"save() got {type(name).__name__} as the name of a value; give text")
        controller = debugger._controller
        if controller.config.level is not Level.DEBUG:
            level = controller.config.level.value
            debugger._warn_once("save(%r): the level is %s; values are saved at level debug only", name, level)
            return
        with controller.lock:
            controller.opened().save(variable, name, save_backward=save_backward)

    @classmethod
    def monitor(cls, target: Any, optimizer: Any = None) -> None:
        """Record the gradients that the optimizer uses, in each of its steps, with the task ``grad_probe``.

        Called once, when model and optimizer exist; ``start``, ``stop`` and ``step`` are not needed, because a step is
        one of the optimizer. With other tasks nothing is recorded, and one warning reports this.

        Args:
            target: The model, a list of models, or the optimizer.
            optimizer: Of the model. Without it, every optimizer is watched that updates parameters of the model, if the
                framework can do so; MindSpore cannot.

        Raises:
            SessionError: no debugger was created, or an argument is neither a model nor an optimizer.
        """
        debugger = cls._current()
        controller = debugger._controller
        if controller.config.task is not Task.GRAD_PROBE:
            task = controller.config.task.value
            debugger._warn_once("monitor(): the task is %s; gradients are recorded with 'grad_probe' only", task)
            return
        with controller.lock:
            controller.opened(_first(target)).monitor(listed(target), optimizer)

    @classmethod
    def register_custom_api(cls, module: Any, api: str, api_prefix: str | None = None) -> None:
        """Record a function that the framework plugin does not intercept, such as an extension's, at levels L1 and mix.

        May be called before ``start``, or while a window is open. The function is patched between ``start`` and
        ``stop`` only, also in modules that have imported it by name.

        Args:
            module: Module, class or object that has the function as an attribute.
            api: Name of the function there.
            api_prefix: First part of the entries' names, ``{api_prefix}.{api}.{n}.forward``; ``None`` takes the name
                of ``module``, or ``Custom`` if it has none.

        Raises:
            ConfigError: there is no such function, it cannot be replaced, or the prefix is invalid.
            SessionError: no debugger was created.
        """
        cls._current()._controller.custom_apis.register(module, api, api_prefix)

    @classmethod
    def restore_custom_api(cls, module: Any, api: str) -> None:
        """Stop recording a function that was given to ``register_custom_api``.

        Raises:
            SessionError: it is not registered, or no debugger was created.
        """
        cls._current()._controller.custom_apis.restore(module, api)

    @property
    def directory(self) -> Path | None:
        """Directory of the current step, or of the last one; ``None`` before the first."""
        return self._controller.directory

    def __enter__(self) -> Self:
        if not self._controller.is_in_window:  # the open window may be one that is not recorded
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._controller.break_off(f"{kind.__name__} has left the window")
        self.stop()


def current_debugger() -> PrecisionDebugger | None:
    """Return the debugger of this process; ``None`` if it has none."""
    return cast("PrecisionDebugger | None", PrecisionDebugger._instance)  # pyright: ignore[reportPrivateUsage]


def controller_of(debugger: PrecisionDebugger) -> Controller:
    """Return the controller of a debugger: for the parts of the core that record a step several times."""
    return debugger._controller  # pyright: ignore[reportPrivateUsage]


def _first(model: Any) -> Any:
    return next(iter(listed(model)), None)


def module_dump(module: Any, name: str) -> None:
    """Record only calls of one module or Cell, until ``module_dump_end``.

    Its entries are named ``Module.{name}.{Class}.forward.N``, in MindSpore ``Cell.{name}.…``, and so on. APIs, other
    modules and calls inside this one are not recorded, even if the level includes them; a module that the level
    records anyway is not recorded under its usual name meanwhile. Takes effect between ``start`` and ``stop`` of a
    selected step.

    Raises:
        SessionError: no debugger was created, ``module`` is not a module, or ``name`` is not a valid name.
    """
    PrecisionDebugger.dump_module(module, name)


def module_dump_end() -> None:
    """Return to what was recorded before ``module_dump``.

    Raises:
        SessionError: no debugger was created.
    """
    PrecisionDebugger.end_module_dump()
