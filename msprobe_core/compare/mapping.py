"""Options for the pairing of rows beyond equal names; `msprobe_core.compare.mapping_files` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One line of a mapping file.

    Attributes:
        target: Name in the target.
        golden: Name in the golden dump; empty for no partner, which only rules for rows may have.
        where: File and line, for messages.
    """

    target: str
    golden: str
    where: str


@dataclass(frozen=True)
class ApiRule(Rule):
    """Pairing of two APIs.

    Attributes:
        arguments: The golden place for each target place of an argument, each a position or a keyword; arguments that
            are not listed have no partner. ``None``: places are equal.
        outputs: The same for results.
    """

    arguments: Mapping[str, str] | None = None
    outputs: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Matching:
    """Options for the pairing of rows beyond equal names.

    Attributes:
        is_fuzzy: Also pair calls in different order, if their names without index and their shapes are equal.
        rows: Pairs of row names.
        cells: Pairs of modules; ``None`` if not requested.
        apis: Pairs of APIs; ``None`` if not requested.
        layers: Pairs of child paths, by class of the enclosing module; ``None`` if not requested.
    """

    is_fuzzy: bool = False
    rows: Sequence[Rule] = ()
    cells: Sequence[Rule] | None = None
    apis: Sequence[ApiRule] | None = None
    layers: Mapping[str, Sequence[Rule]] | None = None

    @property
    def renames(self) -> bool:
        """Whether names of calls are translated."""
        return self.cells is not None or self.apis is not None or self.layers is not None
