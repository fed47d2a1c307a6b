"""Wrappers of other programs' methods, each written as what is called instead of the method."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]


def wraps_method(instead: Method) -> Callable[[Method], Method]:
    """Return a wrapper of methods.

    Args:
        instead: What is called instead of the method, with the method before its own arguments.
    """

    @functools.wraps(instead)
    def wrap(original: Method) -> Method:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return instead(original, *args, **kwargs)

        return call

    return wrap
