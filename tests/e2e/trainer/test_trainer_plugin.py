"""The template of a plugin for a trainer: transformers' Trainer, recorded stage by stage."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from msprobe_core.errors import ConfigError
from msprobe_core.store.samples import load_samples, sample_id
from msprobe_core.store.training_metrics import load_updates

TEMPLATE = Path(__file__).resolve().parents[3] / "examples" / "trainer_plugin"


@pytest.fixture(autouse=True)
def installed(tmp_path_factory, monkeypatch):
    """Put the template on the path, with the entry point of its pyproject, and look for plugins again."""
    from msprobe_core.plugins import registry

    info = tmp_path_factory.mktemp("site") / "msprobe_hftrainer-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: msprobe-hftrainer\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[msprobe]\nhftrainer = msprobe_hftrainer.hooks\n")
    assert 'hftrainer = "msprobe_hftrainer.hooks"' in (TEMPLATE / "pyproject.toml").read_text()
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.syspath_prepend(str(TEMPLATE))
    importlib.invalidate_caches()
    registry.cache_clear()
    yield
    registry.cache_clear()


def samples():
    generator = torch.Generator().manual_seed(7)
    rows = []
    for length in (5, 8, 6, 8, 7, 8, 8, 4):
        ids = torch.zeros(8, dtype=torch.long)
        ids[:length] = torch.randint(3, 60, (length,), generator=generator)
        rows.append({"input_ids": ids, "attention_mask": (torch.arange(8) < length).long(), "labels": ids.clone()})
    return rows


def train(tmp_path, name, record=None):
    """Train two optimizer steps of two micro-batches each, and evaluate after each; return all weights."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=16,
        )
    )  # fmt: skip
    settings = TrainingArguments(
        output_dir=str(tmp_path / name), max_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        per_device_eval_batch_size=4, eval_strategy="steps", eval_steps=1, learning_rate=1e-2, report_to=[],
        save_strategy="no", use_cpu=True, seed=1, disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    rows = samples()
    trainer = Trainer(model=model, args=settings, train_dataset=rows, eval_dataset=rows[:4])
    recorder = None
    if record is not None:
        from msprobe_hftrainer import record as record_trainer

        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"out": str(tmp_path / f"{name}_run"), **record}))
        recorder = record_trainer(trainer, str(path))
    trainer.train()
    if recorder is not None:
        recorder.close()
    return {key: tensor.clone() for key, tensor in model.state_dict().items()}, tmp_path / f"{name}_run"


@pytest.mark.slow
def test_stages_of_the_trainer(tmp_path):
    plain, _ = train(tmp_path, "plain")
    recorded, run = train(tmp_path, "recorded", {"level": "mix"})
    assert all(torch.equal(plain[key], recorded[key]) for key in plain)
    known = {sample_id(row["input_ids"][row["attention_mask"].bool()]) for row in samples()}
    for step in (1, 2):
        directory = run / "train" / f"step{step}" / "rank0"
        micros = load_samples(directory).micro_batches
        assert [(m.call, m.micro, len(m.rows)) for m in micros] == [(0, 0, 2), (1, 1, 2)]
        assert {row.id for m in micros for row in m.rows} < known
        assert len(load_updates(directory).losses) == 2
        data = json.loads((directory / "dump.json").read_text())["data"]
        assert {"Module.lm_head.Linear.forward.1", "Module.lm_head.Linear.backward.1"} <= data.keys()
        evaluated = run / "evaluate" / f"step{step}" / "rank0"
        assert [len(m.rows) for m in load_samples(evaluated).micro_batches] == [4]
        assert "Module.lm_head.Linear.forward.0" in json.loads((evaluated / "dump.json").read_text())["data"]


@pytest.mark.slow
def test_two_recorded_runs_are_alike(tmp_path):
    runs = [train(tmp_path, name, {"steps": [2], "stages": ["train"]})[1] for name in ("a", "b")]
    assert not (runs[0] / "evaluate").exists()
    command = [sys.executable, "-m", "msprobe_core", "compare", "-o", tmp_path / "result"]
    for option, run in zip(("-tp", "-gp"), runs, strict=True):
        command += [option, run / "train" / "step2"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stage_that_the_trainer_does_not_have(tmp_path):
    with pytest.raises(
        ConfigError, match="'trian', which is no stage; known: train, evaluate"
    ):  # codespell:ignore trian
        train(tmp_path, "wrong", {"stages": ["trian"]})  # codespell:ignore trian
