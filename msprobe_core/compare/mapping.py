"""How rows are to be paired, beyond what is equal on both sides; `msprobe_core.compare.mapping_files` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One line of a file of names.

    Attributes:
        target: What the target calls it.
        golden: What the golden dump calls it; empty if the target's is to have no partner, which rows alone may.
        where: File and line, for messages.
    """

    target: str
    golden: str
    where: str


@dataclass(frozen=True)
class ApiRule(Rule):
    """Which API is which.

    Attributes:
        arguments: The golden's place of an argument by the target's, each a position or a keyword; those that are not
            listed have no partner. ``None``: each argument has the place of its partner.
        outputs: The same of results.
    """

    arguments: Mapping[str, str] | None = None
    outputs: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Matching:
    """How rows are to be paired, beyond what is equal on both sides.

    Attributes:
        is_fuzzy: Pair also calls in different order, if their names without index and their shapes are equal.
        rows: Row names that belong together.
        cells: Modules that belong together; ``None`` if nobody asked for it.
        apis: APIs that belong together; ``None`` if nobody asked for it.
        layers: By class of the enclosing module, which child paths belong together; ``None`` if nobody asked for it.
    """

    is_fuzzy: bool = False
    rows: Sequence[Rule] = ()
    cells: Sequence[Rule] | None = None
    apis: Sequence[ApiRule] | None = None
    layers: Mapping[str, Sequence[Rule]] | None = None

    @property
    def renames(self) -> bool:
        """Whether names of calls are to be translated."""
        return self.cells is not None or self.apis is not None or self.layers is not None
