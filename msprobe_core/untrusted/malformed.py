"""What decoders of foreign content raise."""

from __future__ import annotations


class MalformedError(ValueError):
    """Content is not what it should be; the message is the reason in one line, for a sentence that names the file.

    Attributes:
        reason: Without the line.
        line: Where in the text it is, counted from 1; ``None`` if that is not known.
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        self.reason = " ".join(reason.split())
        self.line = line
        super().__init__(self.reason if line is None else f"{self.reason}, line {line}")
