"""All exceptions that the project raises on purpose.

A class is named after what the caller can do about it. Each message says what is wrong, where, and what to do next. The
command line prints it and exits with status 2.
"""

from __future__ import annotations

_MAX_CHARS = 2000


class MsprobeError(Exception):
    """Base of all errors raised on purpose."""

    def __str__(self) -> str:
        """Return the message in one line; a long message, which quotes external values, is shortened in the middle."""
        text = super().__str__()
        if "\n" in text or "\r" in text:
            text = " ".join(text.split())
        half = _MAX_CHARS // 2
        return text if len(text) <= _MAX_CHARS else f"{text[:half]} … {text[-half:]}"


class ConfigError(MsprobeError, ValueError):
    """A setting is wrong: correct the configuration file or the argument."""


class SessionError(MsprobeError, RuntimeError):
    """The debugger was called out of order: change the calling code."""


class PluginError(MsprobeError, RuntimeError):
    """A plugin is missing, broken or in conflict with another: change what is installed."""


class BrokenPluginError(PluginError):
    """A plugin does not keep its contract: report it to its authors. A training goes on without it."""


class UnwrittenError(MsprobeError):
    """A tensor is memory that its kernel has not written: its values are meaningless, and none are recorded."""


class EntryNameError(MsprobeError, ValueError):
    """A string is not an entry name of the grammar in `msprobe_core.names`."""


class DumpError(MsprobeError, ValueError):
    """A dump cannot be read: it is missing, truncated or not what it claims to be.

    Attributes:
        position: Byte position in the file of what is wrong; ``None`` if it is not known.
    """

    def __init__(self, message: str = "", *, position: int | None = None) -> None:
        """Take the message, and the position if it is known."""
        super().__init__(message)
        self.position = position


class StoreError(MsprobeError, OSError):
    """A dump cannot be written: free space, change the permissions or choose another directory."""


class CompareError(MsprobeError, ValueError):
    """Two dumps cannot be compared: choose others."""


class ReplayError(MsprobeError, RuntimeError):
    """A recorded call cannot be replayed: record more of it, or give its model."""


class EstimateError(MsprobeError, RuntimeError):
    """A training program cannot be measured: correct the program, or its arguments."""


def printable(text: str) -> str:
    """Return ``text`` in one line, without characters that control a terminal or reverse the reading direction."""
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    # A byte of a file name that is not UTF-8.
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else character.encode("unicode_escape").decode()


def clip(text: str, max_length: int = 200) -> str:
    """Truncate text from a file, which may be of any length, for an error or a note."""
    return text if len(text) <= max_length else text[: max_length - 1] + "…"
