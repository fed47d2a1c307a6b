"""``acc_check.json`` and ``acc_check.parquet``: the checked calls of a dump, for programs and for the page.

The first has all that is known, with the answer and the counts; the second has one row per output for data frames.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_args

import msgspec
import polars as pl

from msprobe_core.api_check.verdict import (
    CallVerdict,
    Inputs,
    Mutant,
    OutputVerdict,
    PublishedColumns,
    Verdict,
)
from msprobe_core.findings import read_finding, text_and_content
from msprobe_core.model import Phase
from msprobe_core.report.api_check_summary import CheckSummary
from msprobe_core.store.atomic_file import whole_file, write_json
from msprobe_core.store.layout import make_directory
from msprobe_core.store.results import plain_result, read_result, refuse_foreign_json, refuse_foreign_parquet
from msprobe_core.untrusted.paths import shown

CHECK_FILE = "acc_check.json"
CHECK_TABLE = "acc_check.parquet"
VERSION = 1

_COMMAND = "msprobe acc_check"
_MAX_BYTES = 1 << 30
"""Largest file that is read: some 500,000 calls."""


def refuse_foreign_checks(directory: Path) -> None:
    """Check that writing the two files will not replace others; to be called before the work begins.

    Raises:
        StoreError: the directory holds a file of one of these names that this command has not written.
    """
    refuse_foreign_json(directory / CHECK_FILE, _COMMAND, ("version", "dump", "verdict", "calls"))
    refuse_foreign_parquet(directory / CHECK_TABLE, _COMMAND, ("entry", "call_verdict", "output"))


def write_checks(verdicts: Sequence[CallVerdict], directory: Path, *, dump: Path) -> list[Path]:
    """Write ``acc_check.json`` and ``acc_check.parquet``; return their paths.

    Args:
        verdicts: One per call, in the order of the dump.
        directory: Created if it is missing.
        dump: The dump that was checked.

    Raises:
        StoreError: one cannot be written; no part of it is left.
    """
    make_directory(directory)
    path, table = directory / CHECK_FILE, directory / CHECK_TABLE
    write_json(path, check_content(verdicts, dump))
    with whole_file(table) as file:
        content = io.BytesIO()
        check_table(verdicts).write_parquet(content)
        file.write(content.getbuffer())
    return [path, table]


def check_content(verdicts: Sequence[CallVerdict], dump: Path) -> dict[str, Any]:
    """Return the content of ``acc_check.json``, in JSON's types."""
    summary = CheckSummary.of(verdicts)
    weakness = summary.weakness
    return {
        "version": VERSION,
        "dump": shown(str(dump)),
        "verdict": summary.verdict.value,
        **text_and_content("headline", summary.headline),
        "counts": {verdict.value: num for verdict, num in summary.counts.items()},
        **text_and_content("weakness", weakness),
        "num_weak": len(summary.weak),
        "not_checked": [
            {"count": group.count, "first": group.first, **text_and_content("reason", group.reason)}
            for group in summary.not_checked
        ],
        "probed_wrong": [call.entry for call in summary.probed],
        "by_effect": [call.entry for call in summary.ranked],
        "calls": [_call_content(call) for call in verdicts],
    }


def _call_content(call: CallVerdict) -> dict[str, Any]:
    own = msgspec.structs.replace(call, seconds=round(call.seconds, 4), outputs=())
    return {**plain_result(own, ("reason", "notes")), "outputs": [_output_content(output) for output in call.outputs]}


def _output_content(output: OutputVerdict) -> dict[str, Any]:
    plain = {name: plain_result(getattr(output, name)) for name in _PLAIN}
    return {
        **plain,
        **text_and_content("reason", output.reason),
        "is_weak": output.is_weak,
        "published": {name: plain_result(value) for name, value in published_of(output).items()},
    }


_PLAIN = (
    "path", "side", "dtype", "shape", "verdict", "error", "rounding", "condition", "own_error", "times",
    "amplification", "worst_index", "bias", "applied", "accepted",
)  # fmt: skip


def published_of(output: OutputVerdict) -> dict[str, Any]:
    """Return the published columns that have a value."""
    every = {name: getattr(output.published, name) for name in PublishedColumns.__struct_fields__}
    return {name: value for name, value in every.items() if value not in (None, "")}


# --- as a table ---------------------------------------------------------------------------------------------------


def check_table(verdicts: Sequence[CallVerdict]) -> pl.DataFrame:
    """Return one row per output, and one for each call without any, in the order of the dump."""
    rows = [
        {**_call_cells(call), **({} if output is None else _output_cells(output))}
        for call in verdicts
        for output in (call.outputs or (None,))
    ]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


_PUBLISHED: dict[str, Any] = {
    field.name: pl.String if str in (field.type, *get_args(field.type)) else pl.Float64
    for field in msgspec.structs.fields(PublishedColumns)
}
_SCHEMA: dict[str, Any] = {
    "entry": pl.String, "api": pl.String, "phase": pl.String, "call_verdict": pl.String, "inputs": pl.String,
    "seed": pl.Int64, "stage": pl.Int64, "position": pl.Int64, "reach": pl.Int64, "seconds": pl.Float64,
    "not_checked": pl.String, "output": pl.String, "side": pl.String, "dtype": pl.String, "shape": pl.String,
    "verdict": pl.String, "reason": pl.String, "error": pl.Float64, "rounding": pl.Float64, "condition": pl.Float64,
    "own_error": pl.Float64, "times": pl.Float64, "amplification": pl.Float64, "worst_index": pl.String,
    "bias": pl.Float64, "applied": pl.String, "accepted": pl.String, "is_weak": pl.Boolean, **_PUBLISHED,
}  # fmt: skip


def _call_cells(call: CallVerdict) -> dict[str, Any]:
    return {
        "entry": shown(call.entry), "api": shown(call.api), "phase": call.phase.value,
        "call_verdict": call.verdict.value, "inputs": call.inputs.value, "seed": call.seed, "stage": call.stage,
        "position": call.position, "reach": call.reach, "seconds": call.seconds,
        "not_checked": None if call.reason is None else shown(call.reason.text),
    }  # fmt: skip


def _output_cells(output: OutputVerdict) -> dict[str, Any]:
    return {
        "output": shown(output.path), "side": output.side, "dtype": output.dtype, "shape": str(list(output.shape)),
        "verdict": output.verdict.value, "reason": shown(output.reason.text), "error": output.error,
        "rounding": output.rounding, "condition": output.condition, "own_error": output.own_error,
        "times": output.times, "amplification": output.amplification,
        "worst_index": None if output.worst_index is None else str(list(output.worst_index)), "bias": output.bias,
        "applied": ",".join(output.applied), "accepted": ",".join(output.accepted), "is_weak": output.is_weak,
        **published_of(output),
    }  # fmt: skip


# --- reading ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CheckedDump:
    """The content of an ``acc_check.json``.

    Attributes:
        dump: The dump that was checked, as the file names it.
        verdicts: One per call, in the order of the dump.
    """

    dump: str
    verdicts: Sequence[CallVerdict]


_Content: TypeAlias = dict[str, Any] | None


class _Output(msgspec.Struct, frozen=True):
    path: str
    verdict: Verdict
    reason: str
    side: str = "recorded"
    dtype: str = ""
    shape: tuple[int, ...] = ()
    reason_finding: _Content = None
    error: float = math.nan
    rounding: float = math.nan
    condition: float = math.nan
    own_error: float | None = None
    times: float = math.nan
    amplification: float | None = None
    worst_index: tuple[int, ...] | None = None
    bias: float | None = None
    applied: tuple[Mutant, ...] = ()
    accepted: tuple[Mutant, ...] = ()
    published: PublishedColumns = PublishedColumns()


class _Call(msgspec.Struct, frozen=True):
    entry: str
    verdict: Verdict
    api: str = ""
    phase: Phase = Phase.FORWARD
    inputs: Inputs = Inputs.RECORDED
    seed: int | None = None
    stage: int = 1
    position: int = 0
    reach: int | None = None
    seconds: float = 0.0
    reason: str | None = None
    reason_finding: _Content = None
    notes: tuple[str, ...] = ()
    notes_finding: tuple[dict[str, Any], ...] = ()
    outputs: tuple[_Output, ...] = ()


class _File(msgspec.Struct, frozen=True):
    version: int
    dump: str
    calls: tuple[_Call, ...]


def read_checks(path: Path) -> CheckedDump:
    """Read an ``acc_check.json``, which anyone may have written.

    Counts and order are not taken from the file, since they follow from the calls.

    Raises:
        CompareError: it cannot be read, is damaged, or of a later version.
    """
    found = read_result(path, _File, _COMMAND, VERSION, max_bytes=_MAX_BYTES, has_texts=True)
    return CheckedDump(dump=found.dump, verdicts=list(map(_verdict, found.calls)))


def _verdict(call: _Call) -> CallVerdict:
    known = msgspec.structs.asdict(call)
    reason_finding, notes_finding = known.pop("reason_finding"), known.pop("notes_finding")
    contents: list[_Content] = [*notes_finding, *([None] * len(call.notes))]
    known["outputs"] = tuple(map(_output, call.outputs))
    known["reason"] = None if call.reason is None else read_finding(call.reason, reason_finding)
    known["notes"] = tuple(map(read_finding, call.notes, contents))
    return CallVerdict(**known)


def _output(output: _Output) -> OutputVerdict:
    known = msgspec.structs.asdict(output)
    known["reason"] = read_finding(output.reason, known.pop("reason_finding"))
    return OutputVerdict(**known)
