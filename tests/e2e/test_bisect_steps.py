"""``msprobe bisect-steps`` on a real training: a kernel becomes wrong at a step between two checkpoints."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TRAINING = """
import argparse
from pathlib import Path

import torch
from msprobe.pytorch import PrecisionDebugger
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
parser.add_argument("--save")
parser.add_argument("--wrong-from", type=int, default=1000)
given = parser.parse_args()

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2,
))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
begin = 0
if given.resume:
    saved = torch.load(given.resume, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    begin = saved["step"]
right = torch.nn.functional.silu
debugger = PrecisionDebugger(dump_path="unused", level="mix", dump_enable=False)
for step in range(begin, 40):
    if step >= given.wrong_from:  # a kernel that becomes wrong
        model.model.layers[1].mlp.act_fn.forward = lambda x: right(x) * 1.01
    ids = torch.randint(2, 64, (2, 16), generator=torch.Generator().manual_seed(step))
    debugger.start(model)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    if given.save and step % 10 == 9:
        Path(given.save).mkdir(exist_ok=True)
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(content, f"{given.save}/step-{step + 1}.pt")
"""
WRONG = ("--wrong-from", "27")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a directory with the training and the checkpoints of both sides."""
    place = tmp_path_factory.mktemp("steps")
    (place / "train.py").write_text(TRAINING)
    jobs = [
        subprocess.Popen([sys.executable, "train.py", "--save", side, *more], cwd=place)
        for side, more in (("golden", ()), ("target", WRONG))
    ]
    assert [job.wait(600) for job in jobs] == [0, 0]
    return place


def command(side, *more, out):
    run = shlex.join([sys.executable, "train.py", "--resume", "{checkpoint}"])
    wrong = WRONG if side == "target" else ()
    return [
        sys.executable, "-m", "msprobe_core", "bisect-steps", "--target", shlex.join([*shlex.split(run), *wrong]),
        "--golden", run, "--target-checkpoints", f"{side}/step-{{step}}.pt",
        "--golden-checkpoints", "golden/step-{step}.pt", "-o", out, *more,
    ]  # fmt: skip


def questions(out):
    """Return what the journal has answers to; the last line may be half written."""
    path = out / "bisect_steps.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line)["question"] for line in lines if line.endswith(b"\n")]


def test_the_step_the_layer_and_the_call_are_found_also_after_a_kill(trained):
    asked, out = command("target", out="out"), trained / "out"
    search = subprocess.Popen(asked, cwd=trained, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not any(question[0] == "record" for question in questions(out)):
        assert search.poll() is None, search.stdout.read().decode()
        time.sleep(0.1)
    search.send_signal(signal.SIGKILL)
    search.communicate()
    done = subprocess.run(asked, cwd=trained, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads((out / "bisect_steps.json").read_bytes())
    assert (found["verdict"], found["step"], found["begin"]) == ("found", 27, 20)
    assert found["module"] == "model.layers.1.mlp.act_fn"
    assert found["entry"].startswith("Tensor.__mul__")
    assert (found["last_equal_checkpoint"], found["first_apart_checkpoint"]) == (20, 30)
    assert found["cost"]["windows"] == 14
    assert found["cost"]["replays"] == 4
    assert "step 27 is the first" in done.stdout
    assert json.loads((out / "locate.json").read_bytes())["suspects"][0]["entry"] == found["entry"]
    each = list(map(str, questions(out)))
    assert len(each) == len(set(each))  # nothing was done twice
    assert sorted(path.name for path in Path(trained, "golden").iterdir()) == [f"step-{n}0.pt" for n in (1, 2, 3, 4)]


def test_healthy_trainings_agree(trained):
    done = subprocess.run(
        command("golden", "--end", "42", "--windows", "2", out="healthy"),
        cwd=trained, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 2  # the trainings end with step 39, and no window of step 41 can be recorded
    assert "has not recorded step 40" in done.stderr
    done = subprocess.run(
        command("golden", out="same"), cwd=trained, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rounding explains every difference" in done.stdout
    assert json.loads((trained / "same" / "bisect_steps.json").read_bytes())["cost"]["replays"] == 0
