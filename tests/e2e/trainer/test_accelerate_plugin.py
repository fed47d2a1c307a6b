"""The example of a plugin for accelerate, in real trainings on the CPU, of one process and of two."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from msprobe_core.cli.main import _run
from msprobe_core.store.reading import read_dump
from msprobe_core.store.samples import load_samples
from msprobe_core.store.training_metrics import load_updates
from msprobe_core.testing import StagesContract

accelerate = pytest.importorskip("accelerate")
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "accelerate_plugin"
NUM_UPDATES, NUM_MICRO = 3, 2


@pytest.fixture(autouse=True)
def site(tmp_path_factory, monkeypatch):
    """Put the example on the path, with the entry point of its pyproject, and look for plugins again."""
    from msprobe_core.plugins import registry

    info = tmp_path_factory.mktemp("site") / "msprobe_accelerate-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: msprobe-accelerate\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[msprobe]\naccelerate = msprobe_accelerate.hooks\n")
    assert 'accelerate = "msprobe_accelerate.hooks"' in (EXAMPLE / "pyproject.toml").read_text()
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    importlib.invalidate_caches()
    registry.cache_clear()
    yield os.pathsep.join([str(info.parent), str(EXAMPLE)])
    registry.cache_clear()


class TestStages(StagesContract):
    @pytest.fixture
    def stages(self):
        return importlib.import_module("msprobe_accelerate.hooks").msprobe_register_stages()[0]


class Model(torch.nn.Module):
    """Its parts are called by the loop, twice in each micro-batch; the model itself never is."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(32, 8)
        self.head = torch.nn.Linear(8, 32)


def batches():
    generator = torch.Generator().manual_seed(3)
    return [{"input_ids": torch.randint(0, 32, (6,), generator=generator)} for _ in range(16)]


def train(config=None, *, calls_parts=False, scale=1.0, **settings):
    """Train, evaluate in the middle, and return the weights and the recorder."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=NUM_MICRO)
    recorder = None
    if config is not None:
        from msprobe_accelerate import record

        recorder = record(accelerator, str(config), **settings)
    torch.manual_seed(0)
    model = Model() if calls_parts else torch.nn.Sequential(torch.nn.Embedding(32, 8), torch.nn.Linear(8, 32))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader, test = (torch.utils.data.DataLoader(batches()[part], batch_size=2) for part in (slice(12), slice(12, 16)))
    model, optimizer, loader, test = accelerator.prepare(model, optimizer, loader, test)

    def loss_of(batch):
        ids = batch["input_ids"]
        logits = model.head(model.embed(ids)) if calls_parts else model(ids)
        if calls_parts:
            logits = logits + model.head(model.embed(ids))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()) * scale

    for number, batch in enumerate(loader):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if number == 3:
            torch.exp(torch.ones(1))  # outside of all stages
            model.eval()
            with torch.no_grad():
                for each in test:
                    loss_of(each)
            model.train()
    if recorder is not None:
        recorder.close()
    return [parameter.detach().clone() for parameter in model.parameters()]


def configured(tmp_path, name="run", **settings):
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({"out": str(tmp_path / name), "level": "mix", **settings}))
    return path


@pytest.mark.parametrize("calls_parts", [False, True], ids=["model", "parts"])
def test_updates_and_evaluations_are_recorded_with_their_micro_steps(tmp_path, calls_parts):
    plain = train(calls_parts=calls_parts)
    recorded = train(configured(tmp_path), calls_parts=calls_parts)
    assert all(map(torch.equal, recorded, plain))
    run = tmp_path / "run"
    assert sorted(path.name for path in (run / "train").glob("step*")) == [f"step{n}" for n in range(NUM_UPDATES)]
    assert [path.name for path in (run / "evaluate").glob("step*")] == ["step2"]
    for step in range(NUM_UPDATES):
        directory = run / "train" / f"step{step}" / "rank0"
        entries = json.loads((directory / "dump.json").read_text())["data"]
        micro = [entry["execution"].get("micro_step", 0) for name, entry in entries.items() if "cross_entropy" in name]
        assert micro == sorted(micro)
        assert set(micro) == {0, 1}
        assert not any("exp" in name.split(".")[1] for name in entries)  # what runs outside is not recorded
        heads = [entry for name, entry in entries.items() if name.startswith("Functional.linear") and "forward" in name]
        assert [each["execution"].get("micro_step", 0) for each in heads] == ([0, 0, 1, 1] if calls_parts else [0, 1])
        samples = load_samples(directory)
        assert [(each.micro, len(each.rows)) for each in samples.micro_batches] == [(0, 2), (1, 2)]
        updates = load_updates(directory)
        assert [len(updates.losses), len(updates.updates)] == [NUM_MICRO, 1]
        assert updates.updates[0].grad_norm > 0
    entries = json.loads((run / "evaluate" / "step2" / "rank0" / "dump.json").read_text())["data"]
    assert not any("backward" in name for name in entries)


def test_frames_of_the_plugin_and_of_accelerate_are_hidden(tmp_path):
    train(configured(tmp_path, steps=[0]))
    (unit,) = (tmp_path / "run" / "train").glob("step0/rank0")
    frames = [frame for stack in read_dump(unit).stacks.values() for frame in stack]
    assert any(Path(__file__).name in frame for frame in frames)
    assert not any("msprobe_accelerate" in frame or f"{os.sep}accelerate{os.sep}" in frame for frame in frames)


def test_a_fault_is_found_in_its_stage(tmp_path, capsys):
    for name, scale in (("golden", 1.0), ("same", 1.0), ("wrong", 1.5)):
        train(configured(tmp_path, name), scale=scale)
    for name, status in (("same", 0), ("wrong", 1)):
        sides = ["-tp", str(tmp_path / name / "train"), "-gp", str(tmp_path / "golden" / "train")]
        assert _run(["compare", *sides, "-o", str(tmp_path / f"{name}_out")]) == status
    assert "first at step0/rank0: Tensor.__mul__.0.forward" in capsys.readouterr().out


def test_samples_of_other_data_are_those_that_the_user_names(tmp_path):
    from msprobe_core.store import Row, sample_id

    def rows_of(batch):
        return [
            Row(id=sample_id(ids.numpy()), prompt_id="x", row=i, offset=0, length=0, prompt_length=0, total_length=0)
            for i, ids in enumerate(batch["input_ids"])
        ]

    train(configured(tmp_path, stages=["train"], steps=[1]), rows_of=rows_of)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["train"]
    samples = load_samples(tmp_path / "run" / "train" / "step1" / "rank0")
    assert [len(each.rows) for each in samples.micro_batches] == [2, 2]


def test_a_mistake_in_naming_samples_costs_the_samples_only(tmp_path, caplog):
    plain = train()
    recorded = train(configured(tmp_path), rows_of=lambda batch: batch["absent"])
    assert all(map(torch.equal, recorded, plain))
    assert "KeyError" in caplog.text


PROGRAM = """
import os, pathlib, sys
sys.path.insert(0, {folder!r})
import torch
import test_accelerate_plugin as job
weights = job.train({config!r})
total = sum(float(each.double().sum()) for each in weights)
pathlib.Path({out!r}, "rank" + os.environ["RANK"]).write_text(str(total))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
os._exit(0)  # when Python ends, gloo's threads sometimes abort the process, with the probe or without it
"""


@pytest.mark.slow
def test_two_processes(tmp_path, site):
    """Each rank has its own dumps, without ``module.`` in names, and both step together."""
    outputs = []
    for name, config in (("plain", None), ("recorded", str(configured(tmp_path)))):
        out = tmp_path / name
        out.mkdir()
        program = tmp_path / "program.py"
        program.write_text(PROGRAM.format(folder=str(Path(__file__).parent), config=config, out=str(out)))
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([site, *sys.path]), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(launch, capture_output=True, text=True, env=environment, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        outputs.append([(out / f"rank{rank}").read_text() for rank in range(2)])
    assert outputs[0] == outputs[1]
    for rank in range(2):
        (first, *_) = sorted((tmp_path / "run" / "train").glob(f"step*/rank{rank}"))
        entries = json.loads((first / "dump.json").read_text())["data"]
        modules = [name for name in entries if name.startswith("Module.")]
        assert modules
        assert not any(".module." in name for name in modules)
        assert {entries[name]["execution"].get("micro_step", 0) for name in modules if ".forward" in name} == {0, 1}
