"""``msprobe bisect-steps`` on a real training: a kernel becomes wrong at a step between two checkpoints."""

import json
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TRAINING = """
import argparse
import os
from pathlib import Path

import torch
from msprobe.pytorch import PrecisionDebugger
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
parser.add_argument("--save")
parser.add_argument("--wrong-from", type=int, default=1000)
parser.add_argument("--wrong-rank", type=int, default=0)
parser.add_argument("--file", default="")
given = parser.parse_args()
rank = int(os.environ.get("RANK", "0"))

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2,
))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
file = given.file.format(rank=rank)  # of a rank, in the directory of a step
begin = 0
if given.resume:
    saved = torch.load(given.resume + file, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    begin = saved["step"]
whole = model
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    whole = torch.nn.parallel.DistributedDataParallel(model)
right = torch.nn.functional.silu
debugger = PrecisionDebugger(dump_path="unused", level="mix", dump_enable=False)
for step in range(begin, 40):
    if step >= given.wrong_from and rank == given.wrong_rank:  # a kernel that becomes wrong
        model.model.layers[1].mlp.act_fn.forward = lambda x: right(x) * 1.01
    ids = torch.randint(2, 64, (2, 16), generator=torch.Generator().manual_seed(step + 1000 * rank))
    debugger.start(whole)
    whole(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    if given.save and step % 10 == 9:
        path = Path(f"{given.save}/step-{step + 1}{file or '.pt'}")
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(content, path)
if "RANK" in os.environ:
    torch.distributed.barrier()
    os._exit(0)  # the destructor of DDP's reducer may wait, with the GIL, for a thread of gloo that wants it
"""
WRONG = ("--wrong-from", "27")


@pytest.fixture(scope="module")
def python(transformers_python):
    """Return a Python for trainings and searches, of which each test runs many."""
    return transformers_python


@pytest.fixture(scope="module")
def trained(python, tmp_path_factory):
    """Return a directory with the training and the checkpoints of both sides."""
    place = tmp_path_factory.mktemp("steps")
    (place / "train.py").write_text(TRAINING)
    jobs = [
        subprocess.Popen([python, "train.py", "--save", side, *more], cwd=place)
        for side, more in (("golden", ()), ("target", WRONG))
    ]
    assert [job.wait(600) for job in jobs] == [0, 0]
    return place


def command(python, side, *more, out):
    run = shlex.join([python, "train.py", "--resume", "{checkpoint}"])
    wrong = WRONG if side == "target" else ()
    return [
        python, "-m", "msprobe_core", "bisect-steps", "--target", shlex.join([*shlex.split(run), *wrong]),
        "--golden", run, "--target-checkpoints", f"{side}/step-{{step}}.pt",
        "--golden-checkpoints", "golden/step-{step}.pt", "-o", out, *more,
    ]  # fmt: skip


def questions(out):
    """Return what the journal has answers to; the last line may be half written."""
    path = out / "bisect_steps.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line)["question"] for line in lines if line.endswith(b"\n")]


def test_the_step_the_layer_and_the_call_are_found_also_after_a_kill(python, trained):
    asked, out = command(python, "target", out="out"), trained / "out"
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
    assert found["ranks"] == []
    assert "step 27 is the first" in done.stdout
    assert json.loads((out / "locate.json").read_bytes())["suspects"][0]["entry"] == found["entry"]
    each = list(map(str, questions(out)))
    assert len(each) == len(set(each))  # nothing was done twice
    assert sorted(path.name for path in Path(trained, "golden").iterdir()) == [f"step-{n}0.pt" for n in (1, 2, 3, 4)]


def test_healthy_trainings_agree(python, trained):
    done = subprocess.run(
        command(python, "golden", "--end", "42", "--windows", "2", out="healthy"),
        cwd=trained, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 2  # the trainings end with step 39, and no window of step 41 can be recorded
    assert "has not recorded step 40" in done.stderr
    done = subprocess.run(
        command(python, "golden", out="same"), cwd=trained, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rounding explains every difference" in done.stdout
    assert json.loads((trained / "same" / "bisect_steps.json").read_bytes())["cost"]["replays"] == 0


def test_the_step_and_the_rank_are_found_in_a_job(python, tmp_path):
    """Each rank saves a file of its own, and one of them has a kernel that becomes wrong."""
    (tmp_path / "train.py").write_text(TRAINING)
    job = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    job += ["--file", "/rank_{rank}.pt"]
    wrong = [*WRONG, "--wrong-rank", "1"]
    jobs = [
        subprocess.Popen([*job, "--save", side, *more], cwd=tmp_path)
        for side, more in (("golden", ()), ("target", wrong))
    ]
    assert [each.wait(600) for each in jobs] == [0, 0]
    done = subprocess.run(
        [
            python, "-m", "msprobe_core", "bisect-steps",
            "--target", shlex.join([*job, "--resume", "{checkpoint}", *wrong]),
            "--golden", shlex.join([*job, "--resume", "{checkpoint}"]),
            "--target-checkpoints", "target/step-{step}", "--golden-checkpoints", "golden/step-{step}", "-o", "out",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "bisect_steps.json").read_bytes())
    assert (found["verdict"], found["step"], found["ranks"]) == ("found", 27, [1])
    assert found["module"] == "module.model.layers.1.mlp.act_fn"
    assert (found["last_equal_checkpoint"], found["first_apart_checkpoint"]) == (20, 30)
    assert found["cost"]["replays"] == 4
    assert "on rank 1" in done.stdout
