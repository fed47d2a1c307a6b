"""The exception of decoders of untrusted content."""

from __future__ import annotations


class MalformedError(ValueError):
    """Content is invalid. The message is the reason in one line, for a sentence that names the file.

    Attributes:
        reason: Reason without the line number.
        line: 1-based line in the text; ``None`` if unknown.
        position: Byte position in the content; ``None`` if unknown.
    """

    def __init__(self, reason: str, line: int | None = None, *, position: int | None = None) -> None:
        self.reason = " ".join(reason.split())
        self.line = line
        self.position = position
        super().__init__(self.reason if line is None else f"{self.reason}, line {line}")
