"""Writers of plugins for the training monitor: they get every step, and a broken one harms no training."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from broken_plugins import NAME, WAYS, plugged
from msprobe.pytorch import TrainerMon
from torch import nn


def trained(tmp_path, monkeypatch, writers):
    """Train three steps, monitored by these writers; return losses and weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = None
    if writers:
        monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
        settings = {"targets": {}, "ops": ["norm"], "wg_distribution": True, "msprobe": {"writers": writers}}
        (tmp_path / "monitor.json").write_text(json.dumps(settings))
        monitor = TrainerMon(tmp_path / "monitor.json", params_have_main_grad=False)
        monitor.set_monitor(model, optimizer)
    losses = []
    for _ in range(3):
        loss = model(torch.randn(5, 8)).square().mean()
        loss.backward()
        losses.append(loss.item().hex())
        optimizer.step()
        optimizer.zero_grad()
    if monitor is not None:
        monitor.close()
    return losses, [parameter.detach().tolist() for parameter in model.parameters()]


def writer(add, close=lambda: None):
    return SimpleNamespace(add=add, close=close)


def offer(opened):
    return SimpleNamespace(name=NAME, open=opened)


def test_a_writer_of_a_plugin_gets_every_step(tmp_path, monkeypatch):
    seen, closed = {}, []

    def opened(directory, rank, *, steps_per_file, ndigits):
        return writer(lambda step, values: seen.__setitem__(step, values), lambda: closed.append(rank))

    bare = trained(tmp_path, monkeypatch, [])
    with plugged("monitor_writers", lambda: [offer(opened)]):
        assert trained(tmp_path, monkeypatch, ["csv", NAME]) == bare
    assert (list(seen), len(closed)) == ([0, 1, 2], 1)
    norms = {value.name: value.numbers["norm"] for value in seen[0] if value.quantity == "grad_reduced"}
    assert set(norms) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert all(norm > 0 for norm in norms.values())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["open", "add", "close"])
def test_a_broken_writer_costs_what_it_would_have_written(tmp_path, monkeypatch, caplog, method, way):
    def opened(directory, rank, *, steps_per_file, ndigits):
        if method == "open":
            return WAYS[way]()
        own = {"add": lambda step, values: None, "close": lambda: None}
        return SimpleNamespace(**own | {method: WAYS[way]})

    bare = trained(tmp_path, monkeypatch, [])
    with plugged("monitor_writers", lambda: [offer(opened)]):
        assert trained(tmp_path, monkeypatch, ["csv", NAME]) == bare
    said = [record.getMessage() for record in caplog.records if NAME in record.getMessage()]
    is_harmless = method != "open" and way in ("returns None", "wrong type")
    assert len(said) == (0 if is_harmless else 1), said
    assert list((tmp_path / "out").rglob("*.csv"))  # of the other writer
    assert "Traceback" not in caplog.text
    assert sys.exc_info() == (None, None, None)
