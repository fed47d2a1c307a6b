"""The warnings of a reader, as data."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager


class _Gathering(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.messages.append(record.getMessage())


@contextmanager
def gathered(logger: str) -> Generator[list[str], None, None]:
    """Keep the warnings of a logger for the block instead of showing them."""
    handler, source = _Gathering(), logging.getLogger(logger)
    was_passed_on = source.propagate
    source.addHandler(handler)
    source.propagate = False
    try:
        yield handler.messages
    finally:
        source.removeHandler(handler)
        source.propagate = was_passed_on
