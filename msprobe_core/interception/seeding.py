"""Seeding that makes runs repeatable in any framework, and the removable patches that belong to it."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from msprobe_core.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

_LARGEST_SEED = 2**32 - 1


def seed_common(seed: Any, **flags: Any) -> None:
    """Seed Python and NumPy, and string hashing of child processes.

    Args:
        seed: The user's argument.
        flags: The other arguments of ``seed_all``.

    Raises:
        ConfigError: ``seed`` is not an integer from 0 to 2**32 - 1, or a flag is neither True nor False.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST_SEED:
        raise ConfigError(f"seed_all: 'seed' is {seed!r}, but must be an integer from 0 to {_LARGEST_SEED}")
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"seed_all: {name!r} is {value!r}, but must be True or False")
    random.seed(seed)
    np.random.seed(seed)  # the global state, which training scripts draw from
    os.environ["PYTHONHASHSEED"] = str(seed)


class Seeding:
    """The patches of a call of ``seed_all``; ``restore``, or the end of its ``with`` block, removes them.

    Seeds and deterministic algorithms stay.
    """

    _lock: ClassVar[threading.RLock] = threading.RLock()
    _current: ClassVar[Seeding | None] = None

    def __init__(self) -> None:
        self._removals: list[Callable[[], None]] = []

    def restore(self) -> None:
        """Re-enable dropout and normal random state. Idempotent."""
        with self._lock:
            if Seeding._current is self:
                Seeding._current = None
            while self._removals:
                self._removals.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    @classmethod
    def replace(cls, *installations: Callable[[], Callable[[], None]]) -> Seeding:
        """Remove the patches of the last call, and install these.

        Args:
            installations: Each installs a patch and returns the function that removes it.
        """
        with cls._lock:
            if cls._current is not None:
                cls._current.restore()
            seeding = cls._current = cls()
            try:
                for install in installations:
                    seeding._removals.append(install())
            except BaseException:
                seeding.restore()
                raise
            return seeding
