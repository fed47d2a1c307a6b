"""The first call of a step that gives two results for one input, from a recording of the step and its repetitions.

The rule is that of the live check by checksums: equal inputs and different outputs. Where the first difference is in
an input, no recorded call has made it, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe_core import names
from msprobe_core.capture.features.reference_check import RecordedSums, TensorSum, are_different, calls_in
from msprobe_core.config.repetition import REPEATS_DIRECTORY
from msprobe_core.errors import CompareError, NoValuesError
from msprobe_core.model import Phase
from msprobe_core.store.ending import ending_of
from msprobe_core.store.layout import find_steps, find_units
from msprobe_core.store.reading import read_dump


@dataclass(frozen=True)
class Varying:
    """A call that differs between the runs of a step.

    Attributes:
        entry: Its entry name.
        outputs: Paths of the outputs and gradients that differ.
        inputs: Paths of the inputs and parameters that differ; empty if it gives two results for one input.
    """

    entry: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class StepRepeats:
    """What the repetitions of one step on one rank show.

    Attributes:
        step: Number of the step.
        unit: Name of the rank's directory.
        num_runs: Number of runs, the first one included.
        num_calls: Number of calls that were compared.
        first: The first call that differs, in execution order; ``None`` if all are equal.
        before: The call that finished before it.
        causes: Calls that give several results for one input, in execution order.
        lone: Names of calls that only some of the runs make.
        incomplete: Runs whose recording ended early.
    """

    step: int
    unit: str
    num_runs: int
    num_calls: int
    first: Varying | None
    before: str | None
    causes: Sequence[str]
    lone: Sequence[str]
    incomplete: Sequence[str]


def read_repeats(run: Path) -> Iterator[StepRepeats]:
    """Yield what the repetitions of each step of a run show.

    Raises:
        CompareError: there are none, or they have no checksums.
        DumpError: a dump cannot be read.
    """
    repetitions = sorted((run / REPEATS_DIRECTORY).glob("run*"))
    if not repetitions:
        raise CompareError(f"{run / REPEATS_DIRECTORY}: has no repetitions; record a step inside of `repeats`")
    for step in sorted(find_steps(run)):
        for unit in find_units(run / f"step{step}"):
            others = [each / f"step{step}" / unit.directory.name for each in repetitions]
            if there := [each for each in others if each.is_dir()]:
                yield _read(step, unit.directory, there)


def _read(step: int, directory: Path, others: Sequence[Path]) -> StepRepeats:
    dumps = [read_dump(each) for each in (directory, *others)]
    golden, *repetitions = [calls_in(dump) for dump in dumps]
    if not any(each.checksum for call in golden.values() for each in (*call.inputs.values(), *call.outputs.values())):
        raise NoValuesError(f"{directory}: has no checksums; record it with summary_mode hash")
    entries = list(golden)
    varying = [found for entry in entries if (found := _varying(entry, golden[entry], repetitions)) is not None]
    first = varying[0] if varying else None
    position = entries.index(first.entry) if first is not None else 0
    return StepRepeats(
        step=step,
        unit=directory.name,
        num_runs=len(dumps),
        num_calls=len(entries),
        first=first,
        before=entries[position - 1] if position else None,
        causes=_causes(varying),
        lone=sorted({name for each in repetitions for name in each.keys() ^ golden.keys()}),
        incomplete=[str(dump.path) for dump in dumps if not ending_of(dump).is_whole],
    )


def _causes(varying: Sequence[Varying]) -> list[str]:
    """Return the calls with equal inputs; a backward was given what its forward was given, too."""
    given_other = {each.entry for each in varying if each.inputs}
    return [
        each.entry
        for i, each in enumerate(varying)
        if each.outputs
        and each.entry not in given_other
        and names.forward_of(each.entry) not in given_other
        and (i == 0 or names.parse_entry(names.numbered_gradients(each.entry)).phase is not Phase.PARAMETERS_GRAD)
    ]


def _varying(entry: str, call: RecordedSums, repetitions: Sequence[Mapping[str, RecordedSums]]) -> Varying | None:
    others = [found for each in repetitions if (found := each.get(entry)) is not None]
    outputs = [_differing({**call.outputs, **call.gradients}, {**each.outputs, **each.gradients}) for each in others]
    inputs = [_differing({**call.inputs, **call.parameters}, {**each.inputs, **each.parameters}) for each in others]
    found = Varying(entry, _sorted(outputs), _sorted(inputs))
    return found if found.outputs or found.inputs else None


def _differing(one: Mapping[str, TensorSum], other: Mapping[str, TensorSum]) -> set[str]:
    return {
        path
        for path, found in one.items()
        if path in other and (found.shape != other[path].shape or are_different(found, other[path]))
    }


def _sorted(several: Iterable[set[str]]) -> tuple[str, ...]:
    return tuple(sorted({path for paths in several for path in paths}))
