"""`PrecisionDebugger.save` on the tensors of MindSpore: true gradients, also of parameters."""

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, ops
from msprobe.mindspore import PrecisionDebugger

ms.runtime.launch_blocking()


@pytest.fixture(autouse=True)
def dynamic_graph():
    ms.set_context(mode=ms.PYNATIVE_MODE)


def x_of_net():
    return Tensor(np.arange(6).reshape(2, 3).astype(np.float32))


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_values_at_level_debug_have_their_gradients(tmp_path, task):
    debugger = PrecisionDebugger(dump_path=tmp_path, task=task, level="debug")
    weight = Parameter(Tensor(np.arange(6).reshape(3, 2).astype(np.float32)), name="w")

    def loss(x, *, saves):
        hidden = ops.matmul(x, weight)
        if saves:
            debugger.save({"hidden": hidden, "parts": [weight, 3]}, "state")
            debugger.save(hidden, "alone", save_backward=False)
        return (hidden * hidden).sum() + (hidden * x[0, 1]).sum()

    def run(*, saves):
        value, gradients = ms.value_and_grad(lambda x: loss(x, saves=saves), 0, [weight])(x_of_net())
        return value.asnumpy(), gradients[0].asnumpy(), gradients[1][0].asnumpy()

    try:
        expected = run(saves=False)
        for _ in range(2):  # with the second micro-batch the parameter gets another gradient
            first = run(saves=True)
            assert all(np.array_equal(*pair) for pair in zip(first, expected, strict=True))
        debugger.step()
    finally:
        debugger.close()
    (directory,) = (tmp_path / "step0").iterdir()
    data = json.loads((directory / "debug.json").read_text())["data"]
    assert sorted(data) == [f"{name}.{n}.debug" for name in ("alone", "state", "state_grad") for n in (0, 1)]
    assert data["state.0.debug"]["parts"][1] == {"type": "int", "value": 3}
    hidden = ops.matmul(x_of_net(), weight).asnumpy()
    gradients = data["state_grad.0.debug"]
    assert gradients["hidden"]["Max"] == (2 * hidden + 1).max()
    assert gradients["parts"][0]["Max"] == first[2].max()
    if task == "tensor":
        path = directory / "dump_tensor_data" / gradients["hidden"]["data_name"]
        assert np.array_equal(np.load(path), 2 * hidden + 1)
