"""``msprobe verl check``: a batch as verl makes it agrees, and each planted fault is named first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rl_runs import BatchLayout, make_weights, updated, write_weights

from msprobe_core.rl.advantages import gae, grpo
from msprobe_core.rl.files import (
    BatchFile,
    BatchRow,
    Reward,
    RewardWriter,
    RunInfo,
    rank_directory,
    save_batch,
    save_run,
    trainer_directory,
)
from msprobe_core.rl.invariants_outcome import check_run
from msprobe_core.rl.recorded import open_run
from msprobe_core.rl.weights_outcome import compare_weights
from msprobe_core.store import (
    CallPhase,
    MicroBatch,
    MicroLoss,
    Row,
    StageSamples,
    StageUpdates,
    save_samples,
    save_updates,
)

Batch = dict[str, np.ndarray]
ROWS, PROMPT, RESPONSE = 8, 4, 6
KL_SIZE = 0.1


def config(estimator: str = "grpo") -> dict[str, object]:
    return {
        "algorithm": {"adv_estimator": estimator, "gamma": 1.0, "lam": 0.95, "norm_adv_by_std_in_grpo": True},
        "actor_rollout_ref": {
            "actor": {
                "ppo_mini_batch_size": ROWS // 2, "ppo_epochs": 1, "use_kl_loss": True, "kl_loss_coef": KL_SIZE,
                "kl_loss_type": "low_var_kl", "loss_agg_mode": "token-mean", "entropy_coeff": 0.0, "clip_ratio": 0.2,
            },
            "rollout": {"n": 2},
        },
    }  # fmt: skip


class Recording:
    """One run of three steps, of which the last can be changed before it is written."""

    def __init__(self, estimator: str = "grpo") -> None:
        self.config = config(estimator)
        self.estimator = estimator
        self.scale = 1.0
        self.reward_order = np.arange(ROWS)
        self.is_export_stale = False
        self.change: Callable[[Batch, dict[str, float | None]], None] = lambda *_: None

    def write(self, root: Path) -> Path:
        save_run(root, RunInfo(config=self.config))
        weights = make_weights()
        write_weights(root, "update_weights_send", 0, weights, "float32")
        for step in (1, 2, 3):
            batch, metrics = self.batch(step)
            if step == 3:
                self.change(batch, metrics)
            self.write_step(root, step, batch, metrics, changed=step == 3)
            weights = weights if self.is_export_stale and step == 3 else updated(weights, step)
            write_weights(root, "update_weights_send", step, weights, "float32")
        return root

    def batch(self, step: int) -> tuple[Batch, dict[str, float | None]]:
        random = np.random.default_rng(step)
        prompts = random.integers(5, 90, (ROWS, PROMPT))
        responses = random.integers(5, 90, (ROWS, RESPONSE))
        lengths = random.integers(3, RESPONSE + 1, ROWS)
        mask = (np.arange(RESPONSE) < lengths[:, None]).astype(np.int64)
        before = (np.arange(PROMPT) >= random.integers(0, 3, ROWS)[:, None]).astype(np.int64)
        whole = np.concatenate([before, mask], axis=1)
        old = -3 - random.random((ROWS, RESPONSE)).astype(np.float32)
        ref = old + (0 if step == 1 else 0.1) * random.standard_normal(old.shape).astype(np.float32)
        rewards = np.zeros((ROWS, RESPONSE), np.float32)
        rewards[np.arange(ROWS), lengths - 1] = random.random(ROWS)
        values = random.standard_normal(old.shape).astype(np.float32)
        found = {
            "prompts": prompts * before, "responses": responses * mask, "attention_mask": whole,
            "input_ids": np.concatenate([prompts * before, responses * mask], axis=1), "response_mask": mask,
            "position_ids": np.maximum(np.cumsum(whole, axis=1) - 1, 0), "old_log_probs": old, "ref_log_prob": ref,
            "rm_scores": rewards, "values": values,
        }  # fmt: skip
        if self.estimator == "grpo":
            advantages = grpo(rewards, mask, self.uids(), divides=True)["right"]
            found["advantages"] = found["returns"] = advantages.astype(np.float32)
        else:
            variants, returns = gae(rewards, values, mask, 1.0, 0.95)
            found |= {"advantages": variants["right"].astype("f4"), "returns": returns.astype("f4")}
        d = (old - ref).astype(np.float64)
        kl = float(((np.expm1(-d) + d) * mask).sum() / mask.sum())
        metrics: dict[str, float | None] = {
            "actor/lr": 1e-3, "actor/grad_norm": 0.5, "actor/pg_clipfrac": 0.0, "actor/ppo_kl": 0.0,
            "actor/pg_loss": 0.01, "actor/kl_loss": kl, "actor/loss": 0.01 + KL_SIZE * kl,
        }  # fmt: skip
        return found, metrics

    @staticmethod
    def uids() -> list[str]:
        return [f"prompt{row // 2}" for row in range(ROWS)]

    def write_step(
        self, root: Path, step: int, batch: Batch, metrics: Mapping[str, float | None], *, changed: bool
    ) -> None:
        ids = [f"{step}{row}" for row in range(ROWS)]
        samples = tuple(BatchRow(id=i, prompt_id=u, uid=u) for i, u in zip(ids, self.uids(), strict=True))
        file = BatchFile(version=1, step=step, rows=ROWS, metrics=dict(metrics), samples=samples)
        save_batch(trainer_directory(root, step), file, batch)
        writer = RewardWriter(root, step, "worker")
        for row in range(ROWS):
            source = self.reward_order[row] if changed else row
            score = float(batch["rm_scores"][source].sum())
            writer.add(Reward(id=ids[row], prompt_id=samples[row].prompt_id, score=score))
        self.write_updates(root, step, ids, batch, self.scale if changed else 1.0)

    def write_updates(self, root: Path, step: int, ids: list[str], batch: Batch, scale: float) -> None:
        directory = rank_directory(root, "actor_update", step, 0)
        mask = batch["response_mask"]
        d = (batch["old_log_probs"] - batch["ref_log_prob"]).astype(np.float64)
        terms = (-batch["advantages"] + KL_SIZE * (np.expm1(-d) + d)) * mask / mask.sum()
        calls = [
            MicroBatch(
                call=micro, mini=0, micro=micro, layout=BatchLayout.PACKED, phase=CallPhase.TRAIN,
                rows=tuple(Row(id=ids[row], prompt_id="") for row in range(2 * micro, 2 * micro + 2)),
            )
            for micro in range(ROWS // 2)
        ]  # fmt: skip
        save_samples(
            directory, StageSamples(version=1, stage="actor_update", step=step, rank=0, micro_batches=tuple(calls))
        )
        losses = [
            MicroLoss(mini=0, micro=micro, loss=scale * float(terms[2 * micro : 2 * micro + 2].sum()))
            for micro in range(ROWS // 2)
        ]
        save_updates(directory, StageUpdates(losses=tuple(losses)))


def outcome_of(root: Path, recording: Recording):  # an Outcome, of a private module
    return check_run(open_run(recording.write(root)))


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_a_run_as_verl_makes_it_agrees(tmp_path: Path, estimator: str) -> None:
    outcome = outcome_of(tmp_path, Recording(estimator))
    assert outcome.findings == []
    assert outcome.headline == "AGREE: everything that was recorded follows from what it was made of."


def not_finite(batch: Batch, _: object) -> None:
    batch["old_log_probs"][3, 1] = np.nan


def shifted_positions(batch: Batch, _: object) -> None:
    batch["position_ids"] = np.broadcast_to(np.arange(PROMPT + RESPONSE), (ROWS, PROMPT + RESPONSE)).copy()


def hidden_tokens(batch: Batch, _: object) -> None:
    batch["attention_mask"][2, PROMPT + 1] = 0


def normalised_over_the_batch(batch: Batch, _: object) -> None:
    one = ["all"] * ROWS
    batch["advantages"] = grpo(batch["rm_scores"], batch["response_mask"], one, divides=True)["right"].astype("f4")


def not_divided(batch: Batch, _: object) -> None:
    right = grpo(batch["rm_scores"], batch["response_mask"], Recording.uids(), divides=False)["right"]
    batch["advantages"] = right.astype("f4")


def doubled(batch: Batch, _: object) -> None:
    batch["advantages"] = batch["advantages"] * 2


def aliased(batch: Batch, metrics: dict[str, float | None]) -> None:
    batch["ref_log_prob"] = batch["old_log_probs"].copy()
    metrics["actor/kl_loss"], metrics["actor/loss"] = 0.0, 0.01


def negative_kl(_: Batch, metrics: dict[str, float | None]) -> None:
    metrics["actor/kl_loss"] = -(metrics["actor/kl_loss"] or 0)


def subtracted_kl(_: Batch, metrics: dict[str, float | None]) -> None:
    metrics["actor/loss"] = 0.01 - KL_SIZE * (metrics["actor/kl_loss"] or 0)


def dropout(_: Batch, metrics: dict[str, float | None]) -> None:
    metrics["actor/ppo_kl"] = 0.004


def clipped(_: Batch, metrics: dict[str, float | None]) -> None:
    metrics["actor/pg_clipfrac"] = 0.1


CHANGES: Mapping[str, tuple[Callable[[Batch, dict[str, float | None]], None], str, str]] = {
    "NaN": (not_finite, "old_log_probs", "has 1 elements that are NaN or Inf, the first at (3, 1)"),
    "shifted positions": (shifted_positions, "position_ids", "they count padding on the left too"),
    "hidden tokens": (hidden_tokens, "response_mask", "1 tokens count that attention_mask hides, first in row 2"),
    "advantages over the batch": (
        normalised_over_the_batch, "advantages", "relative to the whole batch instead of the samples of one prompt",
    ),
    "advantages not divided": (not_divided, "advantages", "not divided by the standard deviation"),
    "advantages doubled": (doubled, "advantages", "2 times what they should be"),
    "aliased reference": (aliased, "ref_log_prob", "it follows the policy"),
    "negative KL": (negative_kl, "actor/kl_loss", "is never negative"),
    "KL subtracted": (subtracted_kl, "actor/loss", "the sign of the KL term is wrong"),
    "dropout": (dropout, "actor/ppo_kl", "dropout"),
    "clipped": (clipped, "actor/pg_clipfrac", "10.0% of the ratios are clipped in the only update"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_planted_fault_is_named_first(tmp_path: Path, name: str) -> None:
    change, place, sentence = CHANGES[name]
    recording = Recording()
    recording.change = change
    outcome = outcome_of(tmp_path, recording)
    first = outcome.findings[0]
    assert (first.step, first.place) == (3, place)
    assert sentence in first.sentence
    assert outcome.headline == f"DIFFERENT: step 3: {place} cannot be right."
    assert {finding.step for finding in outcome.findings} == {3}


def test_shuffled_rewards_are_told(tmp_path: Path) -> None:
    recording = Recording()
    recording.reward_order = np.roll(np.arange(ROWS), 1)
    first = outcome_of(tmp_path, recording).findings[0]
    assert (first.step, first.place) == (3, "rm_scores")
    assert f"in {ROWS} of {ROWS} samples" in first.sentence
    assert "they are shuffled" in first.sentence


def test_a_scale_of_gradient_accumulation_is_told(tmp_path: Path) -> None:
    recording = Recording()
    recording.scale = ROWS / 2
    (first,) = outcome_of(tmp_path, recording).findings
    assert first.place == "actor_update loss"
    assert "4 micro-batches are 4 times what their samples make: as if the gradients" in first.sentence


def test_an_export_that_did_not_follow_the_update_is_told(tmp_path: Path) -> None:
    recording = Recording()
    recording.is_export_stale = True
    (first,) = outcome_of(tmp_path, recording).findings
    assert first.place == "model.embed_tokens.weight"
    assert "are those of step 2, all 16, though the optimizer stepped" in first.sentence
    outcome = compare_weights(open_run(tmp_path))
    assert outcome.headline == "DIFFERENT: step 3: model.embed_tokens.weight is not synchronised."
    assert outcome.findings[0] == first


def test_a_ratio_that_is_no_share_is_told(tmp_path: Path) -> None:
    recording = Recording()
    recording.config = msgspec.json.decode(
        msgspec.json.encode(config()).replace(b'"clip_ratio":0.2', b'"clip_ratio":20')
    )
    assert {finding.place for finding in outcome_of(tmp_path, recording).findings} == {"clip_ratio"}


def test_a_command_writes_the_findings(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    recording = Recording()
    recording.change = aliased
    root = recording.write(tmp_path / "run")
    code, out, _ = run("verl", "check", root, "-o", tmp_path / "out")
    assert (code, out.splitlines()[-1]) == (1, "DIFFERENT: step 3: ref_log_prob cannot be right.")
    assert (tmp_path / "out" / "verl_check.json").exists()
    assert run("verl", "check", root, "--steps", "1,2", "-o", tmp_path / "out")[0] == 0
    assert run("verl", "check", root, "--steps", "9", "-o", tmp_path / "out")[0] == 2
