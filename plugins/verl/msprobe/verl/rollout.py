"""Interface for serving engines: they report forwards with their requests, and the weights in use.

An engine that runs in a process of its own calls `watch_engine` with its model, once, and then::

    probe = watch_engine(model, replica=0)
    with probe.forward([Part("request 7", offset=0, length=5, start=0)], phase="prefill"):
        output = model(...)
    ...
    probe.finish("request 7", prompt_ids, response_ids)
    probe.weights_arrived(received, version)  # where the hop before loading is logged
    probe.weights_updated(version, model.named_parameters())
    probe.woke_up(model.named_parameters())  # after the engine has slept

If recording is not switched on, all of this does nothing. For vLLM and SGLang the plugin makes these calls itself.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from msprobe.verl._config import RolloutConfig
from msprobe.verl._process_recording import ProcessRecording
from msprobe_core.recording import Stage as OpenStage
from msprobe_core.rl import (
    VERSION,
    Hop,
    Parallel,
    RLStage,
    WeightDigests,
    WeightLog,
    WeightsFile,
    announced_policy_version,
    rank_directory,
    save_weights,
    sizes_of,
)
from msprobe_core.store import BatchLayout, CallPhase, Row, sample_id

__all__ = ["EngineProbe", "Part", "watch_engine"]


@dataclass(frozen=True)
class Part:
    """One request's part of a forward.

    Attributes:
        request: Name of the request in the engine.
        length: Number of its positions in this forward.
        start: Index within the request of the first of them; decoding begins after the prompt.
        offset: First position in the packed dimension, or in dimension 1.
        row: Index in dimension 0; 0 if requests are packed.
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
        self._arriving: WeightLog | None = None

    @property
    def policy_version(self) -> int | None:
        """Version of the weights in use."""
        return self._policy_version

    def set_policy_version(self, version: int | None) -> None:
        """Set the version of the weights in use, the number that verl passes to ``set_global_steps``."""
        if version != self._policy_version:
            self._end()
            self._policy_version = version
            self._wanted.clear()

    @contextmanager
    def forward(self, parts: Sequence[Part], phase: str = CallPhase.PREFILL.value) -> Generator[None, None, None]:
        """Record the forward that runs in the block, if the configuration selects it."""
        recording = ProcessRecording.current()
        if recording is not None:
            with recording.guard(RLStage.ROLLOUT.value):
                self._before(recording, parts, CallPhase(phase))
        yield

    def runs(self, request: str) -> bool:
        """Whether a request has taken part in a forward and has not finished."""
        return request in self._running

    def finish(self, request: str, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> None:
        """End a request; its token ids identify it in the recorded files from now on."""
        recording = ProcessRecording.current()
        if recording is None:
            return
        with recording.guard(RLStage.ROLLOUT.value):
            self._running.discard(request)
            self._num_decoded.pop(request, None)
            prompt, tokens = list(prompt_ids), [*prompt_ids, *response_ids]
            if self._stage is not None:
                identity = sample_id(tokens), sample_id(prompt), len(prompt), len(tokens)
                self._stage.name_samples(lambda row: _named(row, request, *identity))
            if not self._running:
                self._end()

    def weights_arrived(self, parameters: Iterable[tuple[str, Any]], version: int | None = None) -> None:
        """Log what arrives in a transfer, before it is loaded, if the configuration has the hop ``received``.

        Args:
            parameters: Names and tensors, or some of them: it may be called for each part of a transfer.
            version: See `weights_updated`, which ends the transfer.
        """
        recording = ProcessRecording.current()
        if recording is None or Hop.RECEIVED not in recording.config.hops:
            return
        with recording.guard(Hop.RECEIVED.value):
            coming = self._next_version(recording, version)
            if not recording.config.selects_hop(Hop.RECEIVED, coming, self._replica):
                return
            if self._arriving is None:
                self._arriving = WeightLog(recording.out, Hop.RECEIVED, rank=self._replica, model=self._model)
                self._arriving.sync(coming)
            for name, tensor in parameters:
                self._arriving.add(name, tensor)

    def woke_up(self, parameters: Iterable[tuple[str, Any]], parallel: Parallel | None = None) -> None:
        """Log the engine's parameters after sleep, if the configuration has the hop ``awake``.

        Args:
            parameters: Names and tensors of the engine's own model.
            parallel: How the engine shares the model among processes.
        """
        recording = ProcessRecording.current()
        if recording is None or self._policy_version is None:  # it has no weights of the trainer yet
            return
        with recording.guard(Hop.AWAKE.value):
            self._log(recording, Hop.AWAKE, self._policy_version, parameters, parallel)

    def _log(
        self,
        recording: ProcessRecording,
        hop: Hop,
        version: int,
        parameters: Iterable[tuple[str, Any]],
        parallel: Parallel | None,
    ) -> None:
        if not recording.config.selects_hop(hop, version, self._replica):
            return
        log = WeightLog(recording.out, hop, rank=self._replica, model=self._model, parallel=parallel)
        log.sync(version)
        for name, tensor in parameters:
            log.add(name, tensor)
        log.close()

    def _next_version(self, recording: ProcessRecording, version: int | None) -> int:
        if version is None:
            version = announced_policy_version(recording.out)
        if version is None:
            version = 0 if self._policy_version is None else self._policy_version + 1
        return version

    def weights_updated(
        self, version: int | None, parameters: Iterable[tuple[str, Any]], parallel: Parallel | None = None
    ) -> None:
        """Record digests of the engine's parameters after an update; they are read during this call.

        Args:
            version: Version of these weights, which are in use from now on. ``None`` if the engine does not know it:
                then it is the version that the sender announced in the directory of the run, or a count of updates
                from 0.
            parameters: Names and tensors of the engine's own model.
            parallel: How the engine shares the model among processes; for the hop ``loaded``.
        """
        recording = ProcessRecording.current()
        if recording is None:
            return
        with recording.guard(RLStage.WEIGHTS_RECEIVED.value):
            version = self._next_version(recording, version)
            self.set_policy_version(version)
            self._introduce(recording)
            arriving, self._arriving = self._arriving, None
            if arriving is not None:
                arriving.close()
            parameters = list(parameters)
            self._log(recording, Hop.LOADED, version, parameters, parallel)
            stage = RLStage.WEIGHTS_RECEIVED.value
            if not recording.config.selects_weights(stage, version, self._replica):
                return
            given = list(parameters)
            shapes = {name: recording.framework.describe(tensor).shape for name, tensor in given}
            digests = WeightDigests(recording.framework, sizes_of([self._model], shapes))
            for name, tensor in given:
                digests.take(name, tensor)
            save_weights(
                rank_directory(recording.out, stage, version, self._replica),
                WeightsFile(
                    version=VERSION, step=version, rank=self._replica, policy_version=version,
                    parameters=digests.finish(),
                ),
            )  # fmt: skip

    def _introduce(self, recording: ProcessRecording) -> None:
        if recording.role == "process":
            recording.act_as("rollout", self._replica)

    def _before(self, recording: ProcessRecording, parts: Sequence[Part], phase: CallPhase) -> None:
        self._introduce(recording)
        self._running.update(part.request for part in parts)
        is_wanted = self._wants(recording.config.rollout, parts, phase)
        if not is_wanted:
            if self._stage is not None and not self._is_paused:
                self._stage.pause()
                self._is_paused = True
            return
        # The step of these responses, as long as nothing runs ahead: the one after the last update.
        step = 1 if self._policy_version is None else self._policy_version + 1
        if self._stage is None:
            self._stage, self._is_paused = (
                recording.recorder.open(RLStage.ROLLOUT.value, has_fixed_parameters=True),
                False,
            )
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
    """Return a recorder for an engine's model; it does nothing if recording is not switched on.

    Args:
        model: A callable module that computes logits.
        replica: Number of the engine among those of the job; used in place of a rank.
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
