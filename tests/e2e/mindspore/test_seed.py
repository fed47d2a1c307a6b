"""``seed_all`` of MindSpore."""

from __future__ import annotations

import csv
import random

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
from mindspore import Tensor, mint, nn, ops  # noqa: E402
from msprobe.mindspore import random_save, seed_all  # noqa: E402

from msprobe_core.errors import ConfigError  # noqa: E402


def draws():
    return random.random(), np.random.rand(), ops.standard_normal((3,)).asnumpy().tobytes(), dropped(nn.Dropout(p=0.5))


def dropped(cell, *shape):
    cell.set_train()
    return cell(Tensor(np.ones(shape or (64,), np.float32))).asnumpy().tobytes()


def test_the_same_seed_gives_the_same_numbers():
    seed_all(7)
    first = draws()
    seed_all(7)
    assert draws() == first
    seed_all(8)
    assert draws() != first


def test_dropout_is_taken_out_and_put_back():
    def kept(cell, *shape):
        return bool(np.frombuffer(dropped(cell, *shape), np.float32).all())

    before = nn.Dropout(p=0.5)
    cells = [(before, ()), (nn.Dropout2d(p=0.5), (2, 8, 3, 3)), (nn.Dropout3d(p=0.5), (2, 8, 3, 3, 3))]
    assert not any(kept(cell, *shape) for cell, shape in cells)
    construct, call = ops.Dropout.__init__, ops.Dropout.__call__
    with seed_all(1, rm_dropout=True):
        assert all(kept(cell, *shape) for cell, shape in [*cells, (nn.Dropout(p=0.5), ())])
        ones = Tensor(np.ones((4, 8, 3, 3), np.float32))
        for function in (ops.dropout, ops.dropout2d, mint.nn.functional.dropout):
            assert function(ones, 0.5).asnumpy().all()
        gradient = ms.grad(lambda x: ops.dropout(x * 2.0, 0.5).sum())(ones)
        assert (gradient.asnumpy() == 2.0).all()
        made_within = [(nn.Dropout(p=0.5), ()), (nn.Dropout2d(p=0.5), (2, 8, 3, 3))]
        assert all(kept(cell, *shape) for cell, shape in made_within)
    assert ops.Dropout.__init__ is construct
    assert ops.Dropout.__call__ is call
    assert "__call__" not in vars(ops.Dropout2D)
    assert not any(kept(cell, *shape) for cell, shape in [*cells, *made_within])


def test_a_graph_compiled_within_keeps_everything():
    with seed_all(1, rm_dropout=True):
        cell = nn.Dropout(p=0.5).set_train()

        @ms.jit
        def compiled(x):
            return cell(x)

        assert compiled(Tensor(np.ones(64, np.float32))).asnumpy().all()


@pytest.mark.parametrize(
    "arguments", [{"seed": -1}, {"seed": True}, {"seed": 2**32}, {"mode": 1}, {"rm_dropout": None}]
)
def test_wrong_arguments_are_named(arguments):
    with pytest.raises(ConfigError, match=f"'{next(iter(arguments))}' is"):
        seed_all(**arguments)


# --- is_enhanced, random_save ---------------------------------------------------------------------------------------

ONES = Tensor(np.ones(64, np.float32))

DRAWS = {
    "random.random": lambda: random.random(),  # looked up at each call
    "numpy.random.rand": lambda: np.random.rand(3).tobytes(),
    "mindspore.ops.standard_normal": lambda: ops.standard_normal((3,)),
    "mindspore.ops.uniform": lambda: ops.uniform((3,), Tensor(0.0), Tensor(1.0)),
    "mindspore.ops.rand": lambda: ops.rand(3),
    "mindspore.ops.dropout": lambda: ops.dropout(ONES, 0.5),
    "mindspore.mint.randn": lambda: mint.randn(3),
    "mindspore.mint.randint": lambda: mint.randint(0, 9, (9,)),
    "mindspore.mint.nn.functional.dropout": lambda: mint.nn.functional.dropout(ONES, 0.5),
    "mindspore.Tensor.normal_": lambda: mint.zeros(3).normal_(),
}


def drawn(name):
    value = DRAWS[name]()
    return value.asnumpy().tobytes() if isinstance(value, Tensor) else value


def supported(names):
    """Return those that this MindSpore has a kernel for on the CPU."""
    found = []
    for name in names:
        try:
            drawn(name)
        except RuntimeError:
            continue
        found.append(name)
    return found


def test_each_call_draws_the_same_where_it_is_asked_for():
    names = supported(DRAWS)
    assert {"random.random", "numpy.random.rand", "mindspore.ops.standard_normal", "mindspore.ops.dropout"} <= {*names}
    seed_all(7)
    assert [name for name in names if drawn(name) == drawn(name)] == []
    with seed_all(7, is_enhanced=True):
        assert [name for name in names if drawn(name) != drawn(name)] == []
    assert [name for name in names if drawn(name) == drawn(name)] == []


def test_each_draw_is_a_row_and_draws_what_it_draws_without(tmp_path):
    names = supported(DRAWS)
    seed_all(7)
    expected = [drawn(name) for name in names]
    seed_all(7)
    with random_save(tmp_path) as log:
        assert [drawn(name) for name in names] == expected
        dropped(nn.Dropout(p=0.5))
    ops.standard_normal((3,))
    with log.path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["api_name"] for row in rows][:-1] == names
    assert rows[-1]["api_name"].endswith(".Dropout.__call__")
    assert all(__file__ in row["stack"] for row in rows)
