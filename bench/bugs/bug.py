"""Published bugs: what was reported, and how both sides are reproduced here."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from bench.bugs.program import Program
from bench.faults.truth import Truth


class Side(str, Enum):
    """The two runs of a pair."""

    GOLDEN = "golden"
    TARGET = "target"


class Kind(str, Enum):
    """What sort of bug it is."""

    ACCUMULATION = "gradient accumulation"
    ROTARY = "rotary embedding"
    MASK = "attention mask"
    ATTENTION = "attention back end"
    TIED = "tied weights"
    NORM = "normalisation"
    ACTIVATION = "activation"
    MIXTURE = "mixture of experts"
    WINDOW = "sliding window"
    CACHE = "cache and positions"
    PRECISION = "mixed precision"
    STATE_SPACE = "state space"
    ADAPTER = "adapter"
    OPTIMIZER = "optimizer"
    CLIPPING = "clipping"
    SCHEDULER = "scheduler"
    DATA_PARALLEL = "data parallel"
    DROPOUT = "dropout"
    SAMPLER = "sampler"
    INITIALIZATION = "initialisation"
    QUANTIZATION = "quantisation"
    GENERATION = "generation"


class Half(str, Enum):
    """Whether wrong answers about a bug may lead to changes of the judge."""

    TUNED = "tuned on"
    HELD_OUT = "held out"


def half_of(name: str) -> Half:
    """Return the half a bug is in: decided by its name, so before anyone knows the answer."""
    return (Half.TUNED, Half.HELD_OUT)[zlib.crc32(name.encode()) % 2]


def url_of(report: str) -> str:
    """Return the address of ``owner/name#number``, forwarded if it is a pull request, or of ``owner/name@commit``."""
    repository, mark, what = re.split("([#@])", report)
    return f"https://github.com/{repository}/{'issues' if mark == '#' else 'commit'}/{what}"


@dataclass(frozen=True)
class Bug:
    """A published bug.

    Attributes:
        name: Name in tables; decides the half.
        kind: Kind of bug.
        report: Where users reported it, as ``owner/name#number``.
        fix: Pull request, or commit, that fixed it.
        symptom: What users saw.
        place: Function that the fix changed.
        truth: Where calls of that function are in a dump.
        make: Builds the program of a side. Bugs of releases build the same program on both sides.
        defective: Requirements of the release that has it; empty if the defect is re-created in today's code.
        fixed: Requirements of the release that fixed it.
        dtype: Name of the dtype that the model is recorded in.
        world: Number of processes.
        checks: Names of further checks that apply to this kind (`bench.bugs.checks`).
    """

    name: str
    kind: Kind
    report: str
    fix: str
    symptom: str
    place: str
    truth: Truth
    make: Callable[[Side], Program]
    defective: Sequence[str] = ()
    fixed: Sequence[str] = ()
    dtype: str = "fp32"
    world: int = 1
    checks: Sequence[str] = ()

    @property
    def half(self) -> Half:
        """The half it is in."""
        return half_of(self.name)

    @property
    def is_real(self) -> bool:
        """Whether both sides are the code that was released."""
        return bool(self.defective)

    def requirements(self, side: Side) -> Sequence[str]:
        """Return what a side is installed from; empty for today's libraries."""
        return self.fixed if side is Side.GOLDEN else self.defective


@dataclass(frozen=True)
class Variant:
    """A healthy program that is written or laid out in two ways, in today's code.

    Attributes:
        name: Name in tables.
        make: Builds the program of a side.
        world: Number of processes.
        checks: As of a `Bug`; none.
    """

    name: str
    make: Callable[[Side], Program]
    world: int = 1
    checks: Sequence[str] = ()

    def requirements(self, side: Side) -> Sequence[str]:
        """Return nothing: both sides are today's code."""
        del side
        return ()


@dataclass
class Catalogue:
    """Bugs by name, in the order in which they were added."""

    bugs: dict[str, Bug] = field(default_factory=dict)

    def add(self, bug: Bug) -> None:
        """Add a bug under a name that is not taken."""
        if bug.name in self.bugs:
            raise ValueError(f"there are two bugs with the name {bug.name!r}")
        self.bugs[bug.name] = bug
