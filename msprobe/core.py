"""The place of ``msprobe.core.…`` in scripts written for mindstudio-probe: each name says what to use here.

A module, so that it neither replaces nor hides the package of that name where both distributions are installed; with a
``__path__``, so that Python looks for modules below it.
"""

from typing import Any

from msprobe_core.compat.imports import former_attribute, offer_former_names

__path__: list[str] = []

offer_former_names()


def __getattr__(name: str) -> Any:
    return former_attribute(__name__, name)
