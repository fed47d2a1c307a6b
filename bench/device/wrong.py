"""A kernel that is wrong once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WRONG_CALL = 1


class Wrong:
    """Scales the result of one call of a kernel: more than rounding of bfloat16 explains, without measured noise."""

    def __init__(self) -> None:
        """Begin with right results."""
        self._num_calls = 0

    def __call__(self, kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what the kernel does, or that times 1.2."""
        result = kernel(*args, **kwargs)
        self._num_calls += 1
        return result * 1.2 if self._num_calls == WRONG_CALL + 1 else result
