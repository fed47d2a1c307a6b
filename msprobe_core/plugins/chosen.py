"""The offer that a setting names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from msprobe_core.errors import ConfigError
from msprobe_core.plugins.discovery import registry

_Offer = TypeVar("_Offer")


def choose(setting: str, name: str, offers: Mapping[str, _Offer], hook: str) -> _Offer:
    """Return the offer that a setting names.

    Args:
        setting: The setting.
        name: Its value.
        offers: What plugins offer.
        hook: Through which hook.

    Raises:
        ConfigError: there is no offer of that name.
        BrokenPluginError: there is none, and it may be missing because a plugin is broken.
    """
    if name not in offers:
        registry().refuse_missing(hook, name)
        close = difflib.get_close_matches(name.lower(), offers, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        error = ConfigError(f"'{setting}' is {name!r}; {hint}allowed: {', '.join(sorted(offers)) or 'none'}")
        error.setting = setting
        raise error
    return offers[name]
