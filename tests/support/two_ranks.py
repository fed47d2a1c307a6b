"""Train the small Llama of MindSpore data-parallel, healthy and with a fault on rank 1, and record both.

    msrun --worker_num=2 --local_worker_num=2 --join=True two_ranks.py DIRECTORY LEVEL

Writes ``DIRECTORY/golden`` and ``DIRECTORY/target``. One job records both, as starting one takes most of the time.
"""

import sys
from pathlib import Path

import mindspore as ms
import mindspore_llama
from llama_config import Fault, LlamaConfig, batch
from mindspore import ops
from mindspore.communication import get_group_size, get_rank, init
from msprobe.mindspore import PrecisionDebugger

FAULTY_RANK = 1
STEPS = 2


def train(dump, level, fault):
    """Train and record; gradients are the means over all ranks, each of which has batches of its own."""
    model = mindspore_llama.build(LlamaConfig(), "nn", fault)
    parameters = model.trainable_params()
    loss_and_gradients = ms.value_and_grad(mindspore_llama.WithLoss(model), None, parameters)
    optimizer = ms.nn.SGD(parameters, learning_rate=0.1)
    all_reduce = ops.AllReduce()
    debugger = PrecisionDebugger(dump_path=str(dump), level=level)
    for step in range(STEPS):
        tokens, labels = (ms.Tensor(array) for array in batch(LlamaConfig(), step * get_group_size() + get_rank()))
        debugger.start(model)
        loss, gradients = loss_and_gradients(tokens, labels)
        optimizer(tuple(all_reduce(gradient) / get_group_size() for gradient in gradients))
        debugger.stop()
        debugger.step()
        print(f"step {step}: loss {float(loss.asnumpy()):.6f}")
    debugger.close()


def main():
    directory, level = Path(sys.argv[1]), sys.argv[2]
    ms.runtime.launch_blocking()
    init("mccl")
    train(directory / "golden", level, None)
    train(directory / "target", level, Fault.EPS if get_rank() == FAULTY_RANK else None)


if __name__ == "__main__":
    main()
