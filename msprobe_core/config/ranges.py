"""The grammar of the fields ``step`` and ``rank``: a list of integers, ``"n"`` and ``"a-b"``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from msprobe_core.errors import ConfigError

LARGEST = 1_000_000_000
"""Largest step or rank."""

MAX_NUMBERS = 1_000_001
"""Maximum number of elements of a list, and of the numbers that it stands for, as ``"0-1000000"``: they take memory."""

_NUMBER = re.compile(r"\s*\+?(\d[\d_]*)\s*", re.ASCII)
_RANGE = re.compile(r"\s*(\d+)\s*-\s*(\d+)\s*", re.ASCII)


def parse_ranges(value: Any, where: str) -> tuple[int, ...]:
    """Return the numbers in ``value``, sorted, each once.

    Args:
        value: ``None`` or a list; each element an integer, ``"n"``, or ``"a-b"`` with both ends included.
        where: File and field, for the error message.

    Raises:
        ConfigError: ``value`` has another form, a number is not between 0 and 1,000,000,000, or there are too many.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ConfigError(f'{where} is {value!r}, but must be a list, for example [0, "2-5"]')
    items = cast("Sequence[Any]", value)
    if len(items) > MAX_NUMBERS:
        raise ConfigError(f'{where} has {len(items)} elements; at most {MAX_NUMBERS} are allowed, use "a-b" ranges')
    numbers: set[int] = set()
    for item in items:
        some = _expand(item, where)
        if len(some) <= MAX_NUMBERS:  # otherwise the union alone may take gigabytes
            numbers.update(some)
        if max(len(some), len(numbers)) > MAX_NUMBERS:
            raise ConfigError(
                f"{where} has the element {item!r}, with which it selects more than {MAX_NUMBERS} numbers; select "
                "fewer, or leave it empty for all"
            )
    return tuple(sorted(numbers))


def _expand(item: Any, where: str) -> Sequence[int]:
    if isinstance(item, int) and not isinstance(item, bool):
        return (_within(item, item, where),)
    if isinstance(item, str):
        if match := _RANGE.fullmatch(item):
            first, last = (_within(int(text), item, where) for text in match.groups())
            if first > last:
                raise ConfigError(f'{where} has the range {item!r}, which runs backwards; write "{last}-{first}"')
            return range(first, last + 1)
        if match := _NUMBER.fullmatch(item):
            return (_within(int(match.group(1)), item, where),)
    raise ConfigError(f'{where} has the element {item!r}; allowed are integers from 0, "n" and "a-b"')


def _within(number: int, item: object, where: str) -> int:
    if not 0 <= number <= LARGEST:
        raise ConfigError(f"{where} has the element {item!r}; numbers count from 0 and end at {LARGEST}")
    return number


def format_ranges(numbers: Iterable[int]) -> list[str]:
    """Return numbers in the form that `parse_ranges` reads, ascending: ``0-3`` for four in a row, ``7`` for one."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]
