"""Interception of functions and methods: each is patched wherever it is looked up."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from msprobe.mindspore._apis import Function, Place, find_places
from msprobe.mindspore._calls import ApiCalls
from msprobe.mindspore._jit import is_tracing
from msprobe_core.interception import FunctionPatch, Handler, Patches
from msprobe_core.plugin import RiskLevel


class _ApiPatch(FunctionPatch):
    """Shows the compiler of ``jit`` the original when it asks for ``__call__``, as it does for operators in branches.

    The compiler reads the source of that attribute. Python itself looks up ``__call__`` in the class.
    """

    def install(self) -> None:
        super().install()
        vars(self)["__call__"] = self._original


class ApiPatches:
    """Patches all functions and methods of a risk level. Created once: there may be a window in every step."""

    def __init__(self, risk_level: RiskLevel) -> None:
        """Find the functions.

        Args:
            risk_level: How many APIs are recorded.
        """
        with suppress(ImportError):
            # MindSpore imports it on first use, and it imports functions by name: in a window it would import the
            # patches, and keep them.
            importlib.import_module("mindspore.ops.tensor_method")
        self._calls: ApiCalls | None = None
        self._patches = Patches(
            _ApiPatch(place.owner, place.attribute, self._recorded(place), is_tracing)
            for place in find_places(risk_level)
        )

    def install(self, calls: ApiCalls) -> None:
        """Begin to record.

        Args:
            calls: Records them.
        """
        self._calls = calls
        self._patches.install()

    def remove(self) -> None:
        """End: restore every function, under all of its names."""
        self._patches.remove()
        self._calls = None

    def step_aside(self) -> Callable[[], None]:
        """Remove all patches until the returned function is called."""
        self._patches.remove()
        return self._patches.install

    def _recorded(self, place: Place) -> Handler:
        _, _, prefix, name, mutates = place

        def handle(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            calls = self._calls
            if calls is None or not calls.is_looking:
                return function(*args, **kwargs)
            return calls.run(prefix, name, function, args, kwargs, mutates=mutates)

        return handle
