"""What a running job lost when it was resumed: the checkpoint it started from beside its manifests.

A manifest is written with the first step that a process records, so nothing has to be saved first. It has no values of
tensors, but how many steps the state of each optimizer counts, the learning rates, and digests of random states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from msprobe_core.checkpoint.boxes import read_values, whole_box
from msprobe_core.checkpoint.contents import Checkpoint, Kind, LogicalTensor
from msprobe_core.checkpoint.difference_codes import DifferenceCode
from msprobe_core.checkpoint.resume import ResumeResult, is_number
from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding, Level
from msprobe_core.manifest.facts import Manifest, Optimizer
from msprobe_core.manifest.libraries import digest_of
from msprobe_core.store.layout import find_steps, find_units, holds_units
from msprobe_core.store.manifest_file import MANIFEST_FILE, read_manifest

_RATE = re.compile(r"param_groups\.(\d+)\.(lr|initial_lr)$")
_MAX_STATE_BYTES = 1 << 14
"""Of the state of a random generator; that of the Mersenne twister has 5,056 bytes."""

_MOST_UNITS = 4
_MOST_CHANGE = 1.5
"""Factor by which schedules that go on change a learning rate within one step, at most."""

_CLOSE = 1e-6
"""Relative distance of equal learning rates, one of which may be a float32."""


def find_manifests(path: Path) -> dict[str, Path]:
    """Return the manifests of a job by the name of the process; empty if there are none.

    Args:
        path: A manifest, the directory of a process's dump, that of a step, or that of a run.

    Raises:
        DumpError: a directory cannot be read.
    """
    if path.is_file():
        return {"": path} if path.name == MANIFEST_FILE else {}
    if (path / MANIFEST_FILE).is_file():
        return {path.name: path / MANIFEST_FILE}
    found: dict[str, Path] = {}
    steps = list(find_steps(path).values()) or [path] if path.is_dir() else []
    for step in steps:
        for unit in find_units(step) if holds_units(step) else ():
            file = unit.directory / MANIFEST_FILE
            if file.is_file():
                found.setdefault(unit.directory.name, file)  # of the first step
    return found


def compare_running(before: Checkpoint, path: Path, manifests: Mapping[str, Path]) -> ResumeResult:
    """Compare the checkpoint that a job loaded with what the job says of itself in its manifests.

    Args:
        before: The loaded one.
        path: What the user gave for the job.
        manifests: The manifests of its processes, see `find_manifests`.

    Raises:
        DumpError: a manifest cannot be read.
    """
    places: dict[str, list[str]] = {}
    kept: dict[str, Finding] = {}
    steps: list[int] = []
    for unit, file in manifests.items():
        manifest = read_manifest(file)
        optimizers = [each for each in manifest.run.optimizers if each.groups]
        steps += [each.steps for each in optimizers if each.steps is not None]
        for finding in (*_step_counts(before, optimizers), *_rates(before, optimizers), *_random(before, manifest)):
            kept.setdefault(finding.text, finding)
            places.setdefault(finding.text, []).append(unit)
    found = [_placed(finding, places[text], len(manifests)) for text, finding in kept.items()]
    if all(finding.level is Level.NOTE for finding in found):
        found.append(Finding(DifferenceCode.RUNNING_FINE))
    found.append(Finding(DifferenceCode.RUNNING_NO_VALUES))
    order = list(Level)
    found.sort(key=lambda finding: order.index(finding.level))
    expected = _steps_of(before)
    num_steps = max(steps) - expected if steps and expected is not None else None
    return ResumeResult(before=before.path, after=path, num_steps=num_steps, findings=found)


def _placed(finding: Finding, units: Sequence[str], count: int) -> Finding:
    """Return a finding with the processes it is true of, unless that is all of them."""
    if len(units) == count:
        return finding
    fields = {"finding": finding, "units": list(units[:_MOST_UNITS]), "count": len(units), "total": count}
    return Finding(DifferenceCode.RUNNING_IN, finding.level, fields)


def _steps_of(before: Checkpoint) -> int | None:
    """Return how many steps the optimizer of a checkpoint has made: the most that any of its states counts."""
    counts = [
        int(values[0])
        for name, tensor in before.tensors.items()
        if tensor.kind is Kind.STATE and name.endswith(".step") and (values := _values(tensor)) is not None
    ]
    return max(counts) if counts else before.step


def _values(tensor: LogicalTensor, most: int = 1) -> np.ndarray | None:
    if tensor.damage is not None or not 0 < tensor.numel <= most:
        return None
    try:
        return np.ravel(read_values(tensor, whole_box(tensor.shape)))
    except (DumpError, ValueError, OverflowError):
        return None


def _step_counts(before: Checkpoint, optimizers: Sequence[Optimizer]) -> Iterator[Finding]:
    """Compare how many steps optimizers have made; the recorded step may be the first one, and may have been made."""
    expected = _steps_of(before)
    steps = [each.steps for each in optimizers if each.steps is not None]
    if expected is None or not steps:
        yield Finding(DifferenceCode.RUNNING_NO_STEPS)
        return
    now = max(steps)
    fields = {"before": expected, "after": now}
    if now < expected:
        yield Finding(DifferenceCode.RUNNING_FEWER_STEPS, Level.ERROR, fields)
    elif now > expected + 1:
        yield Finding.of(DifferenceCode.RUNNING_AHEAD, Level.WARNING, **fields, count=now - expected)


def _rates(before: Checkpoint, optimizers: Sequence[Optimizer]) -> Iterator[Finding]:
    """Compare the learning rates of the groups, in their order."""
    rates: dict[int, dict[str, float]] = {}
    for name, value in before.settings.items():
        if (match := _RATE.search(name)) and is_number(value):
            rates.setdefault(int(match[1]), {})[match[2]] = float(value or 0)
    groups = [group.settings.get("lr") for each in optimizers for group in each.groups]
    seen = [rate for each in optimizers for rate in each.first_rates]
    if not rates or len(groups) != len(rates):
        yield Finding.of(DifferenceCode.RESUME_NO_STATE, Level.NOTE, what="learning rates")
        return
    is_first = len(seen) == len(groups) and _is_next_step(before, optimizers)
    for number, last in enumerate(groups):
        now = seen[number] if len(seen) == len(groups) else last
        rate, initial = rates.get(number, {}).get("lr"), rates.get(number, {}).get("initial_lr")
        if rate is None or not is_number(now) or not is_number(last):
            continue
        first, after = float(now or 0), float(last or 0)
        fields = {"number": number, "before": rate, "after": first}
        if not _is_equal(first, rate):
            begins = initial is not None and _is_equal(first, initial)
            code = DifferenceCode.RUNNING_RATE_BEGINS if begins else DifferenceCode.RUNNING_RATE
            yield Finding(code, Level.ERROR if begins or is_first else Level.WARNING, fields)
        elif is_first and not 1 / _MOST_CHANGE < (after or 1) / (first or 1) < _MOST_CHANGE:
            yield Finding(DifferenceCode.RUNNING_RATE_JUMPED, Level.WARNING, {**fields, "after": after})


def _is_next_step(before: Checkpoint, optimizers: Sequence[Optimizer]) -> bool:
    expected, steps = _steps_of(before), [each.steps for each in optimizers if each.steps is not None]
    return expected is not None and bool(steps) and max(steps) == expected + 1


def _is_equal(one: float, other: float) -> bool:
    return abs(one - other) <= _CLOSE * max(abs(one), abs(other))


def _random(before: Checkpoint, manifest: Manifest) -> Iterator[Finding]:
    """Look for the state of PyTorch's generator on the host among those in the checkpoint."""
    stored = {
        digest_of(values.astype(np.uint8).tobytes())
        for tensor in before.tensors.values()
        if tensor.kind is Kind.STATE and tensor.dtype == "uint8" and len(tensor.shape) == 1
        if (values := _values(tensor, _MAX_STATE_BYTES)) is not None
    }
    now = next((each.state for each in manifest.run.generators if each.name == "torch.cpu"), None)
    if not stored or now is None:
        yield Finding.of(DifferenceCode.RESUME_NO_STATE, Level.NOTE, what="random state")
    elif now not in stored:
        yield Finding(DifferenceCode.RUNNING_RANDOM)
