"""What a serving engine calls to be recorded: forwards with the requests in them, and the weights that it uses.

An engine that runs in a process of its own calls `watch_engine` with its model, once, and then::

    probe = watch_engine(model, replica=0)
    with probe.forward([Part("request 7", offset=0, length=5, start=0)], phase="prefill"):
        output = model(...)
    ...
    probe.finish("request 7", prompt_ids, response_ids)
    probe.weights_updated(version, model.named_parameters())

Where nothing is switched on all of this does nothing. For vLLM and SGLang the plugin makes these calls itself.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from msprobe.verl._config import RolloutConfig
from msprobe.verl._files import (
    VERSION,
    CallPhase,
    Row,
    Stage,
    WeightsFile,
    announced_policy_version,
    rank_directory,
    sample_id,
    save_weights,
)
from msprobe.verl._probe import Probe
from msprobe.verl._weights import WeightDigests
from msprobe_core.capture.stages import Stage as OpenStage
from msprobe_core.store.samples import BatchLayout

__all__ = ["EngineProbe", "Part", "watch_engine"]


@dataclass(frozen=True)
class Part:
    """The part of a forward that one request has.

    Attributes:
        request: Its name in the engine.
        length: Positions of it in this forward.
        start: Position in the request of the first of them; decoding begins behind the prompt.
        offset: First position in the packed dimension, or in dimension 1.
        row: Index in dimension 0; 0 where requests are packed.
    """

    request: str
    length: int
    start: int = 0
    offset: int = 0
    row: int = 0


class EngineProbe:
    """Records one model of one replica."""

    def __init__(self, model: Any, replica: int) -> None:
        self._model = model
        self._replica = replica
        self._policy_version: int | None = None
        self._stage: OpenStage | None = None
        self._is_paused = False
        self._num_decoded: dict[str, int] = {}
        self._running: set[str] = set()
        self._wanted: set[str] = set()
        self._step = 0

    @property
    def policy_version(self) -> int | None:
        """Version of the weights in use."""
        return self._policy_version

    def set_policy_version(self, version: int | None) -> None:
        """Say which weights are in use: the number that verl's ``set_global_steps`` has."""
        if version != self._policy_version:
            self._end()
            self._policy_version = version
            self._wanted.clear()

    @contextmanager
    def forward(self, parts: Sequence[Part], phase: str = CallPhase.PREFILL.value) -> Generator[None, None, None]:
        """Record the forward that runs in the block, if it is one of those that the configuration asks for."""
        probe = Probe.current()
        if probe is not None:
            with probe.guard(Stage.ROLLOUT.value):
                self._before(probe, parts, CallPhase(phase))
        yield

    def runs(self, request: str) -> bool:
        """Whether a request has been in a forward, and is not done."""
        return request in self._running

    def finish(self, request: str, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> None:
        """Say that a request is done, and what its tokens are: by them it is known from now on."""
        probe = Probe.current()
        if probe is None:
            return
        with probe.guard(Stage.ROLLOUT.value):
            self._running.discard(request)
            self._num_decoded.pop(request, None)
            prompt, tokens = list(prompt_ids), [*prompt_ids, *response_ids]
            if self._stage is not None:
                identity = sample_id(tokens), sample_id(prompt), len(prompt), len(tokens)
                self._stage.name_samples(lambda row: _named(row, request, *identity))
            if not self._running:
                self._end()

    def weights_updated(self, version: int | None, parameters: Iterable[tuple[str, Any]]) -> None:
        """Take what the engine's parameters hold now, behind an update; they are read here.

        Args:
            version: Of the weights, which are in use from now on; ``None`` where the engine is not told, and takes what
                the sender has announced in the directory of the run, or counts updates from 0.
            parameters: Names and tensors of the engine's own model.
        """
        probe = Probe.current()
        if probe is None:
            return
        with probe.guard(Stage.WEIGHTS_RECEIVED.value):
            if version is None:
                version = announced_policy_version(probe.out)
            if version is None:
                version = 0 if self._policy_version is None else self._policy_version + 1
            self.set_policy_version(version)
            self._introduce(probe)
            stage = Stage.WEIGHTS_RECEIVED.value
            if not probe.config.selects_weights(stage, version, self._replica):
                return
            digests = WeightDigests(probe.framework)
            for name, tensor in parameters:
                digests.take(name, tensor)
            save_weights(
                rank_directory(probe.out, stage, version, self._replica),
                WeightsFile(
                    version=VERSION, step=version, rank=self._replica, policy_version=version,
                    parameters=digests.finish(),
                ),
            )  # fmt: skip

    def _introduce(self, probe: Probe) -> None:
        if probe.role == "process":
            probe.act_as("rollout", self._replica)

    def _before(self, probe: Probe, parts: Sequence[Part], phase: CallPhase) -> None:
        self._introduce(probe)
        self._running.update(part.request for part in parts)
        is_wanted = self._wants(probe.config.rollout, parts, phase)
        if not is_wanted:
            if self._stage is not None and not self._is_paused:
                self._stage.pause()
                self._is_paused = True
            return
        # The step that these responses are for, while nothing runs ahead: the one behind the last update.
        step = 1 if self._policy_version is None else self._policy_version + 1
        if self._stage is None:
            self._stage, self._is_paused = probe.recorder.open(Stage.ROLLOUT.value), False
            self._stage.begin([self._model], step=step, policy_version=self._policy_version, rank=self._replica)
        elif self._is_paused:
            self._stage.resume([self._model])
            self._is_paused = False
        self._stage.micro_batch([_pending(part) for part in parts], BatchLayout.REQUEST, phase)

    def _wants(self, limits: RolloutConfig, parts: Sequence[Part], phase: CallPhase) -> bool:
        is_wanted = False
        for part in parts:
            if part.request not in self._wanted:
                if limits.requests >= 0 and len(self._wanted) >= limits.requests:
                    continue
                self._wanted.add(part.request)
            if phase is CallPhase.PREFILL:
                is_wanted |= limits.prefill
            else:
                number = self._num_decoded.get(part.request, 0)
                self._num_decoded[part.request] = number + 1
                is_wanted |= limits.decode_steps < 0 or number < limits.decode_steps
        return is_wanted

    def _end(self) -> None:
        if self._stage is not None:
            self._stage.end()
            self._stage = None


def watch_engine(model: Any, replica: int = 0) -> EngineProbe:
    """Return what records an engine's model; it does nothing where recording is not switched on.

    Args:
        model: What computes logits, as one callable module.
        replica: Number of the engine among those of the job: it takes the place of a rank.
    """
    return EngineProbe(model, replica)


_PENDING = "request "


def _pending(part: Part) -> Row:
    return Row(
        id=_PENDING + part.request, prompt_id="", row=part.row, offset=part.offset, length=part.length, start=part.start
    )


def _named(row: Row, request: str, identity: str, prompt: str, prompt_length: int, total_length: int) -> Row:
    if row.id != _PENDING + request:
        return row
    return msgspec.structs.replace(
        row, id=identity, prompt_id=prompt, prompt_length=prompt_length, total_length=total_length
    )
