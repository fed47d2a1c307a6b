"""`PrecisionDebugger`: what users put into their training script."""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec

from msprobe_core.capture.custom_apis import CustomApis
from msprobe_core.capture.kernel_dump import KernelSession
from msprobe_core.capture.measure import Measurement, current_order
from msprobe_core.capture.session import Session
from msprobe_core.capture.window import Window
from msprobe_core.compat.members import Gone
from msprobe_core.compat.table import GRADIENT_PROBE
from msprobe_core.config import Config, ConfigWatch, load_config
from msprobe_core.errors import ConfigError, MsprobeError, PluginError, SessionError
from msprobe_core.guard import described
from msprobe_core.model import EndState, Level
from msprobe_core.plugins import refuse_shadowing, registry
from msprobe_core.protocols.capabilities import KernelDumper
from msprobe_core.protocols.framework import Framework, FrameworkOffer
from msprobe_core.store.layout import check_place

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
    _config: Config
    _session: Session | KernelSession | None
    _has_refused_to_save: bool = False
    _custom_apis: CustomApis
    _watch: ConfigWatch | None
    _edited: Config | None
    """What the file holds since it was edited, while the step for which that counts has not begun."""
    _has_switched: bool
    _is_in_window: bool
    _lock: threading.RLock
    """Held by ``start``, ``stop``, ``step`` and the like, so that threads take turns.

    A signal handler may call one of them in the middle of another, so the thread that holds it can take it again.
    """
    _measurement: Measurement | None
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
        config = load_config(config_path, **given)
        order = current_order()
        if order is None and config.dump_enable and not config.rank:  # else nothing may ever be written here
            check_place(config.directory)
        debugger = object.__new__(cls)
        debugger._config = config
        debugger._measurement = None if order is None else Measurement(order, config_path, given)
        debugger._session = None
        debugger._custom_apis = CustomApis(config.listed_apis)
        is_watched = config_path is not None and config.is_live and order is None
        debugger._watch = ConfigWatch(config_path, given, config) if config_path and is_watched else None
        debugger._edited = None
        debugger._has_switched = False
        debugger._is_in_window = False
        debugger._lock = threading.RLock()
        debugger._model = model
        if config.perturb is not None:
            _logger.warning(
                "perturb: in its windows this run computes something else than it would without: last digits "
                "are others (seed %d); it is recorded to %s", config.perturb.seed, config.directory,
            )  # fmt: skip
        PrecisionDebugger._instance = debugger
        atexit.register(debugger._close_at_exit)
        if cls.framework_name is not None:
            try:
                debugger._open(debugger._framework(None))
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
        if existing._watch is not None and existing._watch.is_of(config_path, given):
            return existing  # the file may have been edited since
        has_arguments = config_path is not None or any(value is not None for value in given.values())
        if has_arguments and not existing._has_configuration(config_path, given):
            _logger.warning(
                "this process already has a PrecisionDebugger; it is returned, and the arguments of this construction "
                "are ignored: call close() before making another"
            )
        return existing

    def _has_configuration(self, config_path: str | os.PathLike[str] | None, given: dict[str, Any]) -> bool:
        try:
            return load_config(config_path, **given) == self._config
        except ConfigError:  # ignored as the rest of it; it must not end a training that is being recorded
            return False

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
        with debugger._lock:
            models = _listed(debugger._model if model is None else model)
            if debugger._session is None:
                debugger._open(debugger._framework(models[0] if models else None))
            debugger._look_at_file()
            debugger._take_over()
            given: Any = token_range  # the session checks it
            window = Window(models, isinstance(model, list | tuple), given, rank_id)
            debugger._start(window, scheduled_tokens)
            debugger._is_in_window = True
            return debugger

    @classmethod
    def stop(cls) -> None:
        """Stop recording. When it returns, everything recorded is on disk and nothing of ours is in the model.

        Raises:
            SessionError: no debugger has been made.
        """
        debugger = cls._current()
        with debugger._lock:
            debugger._is_in_window = False
            if debugger._session is not None:
                debugger._session.stop()
            debugger._look_at_file()

    # Of releases up to 8.x.
    forward_backward_dump_end = stop
    monitor = Gone(GRADIENT_PROBE)

    @classmethod
    def step(cls) -> None:
        """End the step: the next ``start`` records the next one. A debugger that is recording goes on recording.

        Raises:
            SessionError: no debugger has been made.
        """
        debugger = cls._current()
        with debugger._lock:
            if debugger._session is None:
                debugger._open(debugger._framework(None))
            assert debugger._session is not None
            debugger._look_at_file()
            if debugger._edited is None:
                debugger._session.step()
                if debugger._measurement is not None:
                    debugger._measurement.end_step(has_given_up=debugger._session.is_finished)
                return
            window = debugger._session.running_window
            debugger._session.stop()
            debugger._session.step()
            debugger._take_over()
            if window is not None:
                debugger._start(window, None)

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """Let the current step have this number, for example that of a checkpoint; later ones count on from it.

        Raises:
            SessionError: no debugger has been made, ``step`` is no integer from 0, or a step is being recorded.
        """
        debugger = cls._current()
        with debugger._lock:
            if debugger._session is None:
                debugger._open(debugger._framework(None))
            assert debugger._session is not None
            debugger._session.begin_at(step)

    @classmethod
    def dump_module(cls, module: Any, name: str) -> None:
        """Record calls of one module, as ``Module.{name}.…``, and nothing else, until ``end_module_dump``.

        Raises:
            SessionError: no debugger has been made, ``module`` is none, or ``name`` is no name.
        """
        debugger = cls._current()
        with debugger._lock:
            if debugger._session is None:
                debugger._open(debugger._framework(module))
            assert debugger._session is not None
            debugger._session.dump_module(module, name)

    @classmethod
    def end_module_dump(cls) -> None:
        """Record again what was recorded before ``dump_module``.

        Raises:
            SessionError: no debugger has been made.
        """
        debugger = cls._current()
        with debugger._lock:
            if debugger._session is not None:
                debugger._session.end_module_dump()

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
        if debugger._config.level is not Level.DEBUG:
            if not debugger._has_refused_to_save:
                debugger._has_refused_to_save = True
                level = debugger._config.level.value
                _logger.warning("save(%r): the level is %s; values are saved at level debug only", name, level)
            return
        with debugger._lock:
            if debugger._session is None:
                debugger._open(debugger._framework(None))
            assert debugger._session is not None
            debugger._session.save(variable, name, save_backward=save_backward)

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
        cls._current()._custom_apis.register(module, api, api_prefix)

    @classmethod
    def restore_custom_api(cls, module: Any, api: str) -> None:
        """Record a function no more that ``register_custom_api`` has named.

        Raises:
            SessionError: it is not registered, or no debugger has been made.
        """
        cls._current()._custom_apis.restore(module, api)

    # --- a step that is done several times ---------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """What is recorded."""
        return self._config

    def session(self, model: Any) -> Session | KernelSession:
        """Return what records, made for the framework of ``model`` if there is none yet."""
        if self._session is None:
            self._open(self._framework(model))
        assert self._session is not None
        return self._session

    @property
    def directory(self) -> Path | None:
        """Where the current step is being written, or the last one was; ``None`` before the first."""
        return self._session.directory if isinstance(self._session, Session) else None

    @property
    def can_repeat(self) -> bool:
        """Whether a step may be done again: not where what each costs is being measured."""
        return self._measurement is None and self._config.dump_enable

    @contextmanager
    def diverted(self, config: Config, step: int) -> Generator[None, None, None]:
        """Record with another configuration until the block ends, as the step with the given number.

        Raises:
            MsprobeError: that configuration cannot be recorded.
        """
        kept = self._session, self._watch, self._edited, self._is_in_window
        session = kept[0]
        assert isinstance(session, Session)
        diverted = self._new_session(config, session.framework)
        diverted.continue_from(session, step)
        # A file that is edited meanwhile counts from the next step on.
        self._session, self._watch, self._edited, self._is_in_window = diverted, None, None, False
        try:
            yield
        finally:
            self._session, self._watch, self._edited, self._is_in_window = kept
            diverted.close()

    def close(self) -> None:
        """Stop for good and let another debugger be made; also called when the process ends."""
        with self._lock:
            session = self._give_away()
            if session is not None:
                session.close()

    def _give_away(self) -> Session | KernelSession | None:
        if PrecisionDebugger._instance is self:
            PrecisionDebugger._instance = None
            atexit.unregister(self._close_at_exit)
        session, self._session = self._session, None
        return session

    def _close_at_exit(self) -> None:
        """Stop, and let the dump say how the program has ended: a step that it has broken off is not a whole one."""
        is_locked = self._lock.acquire(timeout=_MAX_WAIT_AT_EXIT_S)
        try:
            self._end()
        finally:
            if is_locked:
                self._lock.release()

    def _end(self) -> None:
        session = self._give_away()
        if not isinstance(session, Session):
            if session is not None:
                session.close()
            return
        is_inside = session.running_window is not None
        error = getattr(sys, "last_value", None)  # what the interpreter has just printed the traceback of
        if is_inside and error is not None:
            session.break_off(f"the program ended with {type(error).__name__}")
        if is_inside:
            session.discard_if_empty()
        session.close(EndState.STOPPED if is_inside or error is not None else EndState.COMPLETE)

    def __enter__(self) -> Self:
        if not self._is_in_window:  # which may be one that is not recorded
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and isinstance(self._session, Session):
            self._session.break_off(f"{kind.__name__} has left the window")
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

    def _open(self, framework: Framework) -> None:
        config = self._config if self._measurement is None else self._measurement.config
        if config.level is Level.L2 and isinstance(framework, KernelDumper):
            self._session = KernelSession(config, framework, framework)
        else:
            self._session = self._new_session(config, framework)
        _let_forked_children_be(self)

    def _new_session(self, config: Config, framework: Framework) -> Session:
        writers = registry().writers()
        if self._measurement is not None:
            writers = self._measurement.open(framework, writers)
        return Session(
            config, framework, registry().processors(), writers, self._custom_apis, on_failure=self._take_failure
        )

    def _take_failure(self, session: Session, error: Exception) -> None:
        # A file that has been edited can be edited again, and recording then goes on.
        if self._has_switched and isinstance(error, MsprobeError):
            self._switch_off(str(error))
        else:
            session.log_failure(error)

    # --- a configuration file that is edited while the training runs ------------------------------------------

    def _start(self, window: Window, scheduled_tokens: Any) -> None:
        assert self._session is not None
        try:
            self._session.start(
                window.models,
                is_list=window.is_list,
                token_range=window.token_range,
                rank_id=window.rank_id,
                scheduled_tokens=scheduled_tokens,
            )
        except MsprobeError as error:
            if not self._has_switched:
                raise
            # Nobody stands behind the program who could correct it: it was right when it started.
            self._switch_off(str(error))
            self._take_over()

    def _look_at_file(self) -> None:
        if self._watch is None:
            return
        try:
            edited = self._watch.poll()
        except Exception as error:  # noqa: BLE001  # an edited file may hold anything
            self._switch_off(str(error) if isinstance(error, MsprobeError) else described(error))
        else:
            self._edited = edited or self._edited

    def _switch_off(self, reason: str) -> None:
        _logger.warning("%s; from the next step on nothing is recorded until the file is corrected", reason)
        self._edited = msgspec.structs.replace(self._config, dump_enable=False)

    def _take_over(self) -> None:
        """Let an edited file count, if nothing of the current step has been recorded yet."""
        old, edited = self._session, self._edited
        if edited is None or not isinstance(old, Session) or not old.is_between_steps:
            return
        self._edited = None
        try:
            new = self._new_session(edited, old.framework)
        except Exception as error:  # noqa: BLE001  # an edited file may hold anything
            self._switch_off(str(error) if isinstance(error, MsprobeError) else described(error))
            self._take_over()
            return
        new.continue_from(old)
        self._config, self._session, self._has_switched = edited, new, True
        old.close()
        self._custom_apis.relist(edited.listed_apis)
        _logger.info(
            "step %d: the edited configuration counts: %s", new.step_number,
            f"task {edited.task.value}, level {edited.level.value}, to {edited.directory}"
            if edited.dump_enable else "nothing is recorded",
        )  # fmt: skip

    def _framework(self, model: Any) -> Framework:
        offers = registry().frameworks()
        if not offers:
            refuse_shadowing()
        if self.framework_name is not None:
            return _named(self.framework_name, offers)
        # A model's framework has been imported, and so has that of a program without one.
        in_use = [offer for offer in offers.values() if offer.package in sys.modules]
        names = ", ".join(offer.name for offer in in_use) or "none"
        if model is not None:
            for offer in in_use:
                framework = _load(offer)
                if framework.is_model(model):
                    return framework
            raise SessionError(
                f"start() got {type(model).__name__}, which is a model of none of the frameworks in use ({names})"
            )
        candidates = in_use or [offer for offer in offers.values() if importlib.util.find_spec(offer.package)]
        if len(candidates) == 1:
            return _load(candidates[0])
        raise PluginError(
            f"cannot tell the framework (in use: {names}); call start(model), or import PrecisionDebugger from the "
            "framework's own package"
        )


def _named(name: str, offers: dict[str, FrameworkOffer]) -> Framework:
    if name in offers:
        return _load(offers[name])
    raise PluginError(
        f"the framework '{name}' is not available; `msprobe plugins` says which plugins work and why others do not"
    )


def _load(offer: FrameworkOffer) -> Framework:
    try:
        return offer.load()
    except ImportError as error:
        raise PluginError(f"the framework '{offer.name}' needs {offer.package}, which is not there: {error}") from error


def _listed(model: Any) -> list[Any]:
    if model is None:
        return []
    return list(cast("Sequence[Any]", model)) if isinstance(model, list | tuple) else [model]


def _let_forked_children_be(debugger: PrecisionDebugger) -> None:
    """Keep a child of ``fork`` (a data-loader worker) from recording into its parent's dump."""

    def abandon() -> None:
        if PrecisionDebugger._instance is debugger:  # pyright: ignore[reportPrivateUsage]
            PrecisionDebugger._instance = None  # pyright: ignore[reportPrivateUsage]  # the child may make its own
        debugger._lock = threading.RLock()  # pyright: ignore[reportPrivateUsage]  # another thread may have had it
        session = debugger._session  # pyright: ignore[reportPrivateUsage]
        if session is not None:
            session.abandon()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=abandon)


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
