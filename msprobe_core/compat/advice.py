"""The advisor file of ``mindstudio-probe`` up to 8.x: it names a suspicious row and says what to look at.

The original names the first row that is suspicious by itself. Here it is a row of the call where the dumps diverge (see
`msprobe_core.judge.fault`), which the terminal names as well: a suspicious row of it if there is one. If no call is at
fault, the file names the first row that is suspicious by the rules of generation A.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import polars as pl

from msprobe_core import names
from msprobe_core.compare.result import Mode, UnitResult
from msprobe_core.compat.verdicts import RESULT, compat_a
from msprobe_core.errors import printable
from msprobe_core.judge.fault import Fault
from msprobe_core.judge.joining import by_entry, filtered
from msprobe_core.model import Phase, Role
from msprobe_core.protocols.presentation import Companion
from msprobe_core.store.stored_rows import Rows

SUSPICIOUS = ("No", "Different", "Warning")
"""Results of generation A that make a row suspicious."""

_NOTHING = "NA"
_ALL_GOOD = "All data in the comparison result meets the accuracy requirements."

_RANDOM_APIS = ("conv2d", "conv3d", "matmul", "nll_loss", "layer_norm", "lstm")
_RANDOM = (
    "This API may compute something slightly different in each run. Make both runs deterministic with "
    "seed_all(mode=True), record them again, and compare."
)
_BATCH_NORM = (
    "This is the running mean of a batch normalisation, which every forward of training changes. Check that both runs "
    "start from the same state and are both in training or both in evaluation mode."
)
_PARAMETERS = (
    "The inputs of this call agree and its parameters do not. Look at how they were initialised or loaded, and at the "
    "optimizer's last step."
)
_FROM_OUTSIDE = (
    "The input of this call differs, and nothing that was recorded before it does. Look at what makes it and was not "
    "recorded: the data, an API that is not recorded, or a change in place."
)
_BY_PLACE = {
    (Phase.FORWARD.value, True): (
        "The input of a forward differs. Look at where it comes from: it may have been changed in place by an API that "
        "had it as input too, or its memory may have been overwritten."
    ),
    (Phase.FORWARD.value, False): "The output of a forward differs. The operator itself is suspicious.",
    (Phase.BACKWARD.value, True): (
        "The input of a backward differs. Check first whether results of the forward differ, which it is computed from."
    ),
    (Phase.BACKWARD.value, False): "The output of a backward differs. The operator's backward is suspicious.",
}


@dataclass(frozen=True)
class Advice:
    """The content of the advisor file.

    Attributes:
        line: Line of the table, where the header is line 1; ``None`` if nothing is suspicious.
        node: Name of the row; ``None`` if nothing is suspicious.
        text: What to look at.
    """

    line: int | None
    node: str | None
    text: str

    def lines(self) -> tuple[str, str, str]:
        """Return the three lines of the file."""
        return (
            f"Line: {_NOTHING if self.line is None else self.line}",
            f"Suspect Nodes: {_NOTHING if self.node is None else self.node}",
            f"Expert Advice: {self.text}",
        )


def advice_file(unit: UnitResult) -> Companion:
    """Return the file of advice that goes with the table of generation A."""
    by_checksum = unit.mode is Mode.CHECKSUM
    work = partial(compat_a, by_checksum=by_checksum)
    results = by_entry(unit.judged, unit.judged.columns, lambda part: work(part).select(RESULT))[RESULT]
    lines = advise(unit.judged, results, unit.first_fault).lines()
    return Companion("advisor", "txt", "".join(f"{printable(line)}\n" for line in lines).encode())


def advise(rows: Rows, results: pl.Series, fault: Fault | None = None) -> Advice:
    """Return advice on the call where the dumps diverge, or on the first suspicious row if there is no such call.

    Args:
        rows: Judged rows in the order of the table.
        results: The result of each row, from `msprobe_core.compat.verdicts.compat_a`.
        fault: The call where the dumps diverge.
    """
    is_suspicious = results.is_in(SUSPICIOUS)
    entry = "" if fault is None else fault.entry
    own = _with_names(filtered(rows, _SHOWN, pl.col("entry") == entry, "number"))
    own = own.with_columns(is_suspicious.gather(own["number"]).alias(RESULT))
    telling = own if fault is None else own.filter(pl.col("name").is_in([name for name, _ in fault.findings]))
    candidates = [telling.filter(RESULT), own.filter(RESULT), telling, own]
    if is_suspicious.any():
        first = cast("int", is_suspicious.arg_max())
        of_first = rows.slice(first, 1).select(_SHOWN).with_columns(number=pl.lit(first))
        candidates.append(_with_names(of_first))
    found = next(
        (rows.select("number", "entry", "role", "phase", "name").row(0) for rows in candidates if rows.height), None
    )
    if found is None:
        return Advice(None, None, _ALL_GOOD)
    number, entry, role, phase, name = found
    line = number + 2
    special = _text_of(fault, str(role)) if fault is not None and telling.height else None
    return Advice(line, name, special or _text(str(entry), str(role), str(phase), str(name)))


_SHOWN = ("entry", "role", "phase", "name_target", "name_golden")


def _with_names(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(name=pl.coalesce("name_target", "name_golden"))


def _text_of(fault: Fault, role: str) -> str | None:
    """Return advice that follows from the fault; ``None`` if it adds nothing to what the row shows."""
    if role == Role.PARAMETERS.value and "inputs" not in fault.parts:
        return _PARAMETERS
    if role == Role.INPUT.value and not fault.is_culprit:
        return _FROM_OUTSIDE
    return None


def _text(entry: str, role: str, phase: str, name: str) -> str:
    api = names.function_of(entry).lower() or entry
    is_input = role == Role.INPUT.value
    if api == "batch_norm" and name.endswith(".forward.input.1"):
        return _BATCH_NORM
    if api in _RANDOM_APIS and not is_input:
        return _RANDOM
    direction = Phase.FORWARD if phase in {Phase.FORWARD.value, Phase.DEBUG.value} else Phase.BACKWARD
    return _BY_PLACE[direction.value, is_input or role == Role.PARAMETERS.value]
