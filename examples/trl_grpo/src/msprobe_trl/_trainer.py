"""TRL's `GRPOTrainer`, recorded: its stages, its batches and its rewards, for ``msprobe rl`` and ``msprobe view``.

The trainer is not edited: three of its methods are extended. What is recorded is written by public parts of msprobe.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from trl import GRPOTrainer

from msprobe_core.plugin import registry
from msprobe_core.recording import Stage, StageRecorder, check_stage_config, read_fields, trainer_stages
from msprobe_core.rl import RunWriter
from msprobe_core.store import BatchLayout, Row, sample_id
from msprobe_trl.hooks import LOG_PROBS, NAME, UPDATE

VARIABLE = "MSPROBE_TRL"


class RecordedGRPOTrainer(GRPOTrainer):
    """Records what a configuration of stages selects; without one it is TRL's own trainer."""

    def __init__(self, *args: Any, record: str | Path | None = None, **kwargs: Any) -> None:
        """Make the trainer.

        Args:
            args: As of `GRPOTrainer`.
            record: Configuration, see docs/plugins.md; by default, the file that the variable `MSPROBE_TRL` names.
            kwargs: As of `GRPOTrainer`.

        Raises:
            ConfigError: the configuration is wrong.
        """
        super().__init__(*args, **kwargs)
        record = record or os.environ.get(VARIABLE)
        self._recorder: StageRecorder | None = None
        if record is None:
            return
        config = check_stage_config(read_fields(Path(record)), str(record), list(trainer_stages(NAME).stages))
        self._recorder = StageRecorder(config, registry().frameworks()["pytorch"].load())
        given = self.args
        self._writer = RunWriter(
            config.out, config=_settings(given), sampling={
                "temperature": given.temperature, "top_p": given.top_p, "top_k": given.top_k or -1, "do_sample": True,
            },
        )  # fmt: skip
        self._scores: torch.Tensor | None = None

    @property
    def _trainer_step(self) -> int:
        return self.state.global_step + 1

    def _is_batch_recorded(self, recorder: StageRecorder) -> bool:
        """Whether the batch of this step is written: by one process, which has its own share of the samples."""
        config = recorder.config
        return self.accelerator.is_main_process and (not config.steps or self._trainer_step in config.steps)

    @contextmanager
    def _stage(self, name: str, model: Any, batch: Mapping[str, Any]) -> Iterator[Stage | None]:
        assert self._recorder is not None
        with self._recorder.stage(name) as stage:
            if stage is not None:
                stage.begin(
                    [self.accelerator.unwrap_model(model)],
                    step=self._trainer_step,
                    policy_version=self._trainer_step - 1,
                )
                stage.micro_batch(_rows(batch), BatchLayout.PADDED)
            yield stage

    # --- the trainer's methods ------------------------------------------------------------------------------------

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._calculate_rewards(*args, **kwargs)
        if self._recorder is not None:
            with self._recorder.guard("rewards"):
                self._scores = (found * self.reward_weights.to(found.device)).nansum(dim=1).detach().cpu()
        return found

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        if self._recorder is not None and self.model.training and self._is_batch_recorded(self._recorder):
            with self._recorder.guard("batch"):
                self._record(batch)
        return batch

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        if self._recorder is None or not model.training:
            return super()._compute_loss(model, inputs)
        with self._stage(UPDATE, model, inputs) as stage:
            loss = super()._compute_loss(model, inputs)
            if stage is not None:
                stage.loss(loss.detach())
        return loss

    # --- what is recorded -----------------------------------------------------------------------------------------

    def _record(self, batch: Mapping[str, Any]) -> None:
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        length, counts = batch["completion_ids"].shape[1], batch["completion_mask"]
        tensors = {
            "prompts": batch["prompt_ids"], "responses": batch["completion_ids"], "attention_mask": mask,
            "response_mask": batch.get("tool_mask", counts) * counts,
            "advantages": batch["advantages"][:, None] * counts,
            "old_log_probs": self._log_probs(self.model, ids, mask, length, batch),
        }  # fmt: skip
        for name, own in (("ref_log_prob", "ref_per_token_logps"), ("rollout_log_probs", "sampling_per_token_logps")):
            if own in batch:
                tensors[name] = batch[own]
        if self._scores is not None:
            last = counts.sum(dim=1).clamp(min=1) - 1
            scores = torch.zeros(counts.shape)
            scores[torch.arange(len(counts)), last.cpu()] = self._scores
            tensors["rm_scores"] = tensors["token_level_scores"] = tensors["token_level_rewards"] = scores
            for row, score in zip(_rows(batch), self._scores.tolist(), strict=True):
                tokens = ids[row.row, row.offset : row.offset + row.length].tolist()
                self._writer.reward(self._trainer_step, tokens[: row.prompt_length], tokens[row.prompt_length :], score)
        uids = [row.prompt_id for row in _rows(batch)]
        self._writer.batch(self._trainer_step, tensors, uids=uids, policy_version=self._trainer_step - 1)

    def _log_probs(
        self, model: Any, ids: torch.Tensor, mask: torch.Tensor, length: int, batch: Mapping[str, Any]
    ) -> torch.Tensor:
        """Return log-probs of the responses, in a forward of their own: TRL leaves it out where it needs none.

        The training goes on with the random numbers that it would have had.
        """
        devices = {ids.device.index} - {None}
        with torch.random.fork_rng(devices), torch.no_grad(), self._stage(LOG_PROBS, model, batch):
            return self._get_per_token_logps_and_entropies(model, ids, mask, length)[0]


def _rows(batch: Mapping[str, Any]) -> Sequence[Row]:
    """Return where the samples of a batch are; prompts are padded on the left, responses on the right."""
    width = batch["prompt_ids"].shape[1]
    found: list[Row] = []
    for number in range(len(batch["prompt_ids"])):
        prompt = batch["prompt_ids"][number][batch["prompt_mask"][number] != 0].tolist()
        response = batch["completion_ids"][number][batch["completion_mask"][number] != 0].tolist()
        tokens = [*prompt, *response]
        found.append(Row(
            id=sample_id(tokens), prompt_id=sample_id(prompt), row=number, offset=width - len(prompt),
            length=len(tokens), prompt_length=len(prompt), total_length=len(tokens),
        ))  # fmt: skip
    return found


def _settings(args: Any) -> dict[str, Any]:
    """Return TRL's settings under the names that ``msprobe rl check`` knows."""
    return {
        "algorithm": {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": args.scale_rewards != "none",
                      "epsilon": 1e-4},
        "actor_rollout_ref": {
            "actor": {
                "clip_ratio": args.epsilon, "clip_ratio_low": args.epsilon,
                "clip_ratio_high": args.epsilon_high or args.epsilon, "use_kl_loss": args.beta != 0,
            },
            "rollout": {"n": args.num_generations, "temperature": args.temperature},
        },
    }  # fmt: skip
