"""Load the user's own model, which is named on the command line."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msprobe_core.errors import ConfigError, UnreadableConfigError
from msprobe_core.guard import described


def load_model(reference: str, *, argument: str = "--model") -> object:
    """Call the function that ``reference`` names, and return its result; see `load_function`.

    Raises:
        ConfigError: the function cannot be found, or it failed.
    """
    function = load_function(reference, argument=argument)
    try:
        return function()
    except (Exception, SystemExit) as error:
        name = reference.rpartition(":")[2]
        raise ConfigError(f"{argument} {reference}: {name}() failed ({described(error)})") from error


def load_function(reference: str, *, argument: str) -> Callable[[], Any]:
    """Return the function that ``reference`` names; importing its file runs it.

    Args:
        reference: ``FILE.py:FUNCTION`` or ``package.module:function``. This runs the user's own program; the reference
            comes from the command line, never from a dump.
        argument: Of the command line that has the reference, for errors.

    Raises:
        ConfigError: the function cannot be found.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name.isidentifier():
        raise ConfigError(f"{argument} {reference!r}: give FILE.py:FUNCTION or package.module:function")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (Exception, SystemExit) as error:  # a script may exit at its end; its status would be taken for a verdict
        raise ConfigError(f"{argument} {reference}: {place} cannot be imported ({described(error)})") from error
    function: Any = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{argument} {reference}: {place} has no function {name!r}")
    return function


def _from_file(path: Path) -> object:
    if not path.is_file():
        raise UnreadableConfigError(f"{path} is no file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As when the file is run as a script: modules next to it can be imported, and classes find their module.
    sys.path.insert(0, str(path.parent.absolute()))
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent.absolute()))
    return module
