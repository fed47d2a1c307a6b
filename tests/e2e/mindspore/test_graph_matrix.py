"""Every layer of ``mindspore.nn`` that runs on a CPU computes bitwise the same in a graph with points as without."""

import pytest

from tests.support.graph_nets import Tensor, arrays_in, ms, record, step_of
from tests.support.mindspore_layers import FORWARD_ONLY, LAYERS

QUICK = ("Dense", "LayerNorm", "BatchNorm2d", "CrossEntropyLoss", "Dropout", "Embedding")

LEVELS = ("O0", "O1", "O2")


@pytest.fixture(autouse=True)
def graph_mode(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a compiler that fails leaves files
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE, jit_level="O0")


def step(name):
    """Return a net with a layer, and what runs it: with all gradients, where the backend has them."""
    layer = LAYERS[name]
    net, inputs = layer.build(), layer.inputs()
    ms.set_seed(1)
    positions = tuple(i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.dtype == ms.float32) or None
    if name in FORWARD_ONLY or (positions is None and not net.trainable_params()):
        return net, lambda: (net(*inputs),)
    return net, step_of(net, *inputs, positions=positions)


LONG = ("DiGamma", "IGamma", "LBeta", "LGamma")  # their graphs have hundreds of operators


def mark_of(name, level, number):
    if level == "O0" and name in QUICK:
        return ()
    return pytest.mark.slow if level == "O0" and name not in LONG and number % 2 else pytest.mark.nightly


CASES = [
    pytest.param(name, level, marks=mark_of(name, level, number))
    for level in LEVELS
    for number, name in enumerate(LAYERS)
]


@pytest.mark.parametrize(("name", "level"), CASES)
def test_a_layer(name, level, tmp_path):
    ms.set_context(jit_level=level)
    _, run = step(name)
    bare = run()
    net, run = step(name)
    dump, result = record(net, run, tmp_path / "dump")
    assert arrays_in(result) == arrays_in(bare)
    assert sum("forward" in entry for entry in dump.entries) >= 2
