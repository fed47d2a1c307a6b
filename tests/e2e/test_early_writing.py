"""When the entries of a long window are written does not show in the dump."""

import json
import math

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe_core.capture import step_record


class _Net(nn.Module):
    """Has results, parameters and inputs without gradients, recomputation, and branches whose backward ends late."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(10, 8), nn.Embedding(6, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.gain, self.unused = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        first, _ = self.layer(self.tokens(x) + self.positions(torch.arange(6))).chunk(2, dim=1)
        hidden, _ = self.recurrent(first * self.gain)
        return self.head(checkpoint(torch.tanh, hidden, use_reentrant=False))


def _record(directory, level):
    torch.manual_seed(0)
    model = _Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger = PrecisionDebugger(dump_path=str(directory), level=level, task="statistics")
    for _ in range(2):
        debugger.start(model)
        for number in range(3):
            output = model(torch.randint(10, (2, 6)))
            output.logsumexp(-1).mean().backward(retain_graph=number == 1)
            if number == 1:
                output.sum().backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
    debugger.close()
    return {
        (path.parts[-3], name): list(content.get("data", content).items())
        for name in ("dump.json", "construct.json")
        for path in directory.rglob(name)
        for content in [json.loads(path.read_text())]
    }


@pytest.mark.usefixtures("close_debugger")
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_dump_does_not_depend_on_when_its_entries_are_written(tmp_path, monkeypatch, level):
    written = []
    for seconds in (0.0, math.inf):
        monkeypatch.setattr(step_record, "BACKLOG_SECONDS", seconds)
        written.append(_record(tmp_path / str(seconds), level))
    early, late = written
    assert min(len(late[f"step{number}", "dump.json"]) for number in range(2)) > 100
    assert early.keys() == late.keys()
    assert {name for name, records in late.items() if early[name] != records} == set()
