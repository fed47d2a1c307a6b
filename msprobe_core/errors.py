"""All exceptions that the project raises on purpose.

A class is named after what the caller can do about it. Each message says what is wrong, where, and what to do next. The
command line prints it with the code of its class, of which ``docs/errors.md`` has a section, and exits with status 2.
"""

from __future__ import annotations

from typing import ClassVar

_MAX_CHARS = 2000

FILE_CODE = "system.file"
"""Printed with what the operating system says of a file."""
INTERNAL_CODE = "internal"
"""Printed with any other exception: a defect of msprobe."""


class MsprobeError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        code: What happened, as a name that stays the same between releases; a class without one has that of its base.
    """

    code: ClassVar[str] = "failed"

    def __str__(self) -> str:
        """Return the message in one line; a long message, which quotes external values, is shortened in the middle."""
        text = super().__str__()
        if "\n" in text or "\r" in text:
            text = " ".join(text.split())
        half = _MAX_CHARS // 2
        return text if len(text) <= _MAX_CHARS else f"{text[:half]} … {text[-half:]}"


class UnknownCommandError(MsprobeError):
    """There is no such command: take the one that the message names."""

    code = "command.unknown"


class ConfigError(MsprobeError, ValueError):
    """A setting is wrong: correct the configuration file or the argument."""

    code = "config.invalid"
    setting: str | None = None
    """Name of the setting, if only the recording can tell that it is wrong, and its message does not say its place."""


class UnknownFieldError(ConfigError):
    """A file has a key that nothing reads: correct its spelling, or its place."""

    code = "config.unknown-field"


class UnreadableConfigError(ConfigError):
    """A file that the user wrote cannot be opened: correct its path, or its permissions."""

    code = "config.unreadable"


class MalformedConfigError(ConfigError):
    """A file is not of the format that its name promises: correct its syntax."""

    code = "config.malformed"


class ConflictingSettingsError(ConfigError):
    """Two settings exclude each other, or one lacks another: change one of them."""

    code = "config.conflict"


class SessionError(MsprobeError, RuntimeError):
    """The debugger was called out of order: change the calling code."""

    code = "session.misuse"


class NoModelError(SessionError):
    """A model is needed and none was given: call ``start(model)``."""

    code = "session.no-model"


class SecondDebuggerError(SessionError):
    """This process has another debugger already: use that one, or close it."""

    code = "session.second-debugger"


class PluginError(MsprobeError, RuntimeError):
    """A plugin is missing, broken or in conflict with another: change what is installed."""

    code = "plugin.unavailable"


class BrokenPluginError(PluginError):
    """A plugin does not keep its contract: report it to its authors. A training goes on without it."""

    code = "plugin.broken"


class MissingLibraryError(PluginError):
    """A library that a feature needs cannot be imported: install it."""

    code = "plugin.library-missing"


class MissingFrameworkError(PluginError):
    """No plugin stands for the framework, or it is not known which: install the plugin, or name the framework."""

    code = "plugin.framework-missing"


class HiddenPackageError(PluginError):
    """Another package hides one of ours: keep the two in separate environments."""

    code = "plugin.hidden"


class UnwrittenError(MsprobeError):
    """A tensor is memory that its kernel has not written: its values are meaningless, and none are recorded."""


class EntryNameError(MsprobeError, ValueError):
    """A string is not an entry name of the grammar in `msprobe_core.names`."""

    code = "name.invalid"


class DumpError(MsprobeError, ValueError):
    """A dump cannot be read: it is missing, truncated or not what it claims to be.

    Attributes:
        position: Byte position in the file of what is wrong; ``None`` if it is not known.
    """

    code = "dump.unreadable"

    def __init__(self, message: str = "", *, position: int | None = None) -> None:
        """Take the message, and the position if it is known."""
        super().__init__(message)
        self.position = position


class MissingDumpError(DumpError):
    """There is nothing to read at a path: give another, or record."""

    code = "dump.missing"


class DamagedDumpError(DumpError):
    """A file is cut off or damaged: copy it again, or record again."""

    code = "dump.damaged"


class LargeDumpError(DumpError):
    """A file or a tensor is larger than memory, or than such a file can be: read less of it."""

    code = "dump.too-large"


class NewerDumpError(DumpError):
    """A later release wrote a file: update msprobe."""

    code = "dump.newer"


class StoreError(MsprobeError, OSError):
    """A dump cannot be written: free space, change the permissions or choose another directory."""

    code = "store.not-writable"


class ExistsError(StoreError):
    """What is there would be replaced: choose another place, or allow it."""

    code = "store.exists"


class InUseError(StoreError):
    """Another job writes to the directory: choose another."""

    code = "store.in-use"


class CompareError(MsprobeError, ValueError):
    """Two dumps cannot be compared: choose others."""

    code = "compare.impossible"


class MissingPathError(CompareError):
    """There is no dump at a path that was given: give another."""

    code = MissingDumpError.code


class NothingInCommonError(CompareError):
    """Two sides have nothing to compare with each other: choose others, or say what belongs together."""

    code = "compare.nothing-in-common"


class NoValuesError(CompareError):
    """A dump has no values that could be compared: record it with others."""

    code = "compare.no-values"


class NoNoiseError(CompareError):
    """The noise profile that was asked for is missing or of no use: measure it, or do without."""

    code = "compare.no-noise"


class UnreadableResultError(CompareError):
    """A file is not the result of a command that it should be: run that command again."""

    code = "compare.result-unreadable"


class ReplayError(MsprobeError, RuntimeError):
    """A recorded call cannot be replayed: record more of it, or give its model."""

    code = "replay.impossible"


class EstimateError(MsprobeError, RuntimeError):
    """A training program cannot be measured: correct the program, or its arguments."""

    code = "estimate.failed"


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
