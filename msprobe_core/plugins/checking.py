"""Check plugins as far as that is possible without a training: ask every hook, and try what it offers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from msprobe_core.errors import BrokenPluginError, ConfigError, MsprobeError
from msprobe_core.findings import Finding, Level
from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.guard import checked, plugin_call
from msprobe_core.model import Digest, Entry, ExecutorOptions, Phase, Stats, TensorMeta, TensorValue
from msprobe_core.plugins.offers import KINDS
from msprobe_core.plugins.plugin_codes import PluginCode
from msprobe_core.plugins.plugin_list import Plugin
from msprobe_core.plugins.registry import Registry
from msprobe_core.protocols.framework import Reducer

_NO_DUMP = Path("no-such-dump")


def _try_framework(offer: Any) -> None:
    framework = offer.load()
    checked(framework.reducer(), Reducer, f"the framework '{offer.name}'", "reducer")
    framework.rank()
    framework.is_tensor(None)
    framework.is_model(None)


def _try_metric(offer: Any) -> None:
    for dtype in (np.float32, np.float64, np.complex128):
        cell = offer.compare(np.ones((2, 3), dtype), np.ones((2, 3), dtype))
        if not isinstance(cell, (str, int, float, np.number)):
            raise BrokenPluginError(f"the metric '{offer.name}' returned {cell!r}, which is neither number nor text")


def _try_statistic(offer: Any) -> None:
    arrays = NumpyArrays()
    for dtype in (np.float32, np.float64):
        values = np.linspace(-1, 1, 6, dtype=dtype)
        values.flags.writeable = False  # as in a recording
        with plugin_call(f"the statistic '{offer.name}'", "reduce"):
            result = offer.reduce(values, arrays)
        if result is None or isinstance(result, str) or np.ndim(result) != 0:
            raise BrokenPluginError(f"the statistic '{offer.name}' returned {result!r}, which is no number")


def _try_live_check(offer: Any) -> None:
    stats = Stats(max=1.0, min=1.0, mean=1.0, l2_norm=1.0, num_nan=0, num_inf=0)
    value = TensorValue(TensorMeta("Array", "float32", (1,)), Digest(stats))
    answer = offer.check(Entry(name="Functional.relu.0.forward", phase=Phase.FORWARD, inputs=[value], outputs=[value]))
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise BrokenPluginError(f"the live check '{offer.name}' returned {answer!r}, which is no list of findings")
    list(cast("Iterable[object]", answer))


_TRIALS: Mapping[str, Callable[[Any], object]] = {
    "msprobe_register_frameworks": _try_framework,
    "msprobe_register_writers": lambda offer: offer.check(),
    "msprobe_register_readers": lambda offer: offer.recognises(_NO_DUMP),
    "msprobe_register_executors": lambda offer: offer.check(ExecutorOptions()),
    "msprobe_register_tables": lambda offer: list(offer.titles()),
    "msprobe_register_live_checks": _try_live_check,
    "msprobe_register_metrics": _try_metric,
    "msprobe_register_statistics": _try_statistic,
    "msprobe_register_run_settings": lambda offer: offer.read(),
    "msprobe_register_checkups": lambda offer: list(offer.examine()),
    "msprobe_register_commands": lambda offer: offer.get_short_help_str() + str(offer.params),
}
"""By hook, what is tried of each of its offers; the others need a run to work on."""


def check_plugins(found: Registry, names: Sequence[str] = ()) -> Sequence[Plugin]:
    """Return the plugins with everything that is wrong with them.

    Args:
        found: All plugins.
        names: Of those to check; all but the core's own if there are none.

    Raises:
        ConfigError: there is no plugin of a name.
    """
    known = {plugin.name for plugin in found.plugins}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no plugin {name!r}; known: {', '.join(sorted(known))}")
    for hook in KINDS:
        for name, offer in found.offers(hook).items():
            plugin = found.provider_of(hook, name)
            if plugin is not None and (not names or plugin in names):
                _try(found, plugin, hook, offer)
    return [plugin for plugin in found.plugins if (plugin.name in names if names else not plugin.is_of_core)]


def _try(found: Registry, plugin: str, hook: str, offer: Any) -> None:
    try:
        _TRIALS.get(hook, lambda _: None)(offer)
    except BrokenPluginError as error:
        # What a plugin needs, and is not installed, is no mistake of its own.
        level = Level.NOTE if isinstance(error.__cause__, ImportError) else Level.ERROR
        found.note(plugin, PluginCode.OFFER_FAILED, {"hook": hook, "reason": str(error)}, error, level)
    except MsprobeError as error:  # raised on purpose: something that it needs is missing here
        found.note(plugin, PluginCode.OFFER_FAILED, {"hook": hook, "reason": str(error)}, error, Level.NOTE)
    except Exception as error:  # noqa: BLE001  # of offers that are not guarded, and of objects that they return
        reason = f"{KINDS[hook].noun} '{offer.name}' failed ({type(error).__name__}: {error})"
        found.note(plugin, PluginCode.OFFER_FAILED, {"hook": hook, "reason": reason}, error)


def are_well(plugins: Iterable[Plugin]) -> bool:
    """Whether nothing is wrong with plugins that their authors or users should correct."""
    return not any(_is_wrong(problem) for plugin in plugins for problem in plugin.problems)


def _is_wrong(problem: Finding) -> bool:
    return problem.level in (Level.ERROR, Level.WARNING)
