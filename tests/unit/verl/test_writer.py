"""A run that a trainer without a plugin writes by itself is compared like one of verl's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from msprobe_core.errors import StoreError
from msprobe_core.rl import RunWriter
from msprobe_core.rl.advantages import grpo
from msprobe_core.rl.weight_digests import Caster, turned_values

torch = pytest.importorskip("torch")
Run = Callable[..., tuple[int, str, str]]
ROWS, PROMPT, RESPONSE = 4, 3, 5
UIDS = ["a", "a", "b", "b"]


def write(root: Path, *, stale: bool = False, advantage: float = 1.0) -> Path:
    config = {"algorithm": {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": True}}
    run = RunWriter(root, config=config, sampling={"temperature": 1.0})
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 4)
    engine = torch.nn.Linear(6, 4).to(torch.bfloat16)
    for step in (0, 1, 2):
        run.weights_sent(step, model.named_parameters(), model=model)
        if not stale or step == 0:
            engine.load_state_dict(model.state_dict())
        run.weights_received(step, engine.named_parameters(), model=engine)
        with torch.no_grad():
            model.weight += 0.1
    for step in (1, 2):
        write_batch(run, step, advantage)
    return root


def write_batch(run: RunWriter, step: int, advantage: float) -> None:
    random = np.random.default_rng(step)
    prompts, responses = random.integers(1, 50, (ROWS, PROMPT)), random.integers(1, 50, (ROWS, RESPONSE))
    mask, scores = np.ones((ROWS, RESPONSE), np.int64), np.zeros((ROWS, RESPONSE), np.float32)
    scores[:, -1] = random.random(ROWS)
    old = torch.from_numpy(-3 - random.random((ROWS, RESPONSE)).astype(np.float32))
    advantages = grpo(scores, mask, UIDS, divides=True)["right"] * advantage
    tensors = {
        "prompts": prompts, "responses": responses, "attention_mask": np.ones((ROWS, PROMPT + RESPONSE), np.int64),
        "response_mask": mask, "old_log_probs": old, "rollout_log_probs": old + 1e-6, "rm_scores": scores,
        "advantages": advantages.astype(np.float32),
    }  # fmt: skip
    run.batch(step, tensors, uids=UIDS, metrics={"actor/lr": 1e-3, "actor/grad_norm": 1.0}, policy_version=step - 1)
    for row in range(ROWS):
        run.reward(step, prompts[row].tolist(), responses[row].tolist(), float(scores[row].sum()), acc=1.0)


@pytest.mark.parametrize("command", [("compare", "weights"), ("compare", "logprob"), ("check",)])
def test_a_healthy_run_agrees(run: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    code, out, err = run("rl", *command, write(tmp_path / "run"), "-o", tmp_path)
    assert code == 0, out + err
    assert (tmp_path / f"rl_{command[-1]}.json").exists()


def test_the_commands_of_verl_are_the_same(run: Run, tmp_path: Path) -> None:
    root = write(tmp_path / "run", stale=True)
    answers = [run(group, "compare", "weights", root, "-o", tmp_path / group) for group in ("rl", "verl")]
    assert answers[0][0] == answers[1][0] == 1
    results = [(tmp_path / group / f"{group}_weights.json").read_text() for group in ("rl", "verl")]
    assert results[0].partition('"tables"')[0] == results[1].partition('"tables"')[0]


def test_faults_are_named_as_in_runs_of_verl(run: Run, tmp_path: Path) -> None:
    root = write(tmp_path / "run", stale=True, advantage=2.0)
    code, out, _ = run("verl", "compare", "weights", root, "-o", tmp_path)
    assert (code, out.splitlines()[-1]) == (1, "DIFFERENT: step 1: weight is not synchronised.")
    code, out, _ = run("verl", "check", root, "-o", tmp_path)
    assert (code, out.splitlines()[-1]) == (1, "DIFFERENT: step 1: advantages cannot be right.")


def test_a_batch_without_identities_is_refused(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    with pytest.raises(StoreError, match=r"the batch of step 1 has no 'prompts', so its samples have no identity"):
        run.batch(1, {"advantages": np.zeros((2, 3))})
    tensors = {name: np.ones((2, 3), np.int64) for name in ("prompts", "responses", "attention_mask")}
    with pytest.raises(StoreError, match=r"is \[2, 3\]; it must cover prompts \[2, 3\] and responses \[2, 3\]"):
        run.batch(1, tensors)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_transposed_cast_is_a_cast_transposed(dtype: str) -> None:
    values = (torch.randn(7, 5) * 1e5).to(getattr(torch, dtype))
    caster = Caster()
    turned = dict(turned_values(values, dtype, caster))
    assert next(iter(turned)) == dtype
    assert len(turned) > 1
    for other, found in turned.items():
        assert found.is_contiguous()
        assert torch.equal(found, values.to(getattr(torch, other)).T)
