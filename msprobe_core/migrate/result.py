"""What a file means here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
