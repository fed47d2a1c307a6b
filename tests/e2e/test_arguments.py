"""Arguments of all kinds: one shape in the record wherever they stand, and every reader takes it."""

import enum
import json

import numpy as np
import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded

from msprobe_core.cli.main import main


class Mode(enum.Enum):
    FAST = "fast"


ARGUMENTS = {
    "dtype": torch.float16,
    "device": torch.device("cpu", 0),
    "layout": torch.strided,
    "size": torch.Size([1, 2]),
    "complex": 1 - 2j,
    "bytes": b"ab",
    "range": range(3),
    "enum": Mode.FAST,
    "slice": slice(None),
    "infinity": -float("inf"),
    "large": 2**70,
    "array": np.array([[1.0, 2.0]]),
    "empty array": np.zeros((0, 3)),
    "texts": np.array(["a"]),
    "complex array": np.ones(2, np.complex64),
    "scalar": np.float16(1),
    "long": list(range(2000)),
    "odd": {"type": np.zeros(0), "shape": [[], ()], "dtype": {}},
}


class Net(torch.nn.Module):
    def forward(self, values, *_, **__):
        return values * 1


def record(path, model, **settings):
    config = path.with_suffix(".config.json")
    config.write_text(json.dumps({"task": "statistics", "level": "L0", "dump_path": str(path), **settings}))
    debugger = PrecisionDebugger(config)
    values = torch.ones(2)
    with debugger.start(model):
        model(values, *ARGUMENTS.values(), list(ARGUMENTS.values()), **ARGUMENTS)
    debugger.close()
    return path


def test_the_position_of_an_argument_does_not_change_its_record(tmp_path):
    (call,) = Recorded(record(tmp_path / "run", Net())).data.values()
    _, *positional, nested = call["input_args"]
    assert positional == nested == list(call["input_kwargs"].values())
    assert all(value is not None for value in positional)


@pytest.mark.parametrize("writer", ["json", "arrow"])
def test_every_reader_takes_them(writer, tmp_path, capsys):
    if writer == "arrow":
        pytest.importorskip("pyarrow")
    model = Net()
    target, golden = (record(tmp_path / name, model, writer=writer) for name in ("target", "golden"))
    commands = [
        ["compare", "-tp", target, "-gp", golden, "-o", tmp_path / "compared"],
        ["locate", target, golden, "-o", tmp_path / "located"],
        ["overflow_check", target, "-o", tmp_path / "searched"],
        ["view", target, golden, "-o", tmp_path / "viewed"],
        ["convert", target, tmp_path / "converted"],
    ]
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in command])
        said = capsys.readouterr()
        assert ended.value.code in {None, 0}, said
        assert "malformed" not in said.out + said.err


def test_a_long_list_makes_a_short_record(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"task": "statistics", "level": "L1", "risk_level": "ALL", "dump_path": str(tmp_path / "run")})
    )
    debugger = PrecisionDebugger(config)
    with debugger.start():
        torch.tensor(list(range(100_000)))
    debugger.close()
    recorded = Recorded(tmp_path / "run")
    assert recorded.data["Torch.tensor.0.forward"]["input_args"][0]["shape"] == [100_000]
    assert len(json.dumps(recorded.data)) < 2000
