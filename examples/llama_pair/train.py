"""Train the small Llama of either framework on the same weights and batches, and record its steps.

python examples/llama_pair/train.py --framework torch --dump demo_output/golden
python examples/llama_pair/train.py --framework mindspore --inject eps --dump demo_output/target
"""

import argparse
from collections.abc import Callable

from llama_config import FAULTY_MODULE, Fault, LlamaConfig, batch

LEARNING_RATE = 0.1
TrainStep = Callable[[int], float]


def torch_training(config: LlamaConfig, fault: Fault | None) -> tuple[object, TrainStep]:
    """Return the PyTorch model, and a function that trains it for one step and returns the loss."""
    import torch
    import torch_llama

    torch.use_deterministic_algorithms(True)
    model = torch_llama.build(config, fault)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def train_step(step: int) -> float:
        tokens, labels = (torch.from_numpy(array).long() for array in batch(config, step))
        loss = torch_llama.loss_function(model(tokens), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return model, train_step


def mindspore_training(config: LlamaConfig, variant: str, mode: str, fault: Fault | None) -> tuple[object, TrainStep]:
    """Return the MindSpore model, and a function that trains it for one step and returns the loss."""
    import mindspore as ms
    import mindspore_llama

    mindspore_llama.set_mode(mode)
    model = mindspore_llama.build(config, variant, fault)
    parameters = model.trainable_params()
    optimizer = ms.nn.SGD(parameters, learning_rate=LEARNING_RATE)
    loss_and_gradients = ms.value_and_grad(mindspore_llama.WithLoss(model), None, parameters)

    def train_step(step: int) -> float:
        tokens, labels = (ms.Tensor(array) for array in batch(config, step))
        loss, gradients = loss_and_gradients(tokens, labels)
        optimizer(gradients)
        return float(loss.asnumpy())

    return model, train_step


def parse_arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=("torch", "mindspore"), required=True)
    parser.add_argument("--variant", choices=("nn", "mint"), default="nn", help="of MindSpore's model (%(default)s)")
    parser.add_argument("--mode", choices=("pynative", "graph"), default="pynative", help="of MindSpore (%(default)s)")
    parser.add_argument("--inject", type=Fault, choices=list(Fault), metavar="eps|scale|rope|weight", help="a fault")
    parser.add_argument("--dump", required=True, help="directory for the dump")
    parser.add_argument("--level", default="mix", help="L0, L1 or mix (%(default)s)")
    parser.add_argument("--task", default="statistics", help="statistics or tensor (%(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="number of steps (%(default)s)")
    return parser.parse_args()


def main() -> None:
    """Train and record."""
    arguments = parse_arguments()
    config, fault = LlamaConfig(), arguments.inject
    if arguments.framework == "torch":
        from msprobe.pytorch import PrecisionDebugger

        model, train_step = torch_training(config, fault)
    else:
        from msprobe.mindspore import PrecisionDebugger

        model, train_step = mindspore_training(config, arguments.variant, arguments.mode, fault)
    if fault is not None:
        print("planted a fault in", FAULTY_MODULE[fault])

    debugger = PrecisionDebugger(dump_path=arguments.dump, level=arguments.level, task=arguments.task)
    for step in range(arguments.steps):
        debugger.start(model)
        loss = train_step(step)
        debugger.stop()
        debugger.step()
        print(f"step {step}: loss {loss:.6f}")


if __name__ == "__main__":
    main()
