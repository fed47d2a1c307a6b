"""Watch a configuration file that is edited while the training runs."""

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
"""Minimum interval between two checks of the file, and minimum age of a change before the file is read."""


class Stamp(NamedTuple):
    """Changes whenever the file is modified or replaced; all zero if the file does not exist."""

    changed_ns: int
    size: int
    inode: int


class ConfigWatch:
    """Detects changes of the configuration in a file.

    A file that was written to within `POLL_SECONDS` may be incomplete, and half of a YAML file can be valid. It is read
    once it has been unchanged for that long or, if the file system's clock is not ours, once two checks have found it
    unchanged.
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
            path: The file. A relative path is resolved now, even if the working directory changes later.
            overrides: See `load_config`.
            current: Content of the file.
            clock: Monotonic clock, in seconds.
            wall_clock: Clock of file systems, in seconds.
        """
        self._path = Path(path).absolute()
        self._overrides = dict(overrides)
        self._current: Config | None = current
        self._is_enabled = current.dump_enable
        self._clock = clock
        self._wall_clock = wall_clock
        self._next = 0.0
        self._seen: Stamp | None = None
        self._taken: Stamp | None = None  # the first check reads the file: it may have changed since it was loaded
        self._complaint = ""

    @property
    def path(self) -> Path:
        """The file, as an absolute path."""
        return self._path

    def is_of(self, path: str | os.PathLike[str] | None, overrides: Mapping[str, Any]) -> bool:
        """Whether this file is watched, with these arguments."""
        return path is not None and Path(path).absolute() == self._path and dict(overrides) == self._overrides

    def override(self, name: str, value: Any) -> None:
        """Have a field, from now on, another value than the file says."""
        self._overrides[name] = value

    def poll(self, *, is_urgent: bool = False) -> Config | None:
        """Return the new configuration, or ``None`` if it is unchanged. Most calls only read a clock.

        If the file no longer has ``dump_enable``, its last value stays.

        Args:
            is_urgent: Read the file now, even if it was just written.

        Raises:
            ConfigError: the file cannot be read or is not a valid configuration; raised once for each problem. The file
                is read again at the next check.
        """
        if is_urgent:
            return self._read(stamp_if_any(self._path))
        now = self._clock()
        if now < self._next:
            return None
        self._next = now + POLL_SECONDS
        stamp = stamp_if_any(self._path)
        if stamp == self._taken:
            return None
        is_old = bool(stamp.inode) and self._wall_clock() - stamp.changed_ns * 1e-9 >= POLL_SECONDS
        has_rested = is_old or stamp == self._seen
        self._seen = stamp
        return self._read(stamp) if has_rested else None

    def _read(self, stamp: Stamp) -> Config | None:
        try:
            config = load_config(self._path, **self._overrides)
        except ConfigError as error:
            if stamp_if_any(self._path) != stamp or str(error) == self._complaint:
                return None
            self._complaint, self._current = str(error), None
            raise
        if stamp_if_any(self._path) != stamp:
            return None  # modified while it was read
        self._taken, self._complaint = stamp, ""
        if not config.is_live:
            config = msgspec.structs.replace(config, dump_enable=self._is_enabled, is_live=True)
        self._is_enabled = config.dump_enable
        previous, self._current = self._current, config
        return config if config != previous else None


def stamp_if_any(path: Path) -> Stamp:
    """Return the stamp of a file."""
    try:
        found = path.stat()
    except OSError:
        return Stamp(0, 0, 0)
    return Stamp(found.st_mtime_ns, found.st_size, found.st_ino)
