"""Choice of the framework to record, among those that plugins offer."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from msprobe_core.errors import BrokenPluginError, MissingFrameworkError, NoModelError
from msprobe_core.guard import plugin_call
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
        return _framework_of(model, in_use)
    candidates = in_use or [offer for offer in offers.values() if importlib.util.find_spec(offer.package)]
    if len(candidates) == 1:
        return _load(candidates[0])
    raise MissingFrameworkError(
        f"cannot tell the framework (in use: {names}); call start(model), or import PrecisionDebugger from the "
        "framework's own package"
    )


def _framework_of(model: Any, in_use: Sequence[FrameworkOffer]) -> Framework:
    broken: list[BrokenPluginError] = []
    for offer in in_use:
        try:
            framework = _load(offer)
            with plugin_call(registry().described("framework", offer.name), "is_model"):
                is_its_model = framework.is_model(model)
        except BrokenPluginError as error:  # the model may be of another
            broken.append(error)
            continue
        if is_its_model:
            return framework
    if broken:
        raise broken[0]
    names = ", ".join(offer.name for offer in in_use) or "none"
    raise NoModelError(
        f"start() got {type(model).__name__}, which is a model of none of the frameworks in use ({names})"
    )


def _named(name: str, offers: Mapping[str, FrameworkOffer]) -> Framework:
    if name in offers:
        return _load(offers[name])
    registry().refuse_missing("msprobe_register_frameworks", name)
    raise MissingFrameworkError(
        f"the framework '{name}' is not available; `msprobe plugins` says which plugins work and why others do not"
    )


def _load(offer: FrameworkOffer) -> Framework:
    try:
        return offer.load()
    except BrokenPluginError as error:
        if not isinstance(missing := error.__cause__, ImportError):
            raise
        reason = f"the framework '{offer.name}' needs {offer.package}, which is not there: {missing}"
        raise MissingFrameworkError(reason) from missing


def listed(value: Any) -> list[Any]:
    """Return an argument that may be one object, several, or ``None`` as a list."""
    if value is None:
        return []
    return list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else [value]
