"""What a file means here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


class Standing(str, Enum):
    """How a field is understood here, in comparison with the tool that it was written for."""

    SAME = "same"
    DIFFERENT = "different"
    REFUSED = "refused"


@dataclass(frozen=True)
class FieldMeaning:
    """What a field means here.

    Attributes:
        field: Its name; of a field in a block ``block.field``.
        standing: How it is understood.
        text: In what it differs, or why it is refused; empty if it is the same.
    """

    field: str
    standing: Standing
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class MigratedFile:
    """What a file means here.

    Attributes:
        path: The file.
        kind: What it is, with its article.
        used_by: The command or call that takes it.
        meanings: Of its fields.
        content: A configuration for msprobe with the same meaning; ``None`` if the file is used as it is, or cannot be.
    """

    path: Path
    kind: str
    used_by: str
    meanings: Sequence[FieldMeaning]
    content: Mapping[str, Any] | None = None

    @property
    def is_same(self) -> bool:
        """Whether every field means the same."""
        return all(each.standing is Standing.SAME for each in self.meanings)


@dataclass(frozen=True)
class Migrated:
    """What the files of a directory mean here, or the one file that was named.

    Attributes:
        files: Those of a known kind.
        unreadable: Of each ``.json`` and ``.yaml`` file that cannot be read or decoded, its path and why. It may be a
            broken configuration.
        num_others: Number of those that can be read, and are something else.
    """

    files: Sequence[MigratedFile]
    unreadable: Sequence[str] = field(default_factory=list[str])
    num_others: int = 0

    @property
    def is_same(self) -> bool:
        """Whether every field of every file means the same, as far as the files are known to be configurations."""
        return not self.unreadable and all(each.is_same for each in self.files)
