"""Communicate between the ranks of a job, and record it.

msrun --worker_num=2 --local_worker_num=2 --join=True mindspore_communication.py DIRECTORY
"""

import sys

import mindspore as ms
import mindspore.communication.comm_func as comm_func
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.communication import GlobalComm, get_rank, init
from msprobe.mindspore import PrecisionDebugger


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.reduce = ops.AllReduce()

    def construct(self, x):
        return self.reduce(ops.relu(x))


def values(offset=0.0):
    return Tensor(np.arange(4, dtype=np.float32) + 10 * get_rank() + offset)


def communicate(net):
    summed = values()
    mint.distributed.all_reduce(summed)
    waited = values()
    handle = mint.distributed.all_reduce(waited, async_op=True)
    ops.relu(values())
    handle.wait()
    lost = values()
    mint.distributed.all_reduce(lost, group=None, async_op=True)
    parts = [Tensor(np.zeros(4, np.float32)) for _ in range(2)]
    mint.distributed.all_gather(parts, values())
    mint.distributed.broadcast(values(), src=1)
    mint.distributed.barrier()
    mint.distributed.all_gather_object([None, None], {"rank": get_rank()})
    comm_func.broadcast(values(), 0, GlobalComm.WORLD_COMM_GROUP)
    ops.AllGather()(values())
    ms.grad(lambda x: net(x).sum())(values())
    return summed, waited


def main():
    ms.runtime.launch_blocking()
    init("mccl")
    net = Net()
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L1", task="tensor")
    with debugger.start(net):
        summed, waited = communicate(net)
    debugger.close()
    assert summed.asnumpy().tolist() == waited.asnumpy().tolist() == [10.0, 12.0, 14.0, 16.0]


if __name__ == "__main__":
    main()
