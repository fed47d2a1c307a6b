"""Access to recorded runs of RL trainers, for comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Finding
from msprobe_core.protocols.storage import Dump
from msprobe_core.rl.detail_codes import RunNoteCode
from msprobe_core.rl.files import (
    WEIGHTS_FILE,
    BatchFile,
    RLStage,
    RunInfo,
    WeightsFile,
    load_batch,
    load_run,
    load_weights,
    stages_of,
    steps_of,
    trainer_directory,
)
from msprobe_core.store import SAMPLES_FILE, StageSamples, ending_of, load_samples, sample_id, sentence, units_of_step
from msprobe_core.store.reading import check_exists, read_dump

Array: TypeAlias = NDArray[Any]
Progress: TypeAlias = Callable[[int, int, str], None]
"""Called before a part of a comparison: with the number of parts that are done, that of all, and the part's name."""


@dataclass(frozen=True)
class RecordedRun:
    """The directory of a recorded run.

    Attributes:
        path: The directory.
        info: Content of its ``run.json``.
        stages: Recorded stages, in their order.
        incomplete: Which of the dumps read so far ended early or are damaged.
    """

    path: Path
    info: RunInfo
    stages: tuple[str, ...]
    incomplete: list[Finding] = field(default_factory=list[Finding], compare=False)

    def dump(self, directory: Path) -> Dump:
        """Return the dump of one rank of a stage; note if it is incomplete.

        Raises:
            CompareError: its format is not known.
            DumpError: it cannot be read.
        """
        dump = read_dump(directory)
        if not (ending := ending_of(dump)).is_whole:
            self.note_incomplete(directory.parents[1].name, [sentence(directory, ending)])
        return dump

    def note_incomplete(self, stage: str, endings: Iterable[Finding]) -> None:
        """Note that dumps of a stage are incomplete."""
        self._note(Finding.of(RunNoteCode.ENDED, stage=stage, ending=ending) for ending in endings)

    def _note(self, found: Iterable[Finding]) -> None:
        self.incomplete.extend(each for each in found if each not in self.incomplete)

    def steps(self, stage: str) -> list[int]:
        """Return the steps of a stage; empty if it was not recorded."""
        return sorted(steps_of(self.path, stage))

    def ranks(self, stage: str, step: int) -> Mapping[int, Path]:
        """Return the directories of a stage's ranks in a step, from the latest run in it; empty if there is none."""
        directory = self.path / stage / f"step{step}"
        if not directory.is_dir():
            return {}
        found = units_of_step(directory)
        self._note(found.notes)
        return {unit.rank: unit.directory for unit in found.units if unit.rank is not None}

    def batch(self, step: int) -> tuple[BatchFile, dict[str, Array]]:
        """Return the trainer's batch of a step.

        Raises:
            DumpError: it is missing, or cannot be read.
        """
        directory = trainer_directory(self.path, step)
        batch, tensors = load_batch(directory)
        for name, tensor in tensors.items():
            if batch.samples and (not tensor.ndim or tensor.shape[0] != len(batch.samples)):
                raise DumpError(
                    f"{directory}: batch.json names {len(batch.samples)} samples and the tensor '{name}' is "
                    f"{list(tensor.shape)}; the two are not of one batch"
                )
        return batch, tensors

    def samples(self, stage: str, step: int) -> dict[int, StageSamples]:
        """Return the samples of a stage, by rank; ranks without ``samples.json`` are left out.

        Raises:
            DumpError: one cannot be read.
        """
        ranks = self.ranks(stage, step)
        return {rank: load_samples(path) for rank, path in ranks.items() if (path / SAMPLES_FILE).exists()}

    def weights(self, stage: RLStage, step: int) -> dict[int, WeightsFile]:
        """Return the weights that were sent or received in a step, by rank; empty if they were not recorded.

        Raises:
            DumpError: a file cannot be read.
        """
        ranks = self.ranks(stage.value, step)
        return {rank: load_weights(path) for rank, path in ranks.items() if (path / WEIGHTS_FILE).exists()}

    def setting(self, path: str) -> Any:
        """Return a value of the trainer's configuration by its path with dots; ``None`` if there is none."""
        found: Any = self.info.config
        for part in path.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return found  # pyright: ignore[reportUnknownVariableType]

    def number(self, path: str) -> float | None:
        """Return a number of the trainer's configuration; ``None`` if there is none."""
        found = self.setting(path)
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None

    def dtypes(self) -> set[str]:
        """Return the dtypes of the parameters, as far as they are recorded.

        Raises:
            DumpError: a file cannot be read.
        """
        return {
            weight.dtype
            for stage in (RLStage.WEIGHTS_SENT, RLStage.WEIGHTS_RECEIVED)
            for step in self.steps(stage.value)[:1]
            for file in self.weights(stage, step).values()
            for weight in file.parameters
        }

    def need(self, stage: str, why: str) -> list[int]:
        """Return the steps of a stage that a comparison requires.

        Raises:
            CompareError: the stage was not recorded.
        """
        steps = self.steps(stage)
        if not steps:
            raise CompareError(
                f"{self.path}: holds nothing of {stage}, {why}; it has {', '.join(self.stages) or 'no stage'}. "
                f"Record again with {stage} among 'stages'"
            )
        return steps


def open_run(path: Path) -> RecordedRun:
    """Return a recorded run.

    Raises:
        CompareError: there is nothing at ``path``.
        DumpError: it is not the directory of a recorded run.
    """
    check_exists(path)
    if not path.is_dir():
        raise DumpError(f"{path}: is a file; give the directory that 'out' named when the run was recorded")
    info = load_run(path)
    return RecordedRun(path, info, tuple(stages_of(path)))


def chosen_steps(available: Collection[int], asked: Collection[int], what: str) -> list[int]:
    """Return the steps to compare.

    Args:
        available: Existing steps.
        asked: Requested steps; empty for all.
        what: Owner of the steps, for messages.

    Raises:
        CompareError: a requested step does not exist.
    """
    missing = sorted(set(asked) - set(available))
    if missing:
        known = ", ".join(map(str, sorted(available))) or "none"
        raise CompareError(f"{what} has no step {missing[0]}; recorded are {known}")
    return sorted(asked or available)


def in_turn(steps: Sequence[int], progress: Progress | None) -> Iterator[int]:
    """Yield steps that are compared one after the other, and say so before each."""
    for number, step in enumerate(steps):
        if progress is not None:
            progress(number, len(steps), f"step {step}")
        yield step


def rollouts_of(run: RecordedRun, step: int, samples: Collection[str]) -> list[int]:
    """Return the steps under which the rollouts of samples are recorded: earlier ones where generation runs ahead.

    Rollouts are recorded under the step that follows the update whose weights they have.

    Raises:
        DumpError: ``samples.json`` of a replica cannot be read.
    """
    missing, found = set(samples), list[int]()
    for earlier in sorted((s for s in run.steps(RLStage.ROLLOUT.value) if s <= step), reverse=True):
        own = {
            row.id
            for of_rank in run.samples(RLStage.ROLLOUT.value, earlier).values()
            for call in of_rank.micro_batches
            for row in call.rows
        }
        if missing & own:
            found.append(earlier)
            missing -= own
        if not missing:
            break
    return found


def retokenised_rows(
    run: RecordedRun, step: int, batch: BatchFile, tensors: Mapping[str, Array] | None = None
) -> list[bool] | None:
    """Return for each row of a batch whether its tokens differ from those that the engine generated.

    That is so if the engine generated something for the row's prompt that no row has. Each turn of a conversation is a
    request of its own, whose prompt is everything before it. ``None`` if the generated tokens were not recorded.

    Raises:
        DumpError: ``samples.json`` of a replica cannot be read.
    """
    generated: Counter[tuple[str, str]] = Counter()
    for earlier in run.steps(RLStage.ROLLOUT.value):
        if earlier > step:
            continue
        ids = {
            (row.prompt_id, row.id)
            for samples in run.samples(RLStage.ROLLOUT.value, earlier).values()
            for call in samples.micro_batches
            for row in call.rows
        }
        generated.update(ids)
    if not generated:
        return None
    own = [_turns(batch, tensors or {}, row) for row in range(len(batch.samples))]
    of_rows = {turn for turns in own for turn in turns}
    lost = {prompt for prompt, sample in generated if (prompt, sample) not in of_rows}
    return [any(turn not in generated and turn[0] in lost for turn in turns) for turns in own]


def _turns(batch: BatchFile, tensors: Mapping[str, Array], row: int) -> list[tuple[str, str]]:
    """Return for each turn of a row the identities of all tokens before it, and of those up to its end."""
    sample = batch.samples[row]
    whole = [(sample.prompt_id, sample.id)]
    ids, mask, counts = (tensors.get(name) for name in ("input_ids", "attention_mask", "response_mask"))
    if ids is None or mask is None or counts is None or counts.shape[1] > ids.shape[1]:
        return whole
    counts = np.asarray(counts[row]) != 0
    edges: Any = np.flatnonzero(np.diff(np.concatenate([[0], counts, [0]])))
    edges = edges.reshape(-1, 2)
    if len(edges) < 2:
        return whole
    shown, begin = np.asarray(mask[row]) != 0, ids.shape[1] - counts.size
    return [tuple(sample_id(ids[row][: begin + end][shown[: begin + end]]) for end in turn) for turn in edges.tolist()]  # pyright: ignore[reportReturnType]  # pairs, since edges come in pairs


def trainer_version(run: RecordedRun, step: int) -> int | None:
    """Return the version of the weights that the trainer begins a step with: that of the last transfer before it.

    ``None`` if no transfer is recorded.
    """
    return max((sent for sent in run.steps(RLStage.WEIGHTS_SENT.value) if sent < step), default=None)


def policy_versions(run: RecordedRun, step: int, batch: BatchFile) -> list[int | None] | None:
    """Return the version of the policy that generated each row; ``None`` if no version was recorded.

    Raises:
        DumpError: ``samples.json`` of a replica cannot be read.
    """
    found: dict[str, int] = {}
    for earlier in reversed(rollouts_of(run, step, [row.id for row in batch.samples])):
        for samples in run.samples(RLStage.ROLLOUT.value, earlier).values():
            if samples.policy_version is not None:
                version = samples.policy_version
                found.update({row.id: version for call in samples.micro_batches for row in call.rows})
    whole = batch.policy_version
    default = whole.min if whole is not None and whole.min == whole.max else None
    versions = [found.get(row.id, default) for row in batch.samples]
    return versions if any(version is not None for version in versions) else None
