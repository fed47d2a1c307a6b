"""A net that saves values of its own; in a file, for MindSpore compiles graphs from their source."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from msprobe.mindspore import save, save_grad


class Net(nn.Cell):
    """With ``directory`` it saves, with ``None`` it does not."""

    def __init__(self, directory):
        super().__init__()
        self.directory = directory
        self.weight = Parameter(Tensor(np.random.RandomState(3).randn(3, 2).astype(np.float32)), name="weight")

    def construct(self, x):
        if self.directory is not None:
            save(self.directory, "x", x)
        hidden = ops.matmul(x, self.weight)
        if self.directory is not None:
            hidden = save_grad(self.directory, "hidden", hidden)
            nested = {"pair": [hidden, x.sum()], "half": ops.cast(x, ms.bfloat16)}
            save(self.directory, "nested", nested)
        return (hidden * hidden).sum() + hidden.sum()


@ms.jit
def compiled(x, directory):
    save(directory, "in_jit", x)
    return x * 2


def x():
    return Tensor(np.arange(6).reshape(2, 3).astype(np.float32))


def loss_and_gradients(directory):
    """A function of no arguments: loss and gradients, with respect to the input and the weight, as arrays."""
    net = Net(directory)
    compute = ms.value_and_grad(net, 0, net.trainable_params())

    def run():
        loss, (of_input, (of_weight,)) = compute(x())
        return [value.asnumpy() for value in (loss, of_input, of_weight)]

    return run
