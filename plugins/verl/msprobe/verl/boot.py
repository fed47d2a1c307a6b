"""Loaded by verl in each of its processes: attaches hooks if recording is switched on, and does nothing otherwise.

verl 0.9 and later finds this module by its entry point in the group ``verl.plugins``; earlier ones import it if
``VERL_USE_EXTERNAL_MODULES=msprobe.verl.boot`` is set. Neither torch nor verl is imported here: hooks are attached
when the modules that they are for have been imported.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from msprobe.verl._config import SWITCH, load_verl_config, published_config
from msprobe.verl._hooks import switch_on
from msprobe.verl._import_hooks import ImportWatch, after_import
from msprobe.verl._profiler import StageProfiler
from msprobe_core.plugin import MsprobeError
from msprobe_core.rl import places_asked_for

_logger = logging.getLogger(__name__)

_PROFILER = "verl.utils.profiler.precision_debugger_profile"


def boot(environment: Mapping[str, str] = os.environ) -> ImportWatch | None:
    """Switch recording on if the environment says so; otherwise only wait for verl's own ``precision_debugger``.

    An invalid configuration file is logged as an error, and nothing is recorded; the training continues.
    """
    path = environment.get(SWITCH, "").strip()
    places = places_asked_for(environment)
    if not path and places is None:
        return after_import({_PROFILER: _take_over_profiler})
    try:
        config = load_verl_config(Path(path)) if places is None or path else published_config(places)
    except MsprobeError as error:
        _logger.error("msprobe: nothing is recorded: %s", error)  # noqa: TRY400  # a traceback would add nothing
        return None
    return switch_on(config, {_PROFILER: _take_over_profiler})


def _take_over_profiler(module: ModuleType) -> None:
    module.PrecisionDebuggerProfiler = StageProfiler  # type: ignore[attr-defined]


_watch = boot()
