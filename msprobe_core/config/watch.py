"""Follow a configuration file that is edited while the training runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from msprobe_core.config.load import load_config
from msprobe_core.config.schema import Config
from msprobe_core.errors import ConfigError

POLL_SECONDS = 0.5
"""How often the file is looked at, at the most, and how long it must have rested before it is read."""


class _Stamp(NamedTuple):
    """What tells one state of a file from another; all zero for a file that is not there."""

    changed_ns: int
    size: int
    inode: int


class ConfigWatch:
    """Tells when the file holds another configuration.

    A file that has been written to within `POLL_SECONDS` may be half-written, and half of a YAML file can be valid. It
    is read once it has rested for so long or, where its clock is not ours, once two looks have found it the same.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        overrides: Mapping[str, Any],
        current: Config,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin with a configuration that has been read already.

        Args:
            path: The file. A relative path means today's working directory, also if that changes.
            overrides: See `load_config`.
            current: What the file held.
            clock: Seconds that never go back.
            wall_clock: Seconds as file systems count them.
        """
        self._path = Path(path).absolute()
        self._overrides = dict(overrides)
        self._current: Config | None = current
        self._is_enabled = current.dump_enable
        self._clock = clock
        self._wall_clock = wall_clock
        self._next = 0.0
        self._seen: _Stamp | None = None
        self._taken: _Stamp | None = None  # the first look reads the file: it may have changed since it was loaded
        self._complaint = ""

    def is_of(self, path: str | os.PathLike[str] | None, overrides: Mapping[str, Any]) -> bool:
        """Whether this is the file and these are the arguments that are watched."""
        return path is not None and Path(path).absolute() == self._path and dict(overrides) == self._overrides

    def poll(self) -> Config | None:
        """Return the new configuration if there is one; ``None`` almost always, after a look at a clock.

        A file that does not say ``dump_enable`` any more leaves it as it was.

        Raises:
            ConfigError: the file cannot be read or is no valid configuration; once for each thing that is wrong with
                it. It is read again at the next look.
        """
        now = self._clock()
        if now < self._next:
            return None
        self._next = now + POLL_SECONDS
        stamp = _stamp_of(self._path)
        if stamp == self._taken:
            return None
        is_old = bool(stamp.inode) and self._wall_clock() - stamp.changed_ns * 1e-9 >= POLL_SECONDS
        has_rested = is_old or stamp == self._seen
        self._seen = stamp
        return self._read(stamp) if has_rested else None

    def _read(self, stamp: _Stamp) -> Config | None:
        try:
            config = load_config(self._path, **self._overrides)
        except ConfigError as error:
            if _stamp_of(self._path) != stamp or str(error) == self._complaint:
                return None
            self._complaint, self._current = str(error), None
            raise
        if _stamp_of(self._path) != stamp:
            return None  # written to while it was read
        self._taken, self._complaint = stamp, ""
        if not config.is_live:
            config = msgspec.structs.replace(config, dump_enable=self._is_enabled, is_live=True)
        self._is_enabled = config.dump_enable
        previous, self._current = self._current, config
        return config if config != previous else None


def _stamp_of(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return _Stamp(0, 0, 0)
    return _Stamp(found.st_mtime_ns, found.st_size, found.st_ino)
