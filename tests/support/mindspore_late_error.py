"""A training in which an operator fails after its call has returned: whether the program gets the error, as text."""

import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from msprobe.mindspore import PrecisionDebugger

ms.set_context(mode=ms.PYNATIVE_MODE)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 3)

    def construct(self, x: Tensor) -> Tensor:
        return ops.gather_d(self.dense(x), 0, Tensor([[7, 7, 7]]))  # there is no row 7


net = Net()
debugger = PrecisionDebugger(dump_path=sys.argv[1], level=sys.argv[2], task="statistics")
try:
    with debugger.start(net):
        net(Tensor(np.ones((2, 3), np.float32))).asnumpy()
    print("no error")
except RuntimeError as error:
    print(type(error).__name__, str(error).splitlines()[0])
