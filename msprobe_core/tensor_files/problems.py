"""Problems of foreign files: each is a finding with the byte position, and concerns one tensor or the whole file."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from msprobe_core.errors import DumpError, clip
from msprobe_core.findings import Field, Finding, Level
from msprobe_core.tensor_files.files_codes import FilesCode

_T = TypeVar("_T")


class Status(str, Enum):
    """Whether a file, or a tensor in it, can be read."""

    SOUND = "sound"
    DAMAGED = "damaged"
    REFUSED = "refused"


def status_of(damage: Finding | None) -> Status:
    """Return the status that a finding stands for; that of ``None`` is sound."""
    if damage is None:
        return Status.SOUND
    return Status.REFUSED if damage.code.value.startswith("tensor-file.refused.") else Status.DAMAGED


class ProblemError(DumpError):
    """A file or one tensor in it cannot be read.

    Attributes:
        finding: Why.
    """

    def __init__(self, code: FilesCode, position: int, **fields: Field) -> None:
        """Describe a problem.

        Args:
            code: What is wrong.
            position: Byte position in the file.
            fields: Further fields of the finding.
        """
        self.finding = Finding(code, Level.ERROR, {"position": position, **fields})
        super().__init__(self.finding.text, position=position)


def damage_by(error: Exception, position: int = 0) -> Finding:
    """Return an error of a reader as a finding.

    Args:
        error: The error.
        position: Byte position of what was read, for an error that does not know a nearer one.
    """
    if isinstance(error, ProblemError):
        return error.finding
    if isinstance(error, DumpError) and error.position is not None:
        position = error.position
    return Finding(FilesCode.DAMAGED, Level.ERROR, {"position": position, "why": clip(str(error), 500)})


def attempted(read: Callable[[], _T], position: int = 0) -> tuple[_T | None, Finding | None]:
    """Return the result of ``read``, or why there is none."""
    try:
        return read(), None
    except DumpError as error:
        return None, damage_by(error, position)
