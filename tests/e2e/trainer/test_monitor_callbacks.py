"""The examples that monitor trainings of other libraries."""

import json
import sys
from pathlib import Path

import pytest
import torch
from msprobe.pytorch import TrainerMon
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from msprobe_core.errors import SessionError
from msprobe_core.monitoring.files import read_monitored

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "monitor"


@pytest.fixture(autouse=True)
def out(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    yield tmp_path / "out"
    for name in ("trainer_callback", "logger_writer"):
        sys.modules.pop(name, None)


def config(tmp_path, **settings):
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps({"wg_distribution": True, "ops": ["norm", "max"], "ndigits": 12, **settings}))
    return path


@pytest.mark.slow
def test_the_trainer_of_transformers_is_monitored_and_does_not_notice(tmp_path, out):
    from trainer_callback import MonitorCallback

    def run(name, callbacks):
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                num_key_value_heads=2, max_position_embeddings=16,
            )
        )  # fmt: skip
        samples = [{"input_ids": torch.arange(i, i + 8), "labels": torch.arange(i, i + 8)} for i in range(12)]
        arguments = TrainingArguments(
            output_dir=str(tmp_path / name), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            report_to=[], save_strategy="no", use_cpu=True, seed=1, disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=samples, callbacks=callbacks).train()
        return [parameter.detach().clone() for parameter in model.parameters()]

    callback = MonitorCallback(config(tmp_path, monitor_mbs_grad=True))
    assert all(map(torch.equal, run("watched", [callback]), run("bare", [])))
    frame = read_monitored(out).frame
    assert sorted(set(frame["step"])) == [0, 1, 2]
    counted = dict(frame.filter(frame["name"] == "lm_head.weight").group_by("quantity").len().rows())
    assert counted == {"grad_reduced": 3, "grad_unreduced": 6}


class Tracker:
    """Called like wandb and mlflow."""

    def __init__(self):
        self.steps, self.has_ended = {}, False

    def log(self, metrics, *, step):
        self.steps[step] = metrics

    def finish(self):
        self.has_ended = True


def test_a_script_sends_values_to_a_tracker(tmp_path, out):
    from logger_writer import LoggerWriter

    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = Tracker(), Tracker()
    monitor = TrainerMon(config(tmp_path, msprobe={"writers": []}), params_have_main_grad=False)
    monitor.add_writer(LoggerWriter(first.log, end=first.finish))
    monitor.set_monitor(model, optimizer)
    norms = []
    for step in range(3):
        if step == 1:
            monitor.add_writer(LoggerWriter(second.log, statistics=["max"]))
        model(torch.ones(1, 3)).sum().backward()
        norms.append(model.weight.grad.norm().item())
        if step == 2:
            model.bias.grad.fill_(float("nan"))
        optimizer.step()
    monitor.close()
    assert [first.steps[step]["grad_reduced/weight/norm"] for step in range(3)] == pytest.approx(norms)
    assert set(first.steps[0]) == {f"grad_{kind}/norm" for kind in (
        "reduced/weight", "reduced/bias", "unreduced/weight", "unreduced/bias",
    )}  # fmt: skip
    assert "grad_reduced/bias/norm" not in first.steps[2]
    assert (sorted(second.steps), first.has_ended) == ([1, 2], True)
    assert not list(out.glob("*/*.csv"))
    with pytest.raises(SessionError, match="lacks add"):
        monitor.add_writer(print)
