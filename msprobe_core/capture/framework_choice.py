"""Choice of the framework to record, among those that plugins offer."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import Any

from msprobe_core.errors import PluginError, SessionError
from msprobe_core.plugins import refuse_shadowing, registry
from msprobe_core.protocols.framework import Framework, FrameworkOffer


def find_framework(name: str | None, model: Any) -> Framework:
    """Return the framework with this name or, without a name, the framework of the model or the program.

    Args:
        name: Framework of a plugin's own debugger; ``None`` detects it.
        model: The model to record; ``None`` if there is none yet.

    Raises:
        PluginError: it is not available, or cannot be determined.
        SessionError: ``model`` is not a model of any framework in use.
    """
    offers = registry().frameworks()
    if not offers:
        refuse_shadowing()
    if name is not None:
        return _named(name, offers)
    # Only frameworks that the program has imported can be in use: a model exists, or the program calls the framework.
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


def _named(name: str, offers: Mapping[str, FrameworkOffer]) -> Framework:
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
