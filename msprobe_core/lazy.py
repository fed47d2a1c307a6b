"""Public names that are imported on first use, so that a facade costs nothing until it is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    facade: str, places: Mapping[str, str], otherwise: Callable[[str, str], Any] | None = None
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose public names are in other modules.

    Args:
        facade: Name of the module.
        places: Public names, separated by spaces, by the module that has them.
        otherwise: Called with the facade and any other name; ``None`` raises an `AttributeError`.
    """
    origins = {name: module for module, names in places.items() for name in names.split()}

    def load(name: str) -> Any:
        if name in origins:
            return getattr(importlib.import_module(origins[name]), name)
        if otherwise is not None:
            return otherwise(facade, name)
        raise AttributeError(f"module {facade!r} has no attribute {name!r}")

    return load
