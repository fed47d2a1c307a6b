"""Rollouts that are no single answer of the newest policy: conversations, older policies, a trainer without a pass."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rl_runs import Recipe, make_weights, write_run

from msprobe_core.rl import files
from msprobe_core.store import Row, load_samples, sample_id, save_samples

Run = Callable[..., tuple[int, str, str]]
EVERYTHING = tuple(make_weights())


def causes(tmp_path: Path, step: int) -> list[str]:
    result = json.loads((tmp_path / "verl_logprob.json").read_bytes())
    return [name for name, cause in result["numbers"]["steps"][str(step)]["causes"].items() if cause["is_named"]]


# --- conversations ----------------------------------------------------------------------------------------------------


def as_conversations(root: Path, *, steps: int = 2, retokenises: bool = False) -> Path:
    """Make the third token of each response a tool's, so that each is an answer of two turns."""
    for step in range(1, steps + 1):
        directory = files.trainer_directory(root, step)
        batch, tensors = files.load_batch(directory)
        tensors["response_mask"][:, 2] = 0
        prompts, responses = tensors["prompts"], tensors["responses"]
        before = [row.prompt_length for row in batch.samples]
        shown = np.arange(prompts.shape[1]) >= prompts.shape[1] - np.array(before)[:, None]
        after = np.arange(responses.shape[1]) < np.array(
            [row.total_length - row.prompt_length for row in batch.samples]
        ).reshape(-1, 1)
        tensors["input_ids"] = np.concatenate([prompts, responses], axis=1)
        tensors["attention_mask"] = np.concatenate([shown, after], axis=1).astype(np.int64)
        tokens = {
            row.id: ids[mask != 0].tolist()
            for row, ids, mask in zip(batch.samples, tensors["input_ids"], tensors["attention_mask"], strict=True)
        }
        files.save_batch(directory, batch, tensors)
        place = files.rank_directory(root, "rollout_generate", step, 0)
        samples = load_samples(place)
        calls = tuple(
            msgspec.structs.replace(call, rows=tuple(_of_turn(row, tokens[row.id], retokenises) for row in call.rows))
            for call in samples.micro_batches
        )
        save_samples(place, msgspec.structs.replace(samples, micro_batches=calls))
    return root


def _of_turn(row: Row, tokens: list[int], retokenises: bool) -> Row:
    """Return the row as that of one turn's request; the engine may have drawn another last token in the first turn."""
    first = row.prompt_length + 2
    if row.start < first:
        drawn = [*tokens[: first - 1], tokens[first - 1] + 1] if retokenises else tokens[:first]
        return msgspec.structs.replace(row, id=sample_id(drawn), total_length=first)
    prompt = sample_id(tokens[: first + 1])
    return msgspec.structs.replace(row, prompt_id=prompt, prompt_length=first + 1)


def test_a_conversation_has_the_tokens_that_were_generated(run: Run, tmp_path: Path) -> None:
    root = as_conversations(write_run(tmp_path / "run", Recipe(task="statistics")))
    code, out, _ = run("verl", "compare", "logprob", root, "-o", tmp_path)
    assert code == 0, out
    assert "other token ids" not in out


def test_a_turn_that_is_tokenised_again_is_told(run: Run, tmp_path: Path) -> None:
    root = as_conversations(write_run(tmp_path / "run", Recipe(task="statistics")), retokenises=True)
    code, out, _ = run("verl", "compare", "logprob", root, "-o", tmp_path)
    assert code == 1
    assert "6 of 6 samples have other token ids than were generated" in out


# --- older policies ---------------------------------------------------------------------------------------------------


def ahead(root: Path) -> Path:
    """Record a run whose second step takes samples that were drawn before the first update; all weights arrive."""
    write_run(root, Recipe(unsent=EVERYTHING))
    for step in (1, 2):
        sent = files.rank_directory(root, "update_weights_send", step, 0) / files.WEIGHTS_FILE
        shutil.copy(sent, files.rank_directory(root, "update_weights_recv", step, 0) / files.WEIGHTS_FILE)
    place = files.rank_directory(root, "rollout_generate", 2, 0)
    samples = load_samples(place)
    save_samples(place, msgspec.structs.replace(samples, policy_version=0, step=1))
    place.rename(files.rank_directory(root, "rollout_generate", 1, 1))
    shutil.rmtree(root / "rollout_generate" / "step2")
    return root


def test_stale_samples_are_named_by_their_recorded_version(run: Run, tmp_path: Path) -> None:
    root = ahead(tmp_path / "run")
    assert run("verl", "compare", "weights", root, "-o", tmp_path)[0] == 0
    code, out, _ = run("verl", "compare", "logprob", root, "-o", tmp_path)
    assert code == 1
    assert causes(tmp_path, 1) == []
    assert causes(tmp_path, 2) == ["stale weights"]
    assert "6 of 6 samples were drawn by an older policy" in out


def test_layers_finds_the_rollouts_of_an_earlier_step(run: Run, tmp_path: Path) -> None:
    code, out, err = run("verl", "compare", "layers", ahead(tmp_path / "run"), "-o", tmp_path)
    assert code == 1, err
    result = json.loads((tmp_path / "verl_layers.json").read_bytes())
    assert {step: own["samples"] for step, own in result["numbers"]["steps"].items()} == {"1": 6, "2": 6}
    assert result["numbers"]["steps"]["1"]["first"] == {"prefill": None, "decode": None}
    assert "step 2: 6 of 6 samples were drawn by an older policy than the trainer's (version 0 where it has 1)" in out


# --- a trainer without a pass of its own ------------------------------------------------------------------------------


def bypassed(root: Path, **recipe: object) -> Path:
    """Record a run whose trainer takes the engine's log-probs for its own."""
    write_run(root, Recipe(**recipe))
    shutil.rmtree(root / "actor_compute_log_prob")
    for step in (1, 2):
        directory = files.trainer_directory(root, step)
        batch, tensors = files.load_batch(directory)
        tensors["old_log_probs"] = tensors["rollout_log_probs"]
        files.save_batch(directory, batch, tensors)
    files.save_run(root, files.RunInfo(config={"algorithm": {"rollout_correction": {"bypass_mode": True}}}))
    return root


def test_log_probs_taken_over_from_the_engine_are_computed_again(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("verl", "compare", "logprob", bypassed(tmp_path / "run"), "-o", tmp_path)
    assert code == 0, out
    assert "so the trainer's were computed from the logits of actor_update: " in out
    numbers = json.loads((tmp_path / "verl_logprob.json").read_bytes())["numbers"]["steps"]["2"]
    assert 0 < numbers["rms"] < 1e-5


def test_a_fault_shows_in_what_was_computed_again(run: Run, tmp_path: Path) -> None:
    root = bypassed(tmp_path / "run", unsent=("model.layers.1.mlp.down_proj.weight",))
    code, _, _ = run("verl", "compare", "logprob", root, "-o", tmp_path)
    assert code == 1
    assert causes(tmp_path, 2) == ["unsynchronised parameter"]


def test_nothing_to_compute_from_is_no_agreement(run: Run, tmp_path: Path) -> None:
    root = bypassed(tmp_path / "run", task="statistics")
    code, _, err = run("verl", "compare", "logprob", root, "-o", tmp_path)
    assert code == 2
    assert "old_log_probs are rollout_log_probs, to the bit" in err
    assert "Record actor_update at level L0" in err


# --- what the logits show ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [1e-7, 1e-6])
def test_a_temperature_of_one_side_is_named_with_the_side(run: Run, tmp_path: Path, noise: float) -> None:
    root = write_run(tmp_path / "run", Recipe(temperature=0.5, engine_temperature=1.0, noise=noise))
    assert run("verl", "compare", "logprob", root, "-o", tmp_path)[0] == 1
    assert [causes(tmp_path, step) for step in (1, 2)] == [["temperature"], ["temperature"]]
    result = json.loads((tmp_path / "verl_logprob.json").read_bytes())
    said = [finding["sentence"] for finding in result["findings"] if finding["place"] == "temperature"]
    assert "the trainer divides its logits by 0.5 and the engine divides its logits by 1" in said[0]


def test_a_padded_vocabulary_that_one_side_counts_is_named(run: Run, tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", Recipe(masked=4))
    assert run("verl", "compare", "logprob", root, "-o", tmp_path)[0] == 1
    assert causes(tmp_path, 1) == ["padded vocabulary"]
    result = json.loads((tmp_path / "verl_logprob.json").read_bytes())
    said = [finding["sentence"] for finding in result["findings"] if finding["place"] == "padded vocabulary"]
    assert "the trainer counts 24 words of 24 and the engine counts 20 words of 24" in said[0]
