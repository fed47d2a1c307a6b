"""Log-probs computed again from recorded logits: by which temperature, over how many words.

They show which side computes other log-probs than its logits and the settings of the sampling make.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Finding as Said
from msprobe_core.rl.files import BatchFile, RLStage
from msprobe_core.rl.module_outputs import StageTensors
from msprobe_core.rl.recorded import Array, RecordedRun, rollouts_of
from msprobe_core.rl.rl_codes import CauseCode

_HEADS = ("lm_head", "output_layer", "logits_processor")
"""Last parts of the paths of modules whose output are logits."""

_MOST_TOKENS = 4096
_TOLERANCE = 2e-4
"""Largest root mean square difference, in nats, of log-probs that are those of the logits."""


class RefitKind(str, Enum):
    """What one side does otherwise."""

    TEMPERATURE = "temperature"
    VOCABULARY = "vocabulary"


@dataclass(frozen=True)
class Refit:
    """What explains the difference of two sides whose logits are recorded.

    Attributes:
        kind: What differs.
        explained: Share of the difference that goes away if one side is computed as the other is.
        sentence: Which side does what.
    """

    kind: RefitKind
    explained: float
    sentence: Said


@dataclass(frozen=True)
class Logits:
    """The logits from which the tokens of a batch were drawn, as one stage computed them.

    Attributes:
        shape: Of the batch's responses, ``[rows, positions]``.
        places: Rows and positions of the tokens, two vectors.
        tokens: Their ids.
        values: ``[tokens, words]``.
    """

    shape: tuple[int, ...]
    places: tuple[Array, Array]
    tokens: Array
    values: Array

    def of_tokens(self, temperature: float, num_words: int | None = None) -> Array:
        """Return the log-prob of each token, over the first words."""
        scaled = self.values[:, :num_words] / temperature
        largest = scaled.max(axis=1, keepdims=True)
        whole = np.log(np.exp(scaled - largest).sum(axis=1)) + largest[:, 0]
        return self.values[np.arange(self.tokens.size), self.tokens] / temperature - whole

    def log_probs(self, temperature: float) -> Array:
        """Return the log-probs as a tensor of the batch; NaN where there are no logits."""
        found = np.full(self.shape, np.nan)
        found[self.places] = self.of_tokens(temperature)
        return found


def logits_of(
    run: RecordedRun,
    stage: str,
    step: int,
    batch: BatchFile,
    tensors: Mapping[str, Array],
    *,
    minis: Collection[int] | None = None,
) -> Logits | None:
    """Return the recorded logits of a batch's responses; ``None`` if the stage has none.

    Args:
        run: The recorded run.
        stage: Name of the stage.
        step: The trainer's step.
        batch: Description of its batch.
        tensors: Tensors of the batch.
        minis: Mini-batches to use; all by default.
    """
    responses, mask = tensors.get("responses"), tensors.get("response_mask")
    if responses is None or mask is None:
        return None
    try:
        also = rollouts_of(run, step, [row.id for row in batch.samples]) if stage == RLStage.ROLLOUT.value else []
        own = StageTensors(run, stage, step, minis=minis, also=also)
        heads = [value for value in own.values if value.path.rpartition(".")[2] in _HEADS]
        if not heads:
            return None
        parts: list[tuple[int, int, int, Array]] = []
        for row, sample in enumerate(batch.samples):
            found = own.gather(heads[-1], sample.id)
            rows = {int(number): index for index, number in enumerate(found.number)}
            for position in np.flatnonzero(mask[row]):
                at = rows.get(sample.prompt_length + int(position) - 1)
                if at is not None and len(parts) < _MOST_TOKENS:
                    parts.append((row, int(position), int(responses[row, position]), found.values[at]))
    except (CompareError, DumpError):
        return None
    if not parts:
        return None
    places = np.array([part[0] for part in parts]), np.array([part[1] for part in parts])
    values = np.stack([part[3] for part in parts]).astype(np.float64)
    return Logits(responses.shape, places, np.array([part[2] for part in parts]), values)


@dataclass(frozen=True)
class _Side:
    """How one side's log-probs are made of its logits."""

    name: str
    logits: Logits
    recorded: Array
    temperature: float
    num_words: int

    @property
    def all_words(self) -> int:
        return self.logits.values.shape[1]


def refit_of(run: RecordedRun, step: int, batch: BatchFile, tensors: Mapping[str, Array]) -> Refit | None:
    """Return how the sides differ, if temperature or vocabulary explain it; ``None`` if the logits are not recorded."""
    given = (
        ("the trainer", RLStage.ACTOR_LOG_PROB, "old_log_probs"), ("the engine", RLStage.ROLLOUT, "rollout_log_probs"),
    )  # fmt: skip
    sides: list[_Side] = []
    for name, stage, tensor in given:
        logits = logits_of(run, stage.value, step, batch, tensors) if step in _steps(run, stage, step) else None
        side = None if logits is None else _fitted(name, logits, tensors[tensor], batch.sampling.temperature or 1.0)
        if side is None:
            return None
        sides.append(side)
    return _difference(sides[0], sides[1])


def _steps(run: RecordedRun, stage: RLStage, step: int) -> list[int]:
    return [step] if stage is RLStage.ROLLOUT else run.steps(stage.value)


def _fitted(name: str, logits: Logits, recorded: Array, temperature: float) -> _Side | None:
    """Return temperature and number of words by which logits make the recorded log-probs, the simplest that do."""
    own = recorded[logits.places].astype(np.float64)
    words = logits.values.shape[1]
    for scale in dict.fromkeys((temperature, 1.0)):
        if _is_near(logits.of_tokens(scale), own):
            return _Side(name, logits, own, scale, words)
        fewer = _num_words(logits, own, scale)
        if fewer < words and _is_near(logits.of_tokens(scale, fewer), own):
            return _Side(name, logits, own, scale, fewer)
    for scale in np.geomspace(0.1, 10, 201).tolist():
        fine = min((scale * f for f in np.linspace(0.98, 1.02, 9)), key=lambda s: _rms(logits.of_tokens(s), own))
        if _is_near(logits.of_tokens(fine), own):
            return _Side(name, logits, own, float(fine), words)
    return None


def _num_words(logits: Logits, own: Array, temperature: float) -> int:
    """Return the number of words over which the log-probs add up to 1, as most tokens show it."""
    scaled = logits.values / temperature
    sums = np.logaddexp.accumulate(scaled, axis=1)
    wanted = scaled[np.arange(own.size), logits.tokens] - own
    errors = np.abs(sums - wanted[:, None]).mean(axis=0)
    return int(errors.argmin()) + 1


def _rms(found: Array, own: Array) -> float:
    return float(np.sqrt(np.mean((found - own) ** 2)))


def _is_near(found: Array, own: Array) -> bool:
    return _rms(found, own) <= _TOLERANCE


def _of_both(code: CauseCode, sides: Sequence[Said]) -> Said:
    return Said(code, fields=dict(zip(("first", "second"), sides, strict=True)))


def _difference(trainer: _Side, engine: _Side) -> Refit | None:
    both = trainer, engine
    before = np.abs(trainer.recorded).sum() and _of_common(trainer, engine)
    if not before:
        return None
    whole, rest = before
    explained = max(0.0, 1 - rest / whole) if whole else 0.0
    if abs(trainer.temperature - engine.temperature) > 1e-3:
        divides = [Said.of(CauseCode.DIVIDES, name=side.name, temperature=side.temperature) for side in both]
        return Refit(RefitKind.TEMPERATURE, explained, _of_both(CauseCode.BOTH, divides))
    if trainer.num_words != engine.num_words:
        counts = [
            Said.of(CauseCode.COUNTS, name=side.name, count=side.num_words, total=side.all_words) for side in both
        ]
        return Refit(RefitKind.VOCABULARY, explained, _of_both(CauseCode.NOT_MASKED, counts))
    return None


def _of_common(trainer: _Side, engine: _Side) -> tuple[float, float] | None:
    """Return the sum of the differences, and what is left of it if the trainer's logits are treated as the engine's."""
    places = [list(zip(*(axis.tolist() for axis in side.logits.places), strict=True)) for side in (trainer, engine)]
    of_engine = {place: index for index, place in enumerate(places[1])}
    pairs = [(index, of_engine[place]) for index, place in enumerate(places[0]) if place in of_engine]
    if not pairs:
        return None
    own, other = (np.array(side) for side in zip(*pairs, strict=True))
    recorded = engine.recorded[other]
    made = trainer.logits.of_tokens(engine.temperature, engine.num_words)[own]
    return float(np.abs(trainer.recorded[own] - recorded).sum()), float(np.abs(made - recorded).sum())
