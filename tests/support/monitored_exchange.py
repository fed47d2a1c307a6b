"""Communicate in each of two steps on each of two ranks, while the monitor collects what is exchanged.

    msrun --worker_num=2 --local_worker_num=2 --join=True monitored_exchange.py DIRECTORY

The monitor writes to ``DIRECTORY/out``; the weights in the end, and those of a training without the monitor, are in
``DIRECTORY/weights{rank}.npy``.
"""

import json
import os
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.communication import GlobalComm, comm_func, get_rank, init
from mindspore_rig import dense
from msprobe.mindspore import TrainerMon


def train(monitor_of=lambda *_: None):
    net = nn.SequentialCell(dense(4, 3, np.random.RandomState(0)))
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    monitor = monitor_of(net, optimizer)
    gradients_of = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    for _ in range(2):
        _, gradients = gradients_of(Tensor(np.full((2, 4), 1.0 + get_rank(), np.float32)))
        handles = [mint.distributed.all_reduce(each, async_op=True) for each in gradients]
        for handle in handles:
            handle.wait()
        value = Tensor(np.full(4, 1.0 + get_rank(), np.float32))
        mint.distributed.all_reduce(value)
        comm_func.broadcast(value, 0, GlobalComm.WORLD_COMM_GROUP)
        ops.AllReduce()(value)
        optimizer(gradients)
    if monitor is not None:
        monitor.close()
    return np.concatenate([each.asnumpy().ravel() for each in net.trainable_params()])


def main():
    directory = Path(sys.argv[1])
    init("mccl")
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory / "out")
    config = directory / f"monitor{get_rank()}.json"
    communication = {"enable": True, "cc_pre_hook": True}
    config.write_text(json.dumps({"ops": ["norm"], "cc_distribution": communication}))

    def monitor_of(net, optimizer):
        monitor = TrainerMon(config)
        monitor.set_monitor(net, optimizer)
        return monitor

    np.save(directory / f"weights{get_rank()}.npy", [train(), train(monitor_of)])


if __name__ == "__main__":
    main()
