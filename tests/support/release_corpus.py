"""Writes the corpus of a release: small files of every kind, which later releases must be able to read.

python tests/support/release_corpus.py tests/data/releases/VERSION           with PyTorch
python tests/support/release_corpus.py tests/data/releases/VERSION measured  what commands measure, also with PyTorch
python tests/support/release_corpus.py tests/data/releases/VERSION mindspore
python tests/support/release_corpus.py tests/data/releases/VERSION verl      where verl is installed; takes minutes

Run each once for a release, and never change what it wrote. Paths of this machine are replaced by /env and /home/user.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TORCH = """
import sys
import torch
from torch import nn
from msprobe.pytorch import PrecisionDebugger, TrainerMon, seed_all

out, kind, fault = sys.argv[1], sys.argv[2], sys.argv[3] == "target"
seed_all(7)
model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, 1e-2 if fault else 1e-5), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.randn(3, 2, 4)
if kind == "monitor":
    monitor = TrainerMon("monitor.json")
    monitor.set_monitor(model, optimizer)
else:
    debugger = PrecisionDebugger("config.json", dump_path=out)
if kind == "gradients":
    debugger.monitor(model, optimizer)
calls = kind not in ("monitor", "gradients")
for step in range(3):
    if calls:
        debugger.start(model)
    loss = model(data[step]).square().mean()
    if kind == "overflow":
        loss = loss + torch.log(loss.detach() - loss.detach() - 1)
    if kind == "debug":
        debugger.save(loss, "loss")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if calls:
        debugger.stop()
        debugger.step()
"""

MINDSPORE = """
import sys
import mindspore as ms
import numpy as np
from mindspore import nn, ops
from msprobe.mindspore import PrecisionDebugger, seed_all

out, fault = sys.argv[1], sys.argv[3] == "target"
seed_all(7)
norm = nn.LayerNorm((8,), epsilon=1e-2 if fault else 1e-5)
model = nn.SequentialCell(nn.Dense(4, 8), norm, nn.ReLU(), nn.Dense(8, 2))
data = ms.Tensor(np.random.default_rng(7).normal(size=(2, 4)), ms.float32)
debugger = PrecisionDebugger("config.json", dump_path=out)
debugger.start(model)
ms.value_and_grad(lambda x: model(x).square().mean(), None, model.trainable_params())(data)
debugger.stop()
debugger.step()
"""

WEIGHTS = """
import sys
import torch
from torch import nn

torch.manual_seed(7)
model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)).state_dict()
if sys.argv[1] == "target":
    model["0.weight"] = model["0.weight"].flip(0)
torch.save(model, f"{sys.argv[1]}.pt")
"""

VERL = {"steps": [1], "level": "L0", "stages": ["trainer", "update_weights_send", "update_weights_recv"]}

KINDS = {
    "statistics": {"level": "mix", "step": [0]},
    "files": {"task": "tensor", "level": "L1", "step": [0], "tensor": {"list": ["linear", "layer_norm"]}},
    "shards": {"task": "tensor", "level": "L1", "step": [0], "tensor_format": "safetensors",
               "tensor": {"list": ["layer_norm"]}},
    "arrow": {"level": "mix", "step": [0], "writer": "arrow", "extra_info": False,
              "statistics": {"summary_mode": "sketch"}},
    "checksums": {"level": "L0", "step": [0], "statistics": {"summary_mode": "md5"}},
    "structure": {"task": "structure", "level": "mix", "step": [0]},
    "debug": {"level": "debug", "task": "tensor", "step": [0]},
    "overflow": {"task": "overflow_check", "level": "L1", "step": [0]},
    "gradients": {"task": "grad_probe", "step": [0]},
}  # fmt: skip
ALONE = {"shards", "structure", "overflow"}
"""Kinds of which one run is enough; a shard takes 130 kB, however little is in it."""
MONITOR = {"targets": {}, "wg_distribution": True, "param_distribution": True, "ops": ["norm", "mean"]}


def write(directory: Path, framework: str) -> None:
    program = TORCH if framework == "torch" else MINDSPORE
    kinds = KINDS if framework == "torch" else {"mindspore": {"level": "mix", "step": [0]}}
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        (here / "train.py").write_text(program)
        (here / "monitor.json").write_text(json.dumps(MONITOR))
        for kind, config in kinds.items():
            (here / "config.json").write_text(json.dumps(config))
            for side in ("golden", "target")[: 1 if kind in ALONE else 2]:
                run(here, directory / kind / side, kind, side)
        if framework == "torch":
            run(here, directory / "monitor", "monitor", "golden")
        replace_paths(directory, {place: "/home/user"})


def write_measured(directory: Path) -> None:
    """Write what commands measure of runs and weights: a noise profile, and fingerprints of checkpoints."""
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        (here / "train.py").write_text(TORCH)
        (here / "weights.py").write_text(WEIGHTS)
        (here / "config.json").write_text(json.dumps(KINDS["statistics"]))
        golden = directory / "noise" / "golden"
        run(here, golden, "statistics", "golden")
        program = shlex.join([sys.executable, "train.py", str(golden), "statistics", "golden"])
        msprobe(here, "calibrate", str(golden), "-k", "2", "--run", program)
        shutil.rmtree(golden / "calibration")  # the profile, beside the run, has what they say
        (directory / "checkpoint").mkdir()
        for side in ("golden", "target"):
            subprocess.run([sys.executable, "weights.py", side], cwd=here, check=True)
            fingerprint = directory / "checkpoint" / f"{side}.fingerprint.arrow"
            msprobe(here, "checkpoint", "fingerprint", f"{side}.pt", "-o", str(fingerprint))
        replace_paths(directory / "noise", {place: "/home/user"})
        replace_paths(directory / "checkpoint", {place: "/home/user"})


def write_verl(directory: Path) -> None:
    """Write a run of verl whose serving engine misses one weight."""
    with tempfile.TemporaryDirectory() as place:
        record = Path(place) / "record.yaml"
        record.write_text(json.dumps(VERL | {"out": str(directory / "verl")}))
        program = Path(__file__).parents[2] / "examples" / "verl_cpu" / "train.py"
        command = [sys.executable, str(program), "--work", place, "--record", str(record), "--fault", "skip_layer"]
        subprocess.run([*command, "--workers", "1", "--steps", "1"], check=True)
        own = {os.environ["RAY_TMPDIR"]: "/tmp/ray"} if "RAY_TMPDIR" in os.environ else {}
        replace_paths(directory / "verl", {place: "/home/user", **own})


def msprobe(here: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "msprobe_core", *arguments], cwd=here, check=True)


def run(here: Path, out: Path, kind: str, side: str) -> None:
    kept = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"MONITOR_OUTPUT_DIR": str(out), "OMP_NUM_THREADS": "1", "HOME": "/home/user"}
    command = [sys.executable, "train.py", str(out), kind, side]
    subprocess.run(command, cwd=here, env=environment, check=True)


def replace_paths(directory: Path, places: dict[str, str]) -> None:
    """Replace paths of this machine in text files; other files must have none."""
    found = sorted((path for path in {sys.prefix, sys.base_prefix, *sys.path} if len(path) > 1), key=len, reverse=True)
    every = {str(directory.absolute()): "/home/user/runs", **places, **dict.fromkeys(found, "/env")}
    for path in directory.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for old, new in every.items():
                if path.suffix in {".json", ".jsonl", ".csv", ".txt"}:
                    content = content.replace(old.encode(), new.encode())
                assert old.encode() not in content, (path, old)
            path.write_bytes(content)


if __name__ == "__main__":
    directory, what = Path(sys.argv[1]).absolute(), (*sys.argv, "torch")[2]
    if what == "measured":
        write_measured(directory)
    elif what == "verl":
        write_verl(directory)
    else:
        write(directory, what)
