"""Monitor one data-parallel step on each of two ranks; ``TrainOneStepCell`` reduces the gradients.

    msrun --worker_num=2 --local_worker_num=2 --join=True monitored_ranks.py DIRECTORY

The monitor writes to ``DIRECTORY/out``; the gradient of a rank's own batch is in ``DIRECTORY/own{rank}.npy``.
"""

import json
import os
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.communication import get_rank, init
from mindspore_rig import dense
from msprobe.mindspore import TrainerMon


def main():
    directory = Path(sys.argv[1])
    init("mccl")
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory / "out")
    config = directory / f"monitor{get_rank()}.json"
    config.write_text(json.dumps({"ops": ["norm"], "ndigits": 14, "wg_distribution": True}))
    net = nn.SequentialCell(dense(8, 6, np.random.RandomState(0)))
    x = ms.Tensor(np.random.RandomState(get_rank()).normal(size=(4, 8)).astype(np.float32))
    y = ms.Tensor(np.zeros((4, 6), np.float32))
    with_loss = nn.WithLossCell(net, nn.MSELoss())
    np.save(directory / f"own{get_rank()}.npy", ms.grad(with_loss, None, net.trainable_params())(x, y)[0].asnumpy())
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    monitor = TrainerMon(config)
    monitor.set_monitor(net, optimizer)
    nn.TrainOneStepCell(with_loss, optimizer).set_train()(x, y)
    monitor.close()


if __name__ == "__main__":
    main()
