"""Plant faults of RL into real trainings of verl on CPUs, and compare what msprobe says first with what was planted.

    .venv-verl/bin/python bench/verl_faults.py DIRECTORY [NAME ...]

Each training is two steps of GRPO of a tiny model, two to five minutes on two cores. It is kept in DIRECTORY/NAME/run
and used again if it is there. At the end comes a table in Markdown.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
RIG = REPOSITORY / "examples" / "verl_cpu"
MSPROBE = Path(sys.executable).with_name("msprobe")
GRPO = "algorithm.adv_estimator=grpo"
_LONGEST_S = 1200


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        arguments: Of ``train.py``.
        command: Of ``msprobe verl``, which has to name the fault.
        place: What its first finding has to be about; empty if it has to agree.
        sentence: What that finding has to say.
    """

    arguments: tuple[str, ...]
    command: tuple[str, ...] = ("check",)
    place: str = ""
    sentence: str = ""


WEIGHTS, LOG_PROBS = ("compare", "weights"), ("compare", "logprob")
EMBEDDING = "model.embed_tokens.weight"
CASES = {
    "healthy": Case((GRPO,), WEIGHTS),
    "healthy_checked": Case((GRPO,)),
    "healthy_cast": Case(("--rollout-dtype", "bfloat16", GRPO), WEIGHTS),
    "healthy_critic": Case(()),
    "stale": Case(
        ("--fault", "stale", "--rollout-dtype", "bfloat16", GRPO), WEIGHTS, EMBEDDING, "it was not updated"
    ),
    "stale_export": Case(("--fault", "stale_export", GRPO), WEIGHTS, EMBEDDING, "the export is stale"),
    "transposed": Case(
        ("--fault", "transposed", "--rollout-dtype", "bfloat16", GRPO), WEIGHTS,
        "model.layers.1.self_attn.o_proj.weight", "transposed",
    ),
    "skip_layer": Case(
        ("--fault", "skip_layer", "--rollout-dtype", "bfloat16", GRPO), WEIGHTS,
        "model.layers.1.mlp.down_proj.weight", "it was not updated",
    ),
    "other_model": Case(("--fault", "other_model", GRPO), WEIGHTS, EMBEDDING, "differs"),
    "temperature": Case(
        ("--fault", "raw_temperature", GRPO, "actor_rollout_ref.rollout.temperature=0.7"), LOG_PROBS, "temperature",
        "the trainer divides its logits by 0.7 and the engine divides its logits by 1",
    ),
    "vocabulary": Case(
        ("--fault", "masked_vocabulary", GRPO), LOG_PROBS, "padded vocabulary", "padded words are not masked"
    ),
    "positions": Case(("--v0", "--fault", "positions", GRPO), ("check",), "position_ids", "padding on the left"),
    "advantages": Case(("--fault", "advantages", GRPO), ("check",), "advantages", "relative to the whole batch"),
    "rewards": Case(("--fault", "shuffled_rewards", GRPO), ("check",), "rm_scores", "the reward function returned"),
    "reference": Case(("--fault", "aliased_reference", GRPO), ("check",), "ref_log_prob", "it follows the policy"),
    "kl_sign": Case(
        ("--fault", "kl_sign", GRPO, "actor_rollout_ref.actor.kl_loss_coef=0.5"), ("check",), "actor/kl_loss",
        "is never negative",
    ),
    "accumulation": Case(
        ("--fault", "accumulation", GRPO), ("check",), "actor_update loss", "2 times what their samples make"
    ),
    "dropout": Case(("--fault", "dropout", GRPO), ("check",), "actor/ppo_kl", "dropout"),
}  # fmt: skip


PLANTED = {
    "stale": "the engine keeps its first weights",
    "stale_export": "the trainer exports its first weights",
    "transposed": "one matrix arrives transposed",
    "skip_layer": "one tensor is not loaded",
    "other_model": "the engine serves another model",
    "temperature": "temperature in one engine only",
    "vocabulary": "padded vocabulary unmasked in one engine",
    "positions": "positions count padding on the left",
    "advantages": "advantages normalised over the batch",
    "rewards": "rewards of other samples",
    "reference": "the reference shares the actor's parameters",
    "kl_sign": "sign of the KL loss",
    "accumulation": "losses of micro-batches added, not averaged",
    "dropout": "dropout left on for log-probs",
}
"""What is wrong in trainings that are not healthy."""


def trained(root: Path, name: str, case: Case) -> Path:
    """Train and record, unless that was done before."""
    place = root / name
    if (place / "done").exists():
        return place / "run"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    text = (RIG / "record.yaml").read_text().replace("out: verl_run", f"out: {place / 'run'}")
    (place / "record.yaml").write_text(text)
    ray_directory = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # the names of sockets have to be short
    command = [
        sys.executable, RIG / "train.py", "--work", root / "work", "--record", place / "record.yaml", "--workers", "1",
        *case.arguments,
    ]  # fmt: skip
    with (place / "log").open("w") as log:
        subprocess.run(
            list(map(str, command)), check=True, stdout=log, stderr=log, timeout=_LONGEST_S,
            env={**os.environ, "RAY_TMPDIR": ray_directory},
        )  # fmt: skip
    shutil.rmtree(ray_directory, ignore_errors=True)
    (place / "done").touch()
    return place / "run"


def judged(run: Path, case: Case) -> tuple[bool, str]:
    """Return whether the first finding, or the first cause that is named, is the planted one, and what was said."""
    with tempfile.TemporaryDirectory() as out:
        command = [MSPROBE, "verl", *case.command, run, "-o", out]
        subprocess.run(list(map(str, command)), check=False, capture_output=True)
        files = list(Path(out).glob("verl_*.json"))
        if not files:
            return False, "nothing was written"
        result = json.loads(files[0].read_bytes())
    if not case.place:
        return result["verdict"] == "agree", result["headline"]
    # Log-probs have findings of sizes first; a cause is a warning.
    kind = "warning" if case.command == LOG_PROBS else "error"
    found = [finding for finding in result["findings"] if finding["verdict"] == kind]
    first = found[0] if found else {"place": "", "sentence": result["headline"]}
    is_right = result["verdict"] == "differ" and first["place"] == case.place and case.sentence in first["sentence"]
    return is_right, f"{first['place']}: {first['sentence']}"


def _alike(name: str) -> str:
    """Return the first training with the same arguments."""
    return next(other for other, case in CASES.items() if case.arguments == CASES[name].arguments)


def main() -> int:
    root, *names = sys.argv[1:]
    wrong = 0
    rows: list[tuple[str, str, str, bool]] = []
    chosen = names or list(CASES)
    for name in chosen:
        case = CASES[name]
        is_right, said = judged(trained(Path(root).absolute(), _alike(name), case), case)
        wrong += not is_right
        rows.append((PLANTED.get(name, "nothing"), " ".join(case.command), said.replace("|", "\\|"), is_right))
        print(f"{'right' if is_right else 'WRONG'}  {name:16} {said[:150]}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} right")
    print("\n| planted | `msprobe verl` | said first | right |\n|---|---|---|---|")
    for planted, command, said, is_right in rows:
        print(f"| {planted} | `{command}` | {said} | {'yes' if is_right else 'no'} |")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
