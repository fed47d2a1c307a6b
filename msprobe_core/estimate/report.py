"""Show the cost of recording: a table for users, a file for programs."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from msprobe_core.console import print_lines
from msprobe_core.estimate.engine import CaseResult, Estimate
from msprobe_core.store import atomic_file
from msprobe_core.store.results import refuse_foreign_json

_WIDTH = 110
"""Number of columns if there is no terminal to ask."""

_STEADY = 1.5
"""Ratio of slowest to fastest step above which a median of few steps is unreliable."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Size of the planned recording: number of processes, and number of steps of each."""

    num_ranks: int = 1
    num_steps: int = 1

    def bytes_of(self, result: CaseResult) -> int:
        """Return the bytes on disk of a whole recording."""
        return result.bytes_per_step * self.num_ranks * self.num_steps

    @property
    def is_given(self) -> bool:
        """Whether it is larger than what was measured."""
        return self.num_ranks * self.num_steps > 1


class MeasuredCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case in the file: `CaseResult` with derived numbers. Numbers are null if ``problem`` is not."""

    level: str | None
    mode: str | None
    problem: str | None
    times_s: tuple[float, ...]
    time_s: float | None
    factor: float | None
    bytes_per_step: int | None
    records_per_step: int | None
    peak_memory_bytes: int | None
    peak_device_bytes: int | None
    num_processes: int
    total_bytes: int | None


class EstimateFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the ``--json`` file: all numbers, times in seconds."""

    program: tuple[str, ...]
    warmup: int
    steps: int
    ranks: int
    train_steps: int
    bare: MeasuredCase
    cases: tuple[MeasuredCase, ...]


def check_json(path: Path) -> None:
    """Raise if a file of this name exists that `msprobe estimate` has not written.

    Raises:
        StoreError: there is one.
    """
    refuse_foreign_json(path, "msprobe estimate", ("program", "bare", "cases"))


def write_json(estimate: Estimate, scale: Scale, path: Path) -> None:
    """Write all numbers, readable by the owner only.

    Raises:
        StoreError: the file cannot be written.
    """
    request = estimate.request
    content = EstimateFile(
        program=(request.target, *request.arguments),
        warmup=request.num_warmup,
        steps=request.num_steps,
        ranks=scale.num_ranks,
        train_steps=scale.num_steps,
        bare=_measured(estimate, scale, estimate.bare),
        cases=tuple(_measured(estimate, scale, result) for result in estimate.cases),
    )
    atomic_file.write_json(path, content)


def _measured(estimate: Estimate, scale: Scale, result: CaseResult) -> MeasuredCase:
    is_known = result.problem is None
    is_bare = result.case.level is None
    return MeasuredCase(
        level=result.case.level,
        mode=None if is_bare else result.case.mode,
        problem=result.problem,
        times_s=tuple(result.times_s),
        time_s=result.time_s if is_known else None,
        factor=estimate.factor(result) if is_known else None,
        bytes_per_step=result.bytes_per_step if is_known else None,
        records_per_step=result.records_per_step if is_known else None,
        peak_memory_bytes=result.peak_memory_bytes if is_known else None,
        peak_device_bytes=result.peak_device_bytes,
        num_processes=result.num_processes,
        total_bytes=scale.bytes_of(result) if is_known else None,
    )


def print_estimate(estimate: Estimate, scale: Scale, console: Console) -> None:
    """Print one row for each case, the bare one first."""
    has_device = any(result.peak_device_bytes is not None for result in (estimate.bare, *estimate.cases))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("level", "keeps"):
        table.add_column(name, no_wrap=True)
    numbers = ["ms per\nstep", "least\nto most", "factor", "on disk\nper step", "records\nper step", "peak\nmemory"]
    numbers += ["peak on\ndevice"] * has_device
    scaled = f"disk for\n{_plural(scale.num_ranks, 'rank')},\n{_plural(scale.num_steps, 'step')}"
    numbers += [scaled] * scale.is_given
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for result in (estimate.bare, *estimate.cases):
        table.add_row(*_cells(estimate, scale, result, has_device=has_device))
    if not console.is_terminal:
        console.width = max(_WIDTH, console.width)
    console.print(table)
    print_lines(console, _notes(estimate))


def _cells(estimate: Estimate, scale: Scale, result: CaseResult, *, has_device: bool) -> list[str]:
    is_bare = result.case.level is None
    head = ["none", ""] if is_bare else [str(result.case.level), result.case.mode]
    if result.problem is not None:
        return [*head, "failed"]
    cells = [
        f"{result.time_s * 1e3:,.1f}",
        f"{min(result.times_s) * 1e3:,.1f} to {max(result.times_s) * 1e3:,.1f}",
        f"{estimate.factor(result):.2f}",
        "" if is_bare else _size(result.bytes_per_step),
        "" if is_bare else f"{result.records_per_step:,}",
        _size(result.peak_memory_bytes),
    ]
    if has_device:
        cells.append("" if result.peak_device_bytes is None else _size(result.peak_device_bytes))
    if scale.is_given:
        cells.append("" if is_bare else _size(scale.bytes_of(result)))
    return head + cells


def _notes(estimate: Estimate) -> list[str]:
    request = estimate.request
    steps = _plural(request.num_steps, "step")
    notes = [f"Medians of {steps} after {request.num_warmup} to warm up; factor: over none. Writing is part of a step."]
    known = [result for result in (estimate.bare, *estimate.cases) if result.problem is None]
    fewest = min((len(result.times_s) for result in known), default=request.num_steps)
    if fewest < request.num_steps:
        notes.append(f"The program made fewer steps than that: {_plural(fewest, 'step')} in some case.")
    if any(max(result.times_s) > _STEADY * min(result.times_s) for result in known):
        notes.append(
            "Times vary between steps, so factors are rough: measure more --steps, on a machine without other work."
        )
    if any(result.num_processes > 1 for result in known):
        notes.append("Several processes recorded: times are of the lowest rank, sizes and records are means per rank.")
    return notes


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _size(number: float) -> str:
    """Return a number of bytes for display; 1 kB is 1,000 bytes."""
    if number < 1000:
        return f"{number:.0f} B"
    units = ("kB", "MB", "GB", "TB", "PB")
    power = min(int(math.log10(number)) // 3, len(units))
    return f"{number / 1000**power:,.1f} {units[power - 1]}"
