"""An engine whose answers go wrong: one of its next forwards is recorded, and nothing else changes."""

import json
import logging

import pytest
import torch
from torch import nn

from msprobe_core.errors import ConfigError, StoreError
from msprobe_core.rl import AnomalyKind, ArmedDump, ResponseGuard


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, ids):
        return self.head(self.embed(ids))


def serve(model, dump=None, *, count=260, begins=20):
    """Return the logits of all forwards, and the anomalies; from some token on the answer is one token."""
    guard, found, logits = ResponseGuard(action=dump), [], []
    token = torch.tensor([3])
    with torch.no_grad():
        for number in range(count):
            if dump is None:
                logits.append(model(token))
            else:
                with dump.forward():
                    logits.append(model(token))
            token = torch.tensor([number % 16 if number < begins else 5])
            if (anomaly := guard.feed("request", token.tolist())) is not None:
                found.append((number, anomaly))
    return torch.cat(logits), found


def test_the_forward_after_the_anomaly_is_recorded(tmp_path, caplog):
    model = Policy()
    plain, expected = serve(model)
    dump = ArmedDump(model, tmp_path, level="L0", task="tensor")
    with caplog.at_level(logging.WARNING):
        armed, found = serve(model, dump)
    assert torch.equal(plain, armed)
    assert found == expected
    [(number, anomaly)] = found
    assert anomaly.kind is AnomalyKind.LOOP
    assert [path.name for path in (tmp_path / "alarm_dump").iterdir()] == [f"step{number + 1}"]
    recorded = json.loads(next((tmp_path / "alarm_dump").rglob("dump.json")).read_text())
    assert "Module.head.Linear.forward.0" in recorded["data"]
    assert f"request request {anomaly.text}; step {number + 1} is recorded" in caplog.text
    assert not [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]


def test_windows_are_few_and_far_between(tmp_path):
    model = Policy()
    dump = ArmedDump(model, tmp_path, most=2, cooldown_s=0.0, level="L0")
    answers = []
    for _ in range(5):
        answers.append(dump.ask())
        with dump.forward():
            model(torch.tensor([1]))
        with dump.forward():
            model(torch.tensor([1]))
    assert [answer is not None for answer in answers] == [True, True, False, False, False]
    dump = ArmedDump(model, tmp_path / "second", most=2, cooldown_s=1000.0)
    assert dump.ask() is not None
    for _ in range(2):
        with dump.forward():
            pass
    assert dump.ask() is None


def test_wrong_settings_are_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match="an alarm records L0, L1 or mix"):
        ArmedDump(Policy(), tmp_path, level="debug")
    with pytest.raises(ConfigError):
        ArmedDump(Policy(), tmp_path, task="overflow_check")


def test_a_failure_of_the_action_does_not_reach_the_engine(caplog):
    class Broken:
        def ask(self):
            raise StoreError("the disk is full")

    guard = ResponseGuard(action=Broken())
    assert guard.feed("a", [1] * 400).kind is AnomalyKind.LOOP
    assert "the disk is full" in caplog.text
