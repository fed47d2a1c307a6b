"""Batches, rewards and weights of any RL trainer, written as verl's are recorded, so that all comparisons apply.

A trainer that has no plugin writes what it has by itself::

    run = RunWriter("runs/a", config={"algorithm": {"adv_estimator": "grpo"}})
    run.batch(step, {"prompts": …, "responses": …, "attention_mask": …, "response_mask": …, "old_log_probs": …})
    run.reward(step, prompt_ids, response_ids, score)
    run.weights_sent(step, model.named_parameters(), model=model)
    run.weights_received(step, engine.named_parameters(), model=engine)

Stages of modules are recorded with `msprobe_core.recording.StageRecorder` into the same directory.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe_core.capture.framework_choice import find_framework
from msprobe_core.errors import StoreError
from msprobe_core.rl.files import (
    VERSION,
    BatchFile,
    BatchRow,
    PolicyVersions,
    Reward,
    RewardWriter,
    RLStage,
    RunInfo,
    Sampling,
    WeightsFile,
    rank_directory,
    save_batch,
    save_run,
    save_weights,
    trainer_directory,
)
from msprobe_core.rl.routing_files import RoutedTokens, packed, save_routing
from msprobe_core.rl.weight_digests import WeightDigests, sizes_of
from msprobe_core.store import sample_id

_IDENTITY = ("prompts", "responses", "attention_mask")
"""Tensors that identify samples."""


class RunWriter:
    """Writes a run. The methods of one object may be called in any order; several processes may write one run."""

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        config: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        framework: str = "pytorch",
    ) -> None:
        """Begin a run.

        Args:
            out: Directory of the run.
            config: The trainer's settings under verl's names, as far as they exist, for `msprobe rl check`; given by
                one process only.
            sampling: ``temperature``, ``top_p``, ``top_k``, ``do_sample`` and ``logprobs_mode`` of the rollout.
            framework: The framework of the weights.

        Raises:
            StoreError: the directory cannot be written.
        """
        self._out = Path(out)
        self._sampling = Sampling(**(sampling or {}))
        self._framework = framework
        self._rewards: dict[int, RewardWriter] = {}
        self._routings: dict[tuple[int, str, int], int] = {}
        if config is not None:
            save_run(self._out, RunInfo(config=dict(config), sampling=self._sampling))

    def batch(
        self,
        step: int,
        tensors: Mapping[str, Any],
        *,
        uids: Sequence[str] | None = None,
        metrics: Mapping[str, float] | None = None,
        policy_version: int | None = None,
    ) -> None:
        """Write the batch of a step.

        Args:
            step: The trainer's step.
            tensors: Tensors or arrays ``[rows, …]`` by verl's names. ``prompts`` are padded on the left, ``responses``
                on the right; with ``attention_mask`` over both they identify the samples.
            uids: For each row, what it shares with the other samples of its prompt.
            metrics: Metrics of the step under verl's names.
            policy_version: Version of the weights that drew the responses.

        Raises:
            StoreError: a tensor that identifies samples is missing, or a file cannot be written.
        """
        arrays = {name: _array(values) for name, values in tensors.items()}
        samples = _samples(arrays, uids, step)
        versions = None if policy_version is None else PolicyVersions(min=policy_version, max=policy_version)
        file = BatchFile(
            version=VERSION, step=step, rows=len(samples), sampling=self._sampling, policy_version=versions,
            metrics=dict(metrics or {}), samples=tuple(samples),
        )  # fmt: skip
        whole = {"input_ids": np.concatenate([arrays["prompts"], arrays["responses"]], axis=1)}
        save_batch(trainer_directory(self._out, step), file, whole | arrays)

    def reward(
        self, step: int, prompt_ids: Sequence[int], response_ids: Sequence[int], score: float, **extra: float | str
    ) -> None:
        """Write what the reward function returned for one sample.

        Raises:
            StoreError: the file cannot be written.
        """
        writer = self._rewards.get(step)
        if writer is None:
            writer = RewardWriter(self._out, step, f"{platform.node() or 'host'}-{os.getpid()}")
            self._rewards[step] = writer
        tokens = [*prompt_ids, *response_ids]
        writer.add(Reward(id=sample_id(tokens), prompt_id=sample_id(prompt_ids), score=float(score), extra=dict(extra)))

    def routing(
        self, step: int, stage: RLStage, routed: RoutedTokens, tensors: Mapping[str, Any], *, rank: int = 0
    ) -> None:
        """Write which experts a model with experts chose; a stage may give several parts, such as micro-batches.

        Args:
            step: The trainer's step.
            stage: Which model chose: the engine in `RLStage.ROLLOUT`, the trainer in the stage that it computes.
            routed: The choices of padded rows, or of the tokens that are no padding, one after the other.
            tensors: ``prompts``, ``responses`` and ``attention_mask`` of these rows, as `batch` gets them.
            rank: Rank, or replica.

        Raises:
            StoreError: shapes contradict each other, or a file cannot be written.
        """
        missing = [name for name in _IDENTITY if name not in tensors]
        if missing:
            raise StoreError(f"a routing of step {step} has no {missing[0]!r}, so its samples have no identity; add it")
        found = packed(routed, *(_array(tensors[name]) for name in _IDENTITY))
        key = (step, stage.value, rank)
        number = self._routings[key] = self._routings.get(key, -1) + 1
        save_routing(self._out, stage.value, step, found, rank=rank, number=number)

    def weights_sent(self, step: int, named: Iterable[tuple[str, Any]], *, rank: int = 0, model: Any = None) -> None:
        """Write digests of the weights that a trainer sends at the end of a step; step 0 is before the first one.

        Args:
            step: The trainer's step.
            named: Names and tensors, read one by one.
            rank: Rank of the sender.
            model: The model, whose ``config`` says how fused parameters are taken apart.

        Raises:
            PluginError: the framework's plugin is missing.
            StoreError: the file cannot be written.
        """
        self._weights(RLStage.WEIGHTS_SENT, step, named, rank, model)

    def weights_received(
        self, step: int, named: Iterable[tuple[str, Any]], *, replica: int = 0, model: Any = None
    ) -> None:
        """Write digests of the weights that an engine then has; see `weights_sent`."""
        self._weights(RLStage.WEIGHTS_RECEIVED, step, named, replica, model)

    def _weights(self, stage: RLStage, step: int, named: Iterable[tuple[str, Any]], rank: int, model: Any) -> None:
        framework = find_framework(self._framework, None)
        given = list(named)
        shapes = {name: framework.describe(tensor).shape for name, tensor in given}
        sizes = sizes_of([] if model is None else [model], shapes)
        digests = WeightDigests(framework, sizes, is_sender=stage is RLStage.WEIGHTS_SENT)
        for name, tensor in given:
            digests.take(name, tensor)
        file = WeightsFile(version=VERSION, step=step, rank=rank, policy_version=step, parameters=digests.finish())
        save_weights(rank_directory(self._out, stage.value, step, rank), file)


def _array(values: Any) -> NDArray[Any]:
    if hasattr(values, "detach"):  # a tensor of PyTorch
        values = values.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()
    return np.array(values)


def _samples(arrays: Mapping[str, NDArray[Any]], uids: Sequence[str] | None, step: int) -> list[BatchRow]:
    missing = [name for name in _IDENTITY if name not in arrays]
    if missing:
        raise StoreError(f"the batch of step {step} has no {missing[0]!r}, so its samples have no identity; add it")
    prompts: Any
    responses: Any
    mask: Any
    prompts, responses, mask = (arrays[name] for name in _IDENTITY)
    width = prompts.shape[1]
    if mask.shape != (len(prompts), width + responses.shape[1]):
        raise StoreError(
            f"the attention_mask of step {step} is {list(mask.shape)}; it must cover prompts {list(prompts.shape)} and "
            f"responses {list(responses.shape)}"
        )
    rows: list[BatchRow] = []
    whole: Any = np.concatenate([prompts, responses], axis=1)
    for number, (ids, shown) in enumerate(zip(whole, mask != 0, strict=True)):
        prompt = ids[:width][shown[:width]]
        rows.append(
            BatchRow(
                id=sample_id(ids[shown]), prompt_id=sample_id(prompt), uid=None if uids is None else str(uids[number]),
                prompt_length=len(prompt), total_length=int(shown.sum()),
            )
        )  # fmt: skip
    return rows
