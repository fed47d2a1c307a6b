"""Communicate in each of two steps on each of two ranks, while the monitor collects what is exchanged.

Then again while a debugger records the steps too: once it begins after the monitor, once before it.

    msrun --worker_num=2 --local_worker_num=2 --join=True monitored_exchange.py DIRECTORY

The monitor writes to ``out``, ``out_debugger_last`` and ``out_debugger_first``, and the debugger to ``dump_last`` and
``dump_first``, all in ``DIRECTORY``; the weights in the end, and those of a training without the monitor, which is the
first, are in ``DIRECTORY/weights{rank}.npy``.
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
from msprobe.mindspore import PrecisionDebugger, TrainerMon


def train(monitor_of=lambda *_: None, begin=lambda _: None, end=lambda: None):
    net = nn.SequentialCell(dense(4, 3, np.random.RandomState(0)))
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    monitor = monitor_of(net, optimizer)
    gradients_of = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    for _ in range(2):
        begin(net)
        _, gradients = gradients_of(Tensor(np.full((2, 4), 1.0 + get_rank(), np.float32)))
        handles = [mint.distributed.all_reduce(each, async_op=True) for each in gradients]
        for handle in handles:
            handle.wait()
        value = Tensor(np.full(4, 1.0 + get_rank(), np.float32))
        mint.distributed.all_reduce(value)
        comm_func.broadcast(value, 0, GlobalComm.WORLD_COMM_GROUP)
        ops.AllReduce()(value)
        optimizer(gradients)
        end()
    if monitor is not None:
        monitor.close()
    return np.concatenate([each.asnumpy().ravel() for each in net.trainable_params()])


def main():
    directory = Path(sys.argv[1])
    init("mccl")
    config = directory / f"monitor{get_rank()}.json"
    communication = {"enable": True, "cc_pre_hook": True}
    config.write_text(json.dumps({"ops": ["norm"], "cc_distribution": communication}))

    def monitor_of(net, optimizer, place="out"):
        os.environ["MONITOR_OUTPUT_DIR"] = str(directory / place)
        monitor = TrainerMon(config)
        monitor.set_monitor(net, optimizer)
        return monitor

    def train_with_both(order):
        debugger = PrecisionDebugger(dump_path=str(directory / f"dump_{order}"), level="L1", task="statistics")

        def begin(net):
            debugger.start(net)

        def end():
            debugger.stop()
            debugger.step()

        def set_monitor(net, optimizer):
            if order == "first":
                begin(net)  # so that the monitor's interception is around the debugger's
            return monitor_of(net, optimizer, f"out_debugger_{order}")

        if order == "last":
            weights = train(set_monitor, begin, end)
        else:
            weights = train(set_monitor)
            end()
        debugger.close()
        return weights

    runs = [train(), train(monitor_of), train_with_both("last"), train_with_both("first")]
    np.save(directory / f"weights{get_rank()}.npy", runs)


if __name__ == "__main__":
    main()
