"""Optional libraries: needed only by some features, and imported only by them."""

from __future__ import annotations

import importlib
from typing import Any

from msprobe_core.errors import MissingLibraryError


def import_extra(library: str, needed_by: str, extra: str) -> Any:
    """Return a library's module.

    Args:
        library: Its name.
        needed_by: What needs it, with the verb: ``dumps in Arrow's format need``.
        extra: The extra of ``msprobe-core`` that installs it.

    Raises:
        PluginError: it is not installed, or cannot be imported; the message says how to install it.
    """
    try:
        return importlib.import_module(library)
    except Exception as error:  # an installation may be broken in any way
        raise MissingLibraryError(
            f"{needed_by} the library {library}, which cannot be imported here ({error}); install it with: "
            f"pip install 'msprobe-core[{extra}]'"
        ) from error
