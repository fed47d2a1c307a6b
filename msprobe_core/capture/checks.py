"""Checks before recording begins: settings and arguments that are wrong or not available."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from msprobe_core.capture.attachments import not_watched
from msprobe_core.capture.extra_statistics import with_extra_statistics
from msprobe_core.capture.processors import Fp8Processor, NoDigests
from msprobe_core.capture.schedule import is_number
from msprobe_core.capture.window import Model, Window
from msprobe_core.config import Config
from msprobe_core.errors import ConfigError, ConflictingSettingsError, NoModelError, PluginError, SessionError
from msprobe_core.model import Level, Task
from msprobe_core.plugins import registry
from msprobe_core.plugins.chosen import choose
from msprobe_core.protocols.capabilities import ExtraReducer, Fp8Reducer, OperatorFramework, WatchingFramework
from msprobe_core.protocols.framework import Framework
from msprobe_core.protocols.storage import Processor

_logger = logging.getLogger(__name__)

_LEVELS = (Level.L0, Level.L1, Level.MIX, Level.DEBUG)


def processor_for(config: Config) -> Processor:
    """Return the processor of a configuration.

    Raises:
        ConfigError: there is none of the configured name, or no statistic.
    """
    if config.task in (Task.ACC_CHECK, Task.FREE_BENCHMARK):
        return NoDigests()
    offers = registry().processors()
    mode = choose("summary_mode", str(config.options.summary_mode), offers, "msprobe_register_processors")
    return with_extra_statistics(mode, config.extra_statistics)


def check_config(config: Config) -> None:
    """Refuse settings that are valid but not available, rather than record less than the user requested.

    Raises:
        ConfigError: such a setting is used, or the dump would overwrite a run that is read.
    """
    if config.level not in _LEVELS:
        available = ", ".join(level.value for level in _LEVELS)
        raise ConfigError(
            f"the level '{config.level.value}' is not available yet; available: {available} (kernels, level L2, "
            "are dumped by MindSpore only, for all of a program)"
        )
    if config.level is Level.DEBUG:
        _check_saving(config)
    load, bench = config.load, config.options.bench_path
    loaded = load.path if load is not None and load.dump_after_load else None
    leader = config.twin.leader if config.twin is not None else None
    for setting, path in (("load.path", loaded), ("bench_path", bench), ("twin.leader", leader)):
        if path and Path(path).expanduser().resolve() == config.directory.resolve():
            raise ConflictingSettingsError(
                f"'{setting}' and 'dump_path' are both {path}: that run would be lost; give another 'dump_path'"
            )


def _check_saving(config: Config) -> None:
    """Refuse, or warn about, settings that do not apply to values saved by hand."""
    if config.task not in {Task.STATISTICS, Task.TENSOR}:
        raise ConflictingSettingsError(
            f"the task '{config.task.value}' does not apply at level debug; use statistics or tensor"
        )
    if config.writer != "json":
        raise ConflictingSettingsError(
            f"'writer' is {config.writer!r}, but level debug writes debug.json; remove one of them"
        )
    ignored = ("scope", "list", "tensor_list", "slice", "request_id", "bench_path")
    for name in ignored:
        if getattr(config.options, name):
            _logger.warning("'%s' has no meaning at level debug and is ignored", name)


def check_framework(config: Config, framework: Framework, processor: Processor) -> None:
    """Refuse settings that the framework's plugin does not support.

    Raises:
        PluginError: such a setting is used.
    """
    if config.aten and not (isinstance(framework, OperatorFramework) and framework.sees_operators):
        raise PluginError(
            f"'aten' is not available for {framework.name}: its plugin does not see what runs below the APIs; "
            "leave 'aten' out"
        )
    if processor.name == Fp8Processor.name and not isinstance(framework.reducer(), Fp8Reducer):
        raise PluginError(
            f"the summary mode 'fp8' is not available for {framework.name}: its plugin does not compute it; "
            "choose another 'summary_mode'"
        )
    if config.extra_statistics and not isinstance(framework.reducer(), ExtraReducer):
        raise PluginError(
            f"'extra_statistics' are not available for {framework.name}: its plugin does not compute them; leave them "
            "out"
        )


def checked_window(models: Sequence[Any], *, is_list: bool, token_range: Any, rank_id: Any) -> Window:
    """Return the arguments of ``start`` as a `Window`.

    Raises:
        SessionError: a number is wrong.
    """
    if rank_id is not None and not is_number(rank_id):
        raise SessionError(f"start() got rank_id={rank_id!r}; give an integer from 0")
    return Window(models, is_list, _checked_range(token_range), rank_id)


def _checked_range(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    numbers: list[Any] = list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else []
    if len(numbers) != 2 or not all(map(is_number, numbers)) or numbers[0] > numbers[1]:
        raise SessionError(f"start() got token_range={value!r}; give the first and the last forward, such as [0, 3]")
    return numbers[0], numbers[1]


def check_models(window: Window, config: Config, framework: Framework) -> list[Model]:
    """Return the models of a window with the prefixes of their module paths.

    Raises:
        SessionError: an object is not a model, or a model is needed and none is given.
    """
    models = window.models
    for model in models:
        check_model(model, framework)
    if not models and config.level.has_modules:
        raise NoModelError(f"level {config.level.value} records modules: call start(model)")
    if not models and config.load is not None:
        raise NoModelError("'load' replaces inputs of modules: call start(model)")
    if window.token_range is not None:
        if not models:
            raise NoModelError("token_range counts the forwards of a model: call start(model, token_range=[a, b])")
        if not isinstance(framework, WatchingFramework):
            raise SessionError(not_watched("token_range", framework))
    is_numbered = window.is_list or len(models) > 1
    return [Model(str(i) if is_numbered else "", model) for i, model in enumerate(models)]


def check_model(model: Any, framework: Framework) -> None:
    """Refuse an object that is not a model of the framework.

    Raises:
        SessionError: it is not a model.
    """
    if not framework.is_model(model):
        raise NoModelError(
            f"start() got {type(model).__name__}, which is not a model of {framework.name}; "
            "give the model, or a list of models"
        )


def check_single(module: Any, name: Any, framework: Framework) -> None:
    """Refuse what cannot be recorded as a single module.

    Raises:
        SessionError: ``module`` is not a module, or ``name`` is not a valid name.
    """
    check_model(module, framework)
    if not isinstance(name, str) or not name:
        raise SessionError(f"module_dump() got the name {name!r}; give a text, such as 'decoder'")
