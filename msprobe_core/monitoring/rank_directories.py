"""The directories of a monitor, one for each rank and start of a training, and the names of the files in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

_DIRECTORY = re.compile(r"(?P<time>[\w-]{0,20})-rank(?P<rank>\d{1,5})-")
_DIRECTORY_V2 = re.compile(r"rank_(?P<rank>\d{1,5})$")
VALUE_FILE = re.compile(r"(?P<quantity>[a-z_]+?)_(?P<v2>step)?(?P<first>\d+)-(?P<last>\d+)\.csv$")
ARROW_FILE = re.compile(r"values_(?P<number>\d+)\.arrow$")

TIME_FORMAT = "%b%d_%H-%M-%S"
"""Of the beginning of a directory's name; there is no year."""


@dataclass(frozen=True)
class RankDirectory:
    """A directory with files of one rank.

    Attributes:
        path: Of it.
        rank: Of the process.
        time: Start time of the training, as far as the name shows, and the name.
    """

    path: Path
    rank: int
    time: tuple[datetime, str]

    @property
    def began(self) -> datetime | None:
        """When the training began; ``None`` if the name does not show it."""
        return None if self.time[0] == datetime.min else self.time[0]


def parse_time(text: str) -> datetime:
    """Return a time as directories have it, such as ``Nov21_05-57-08``.

    Raises:
        ValueError: it is none.
    """
    return datetime.strptime(f"2000 {text}", f"%Y {TIME_FORMAT}")


def rank_directories(path: Path) -> list[RankDirectory]:
    """Return the directories with files of a monitor: ``path`` itself, or those in it."""
    if not path.is_dir():
        return []
    own = _rank_directory(path)
    found = [own] if own is not None else [_rank_directory(each) for each in sorted(path.iterdir()) if each.is_dir()]
    return [each for each in found if each is not None]


def rank_of_directory(name: str) -> int | None:
    """Return the rank whose directory has this name; ``None`` if it is none of a monitor."""
    match = _DIRECTORY.match(name) or _DIRECTORY_V2.match(name)
    return None if match is None else int(match["rank"])


def began_between(
    directories: Iterable[RankDirectory], start: datetime | None, end: datetime | None
) -> list[RankDirectory]:
    """Return the directories whose training began between two times, both included; ``None`` for no bound.

    An end before the start is in the next year.
    """
    return [each for each in directories if _is_between(each.began, start, end)]


def _is_between(time: datetime | None, start: datetime | None, end: datetime | None) -> bool:
    if start is None and end is None:
        return True
    if time is None:
        return False
    is_after, is_before = start is None or time >= start, end is None or time <= end
    return is_after or is_before if start and end and end < start else is_after and is_before


def _rank_directory(path: Path) -> RankDirectory | None:
    name = path.resolve().name
    match = _DIRECTORY.match(name) or _DIRECTORY_V2.match(name)
    if match is None or not any(_is_of_values(each) for each in path.iterdir()):
        return None
    try:
        began = parse_time(match.groupdict().get("time") or "")
    except ValueError:  # for example a renamed directory
        began = datetime.min
    return RankDirectory(path, int(match["rank"]), (began, name))


def _is_of_values(path: Path) -> bool:
    return bool(VALUE_FILE.match(path.name) or ARROW_FILE.match(path.name)) and path.is_file()
