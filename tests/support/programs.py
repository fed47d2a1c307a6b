"""Programs as lists of calls, and the dumps that recording them gives; no framework runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from dumps import api, tensor, write_dump

from msprobe_core.compare.align import Alignment, align
from msprobe_core.compare.mapping import Matching
from msprobe_core.store.reading import read_dump


@dataclass(frozen=True)
class Op:
    """A call of a program.

    Attributes:
        stem: Its name without number; a module's has its path and class.
        value: What its output is, by which a test knows it again.
        inside: The module call around it, as position in the program.
        shape: Of its input and its output.
        kwargs: Further arguments.
        has_backward: Whether its gradient is recorded too.
    """

    stem: str
    value: float
    inside: Op | None = None
    shape: tuple[int, ...] = (2,)
    kwargs: dict[str, object] = field(default_factory=dict)
    has_backward: bool = False

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def is_module(self) -> bool:
        return self.stem.startswith(("Module.", "Cell."))


def names_of(program: list[Op]) -> dict[Op, str]:
    """Return the name of each call's forward entry, numbered as frameworks number them."""
    counts: dict[str, int] = {}
    named: dict[Op, str] = {}
    for op in program:
        number = counts[op.stem] = counts.get(op.stem, -1) + 1
        named[op] = f"{op.stem}.forward.{number}" if op.is_module else f"{op.stem}.{number}.forward"
    return named


def backward_of(forward: str) -> str:
    return forward.replace(".forward", ".backward")


def record(directory: Path, program: list[Op], *, nesting: bool = True, framework: str = "pytorch") -> Path:
    """Write the dump of a program; gradients come after everything, in reverse."""
    named = names_of(program)
    data = {}
    for op, name in named.items():
        values = tensor(op.value, shape=list(op.shape))
        data[name] = api(values, output=values, **{k: {"type": "float", "value": v} for k, v in op.kwargs.items()})
    for op, name in reversed(named.items()):
        if op.has_backward:
            data[backward_of(name)] = {"input": [tensor(op.value)], "output": [tensor(op.value)]}
    parents = {name: named.get(op.inside) for op, name in named.items()} if nesting else None
    return write_dump(directory, data, parents=parents, framework=framework)


def align_dumps(target: Path, golden: Path, matching: Matching | None = None) -> Alignment:
    return align(read_dump(target), read_dump(golden), matching or Matching())


def pairs_in(alignment: Alignment) -> dict[str, str | None]:
    """Return the golden entry that each of the target's has been paired with, in all of its rows."""
    pairs: dict[str, str | None] = {}
    rows = alignment.rows.filter(match="both").select("entry", "entry_golden").unique()
    assert rows["entry"].is_unique().all(), "rows of one entry are paired with several"
    pairs.update(rows.rows())
    return pairs


def lone_in(alignment: Alignment, side: str) -> list[str]:
    """Return the entries that only one side has, in the order of the table."""
    column = "entry" if side == "target" else "entry_golden"
    return alignment.rows.filter(match=f"only {side}")[column].unique(maintain_order=True).to_list()


def with_value(op: Op, value: float) -> Op:
    return replace(op, value=value)
