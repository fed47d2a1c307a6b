"""``seed_all`` of MindSpore."""

from __future__ import annotations

import random

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
from mindspore import Tensor, mint, nn, ops  # noqa: E402
from msprobe.mindspore import seed_all  # noqa: E402

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
