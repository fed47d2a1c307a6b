"""Two steps of a tiny net in a static graph: ``python kernel_training.py EPSILON [CONFIG [FIRST_STEP]]``.

EPSILON is that of a normalisation; with CONFIG the program has a debugger, without it knows of none. FIRST_STEP is what
the first step is called; ``late`` constructs the debugger when a graph has been compiled already.
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops


class Net(nn.Cell):
    def __init__(self, epsilon):
        super().__init__()
        self.first = nn.Dense(4, 8)
        self.norm = nn.LayerNorm((8,), epsilon=epsilon)
        self.last = nn.Dense(8, 2)

    def construct(self, x):
        return self.last(ops.relu(self.norm(self.first(x))))


def main(epsilon, config=None, first_step="0"):
    ms.set_context(mode=ms.GRAPH_MODE)
    if first_step == "late":
        nn.ReLU()(Tensor([1.0])).asnumpy()
    debugger = None
    if config is not None:
        from msprobe.mindspore import PrecisionDebugger

        debugger = PrecisionDebugger(config)
    if first_step.isdecimal() and int(first_step):
        debugger.set_init_step(int(first_step))
    values = np.random.default_rng(7)
    net = Net(epsilon)
    for parameter in net.get_parameters():
        parameter.set_data(Tensor(values.standard_normal(parameter.shape).astype(np.float32)))
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
    x, y = (Tensor(values.standard_normal((3, n)).astype(np.float32)) for n in (4, 2))
    for _ in range(2):
        if debugger is not None:
            debugger.start()
        print(step(x, y).asnumpy().tobytes().hex())
        if debugger is not None:
            debugger.stop()
            debugger.step()


if __name__ == "__main__":
    main(float(sys.argv[1]), *sys.argv[2:])
