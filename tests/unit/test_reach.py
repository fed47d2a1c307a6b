"""How far the result of a call flows."""

from __future__ import annotations

import tracemalloc
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from dumps import tensor, write_dump

from msprobe_core.api_check import reach
from msprobe_core.api_check.reach import reach_of
from msprobe_core.store.reading import read_dump


def value(number: float) -> dict[str, Any]:
    """Return a tensor that no other number gives."""
    return tensor([number, number + 0.25, -number])


def call(inputs: list[float], outputs: list[float]) -> dict[str, Any]:
    """Return a forward record."""
    return {"input_args": list(map(value, inputs)), "input_kwargs": {}, "output": list(map(value, outputs))}


def backward(inputs: list[float], outputs: list[float]) -> dict[str, Any]:
    """Return a backward record."""
    return {"input": list(map(value, inputs)), "output": list(map(value, outputs))}


def reached(directory: Path, data: dict[str, Any], parents: dict[str, str | None] | None = None) -> dict[str, int]:
    """Return the reach of the calls of a dump."""
    return dict(reach_of(read_dump(write_dump(directory, data, parents=parents))))


def test_a_chain(tmp_path: Path) -> None:
    """Each result reaches all calls after it, and the last one none."""
    data = {f"Torch.add.{i}.forward": call([i], [i + 1]) for i in range(4)}
    assert list(reached(tmp_path, data).values()) == [3, 2, 1, 0]


def test_branches_are_counted_once(tmp_path: Path) -> None:
    """A call that two branches reach is one call, and a call beside them is not reached."""
    data = {
        "Torch.a.0.forward": call([1], [2]),
        "Torch.left.0.forward": call([2], [3]),
        "Torch.right.0.forward": call([2], [4]),
        "Torch.beside.0.forward": call([50], [51]),
        "Torch.join.0.forward": call([3, 4], [5]),
    }
    assert list(reached(tmp_path, data).values()) == [3, 1, 1, 0, 0]


def test_a_value_made_twice_is_the_latest(tmp_path: Path) -> None:
    """A call gets what was made last, and a call that passes a value on is in between."""
    data = {
        "Torch.a.0.forward": call([1], [2]),
        "Functional.dropout.0.forward": call([2], [2]),
        "Torch.b.0.forward": call([2], [3]),
    }
    assert list(reached(tmp_path, data).values()) == [2, 1, 0]


def test_modules_are_not_counted(tmp_path: Path) -> None:
    """What gets into a module reaches the calls inside and what follows; the module itself is no further call."""
    data = {
        "Torch.a.0.forward": call([1], [2]),
        "Functional.linear.0.forward": call([2], [3]),
        "Functional.relu.0.forward": call([3], [4]),
        "Module.mlp.MLP.forward.0": call([2], [4]),
        "Torch.b.0.forward": call([4], [5]),
    }
    inside = "Module.mlp.MLP.forward.0"
    parents = {"Functional.linear.0.forward": inside, "Functional.relu.0.forward": inside}
    found = reached(tmp_path, data, {name: parents.get(name) for name in data})
    assert found == {
        "Torch.a.0.forward": 3,
        "Functional.linear.0.forward": 2,
        "Functional.relu.0.forward": 1,
        "Torch.b.0.forward": 0,
    }


def test_backward_uses_what_forward_saved(tmp_path: Path) -> None:
    """The result of a forward reaches its own backward, and what that makes."""
    data = {
        "Torch.exp.0.forward": call([1], [2]),
        "Torch.mul.0.forward": call([2], [3]),
        "Torch.mul.0.backward": backward([10], [11]),
        "Torch.exp.0.backward": backward([11], [12]),
    }
    assert list(reached(tmp_path, data).values()) == [3, 2, 1, 0]


def test_gradients_go_back_where_values_came_from(tmp_path: Path) -> None:
    """A value that two calls use has the sum of two gradients, which is the result of neither."""
    data = {
        "Torch.exp.0.forward": call([1], [2]),
        "Torch.sin.0.forward": call([2], [3]),
        "Torch.add.0.forward": call([2, 3], [4]),
        "Torch.add.0.backward": backward([10], [11, 12]),
        "Torch.sin.0.backward": backward([12], [13]),
        "Torch.exp.0.backward": backward([24], [14]),
    }
    assert list(reached(tmp_path, data).values()) == [5, 4, 3, 2, 1, 0]


def test_zeros_are_not_followed(tmp_path: Path) -> None:
    """A tensor of zeros may come from anywhere."""
    zeros = tensor([0.0, 0.0])
    data = {
        "Torch.zeros.0.forward": {"input_args": [], "input_kwargs": {}, "output": [zeros]},
        "Torch.add.0.forward": {"input_args": [zeros], "input_kwargs": {}, "output": [value(1)]},
    }
    assert list(reached(tmp_path, data).values()) == [0, 0]


def test_blocks_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts do not depend on how many calls are followed at once."""
    data = {f"Torch.add.{i}.forward": call([i, i // 3], [i + 1]) for i in range(40)}
    whole = reached(tmp_path / "whole", data)
    monkeypatch.setattr(reach, "_BLOCK", 7)
    assert reached(tmp_path / "blocks", data) == whole
    assert list(whole.values()) == list(range(39, -1, -1))


@pytest.mark.parametrize(
    "parents",
    [
        {"Torch.add.0.forward": "Torch.add.0.forward", "Torch.add.1.forward": None},
        {"Torch.add.0.forward": "Torch.add.1.forward", "Torch.add.1.forward": "Torch.add.0.forward"},
        {"Torch.add.0.forward": "Module.a.A.forward.0", "Module.a.A.forward.0": "Module.a.A.forward.0"},
    ],
    ids=["itself", "each other", "unrecorded"],
)
def test_a_damaged_nesting_is_an_answer(tmp_path: Path, parents: dict[str, str | None]) -> None:
    """Calls that claim to enclose themselves or each other do not stop it."""
    data = {"Torch.add.0.forward": call([1], [2]), "Torch.add.1.forward": call([2], [3])}
    assert set(reached(tmp_path, data, parents).values()) <= {0, 1}


@pytest.mark.slow
def test_many_rows(tmp_path: Path) -> None:
    """60,000 rows are followed in blocks: of 20,000 calls that all reach each other, 50 MB of bits are kept at most."""
    numbers = count(1)
    data: dict[str, Any] = {}
    residual = next(numbers)
    for i in range(20_000):
        made = next(numbers)
        data[f"Torch.add.{i}.forward"] = call([residual, made - 1], [made])
        residual = made if i % 4 == 0 else residual
    dump = read_dump(write_dump(tmp_path, data))
    assert dump.frame.height == 60_000
    tracemalloc.start()
    found = reach_of(dump)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 << 20, peak
    assert found["Torch.add.0.forward"] > 15_000
