"""Train the small convolutional net of either framework on the same weights and batch, and record a step.

python examples/conv_pair/train.py --framework torch --dump conv/golden
python examples/conv_pair/train.py --framework mindspore --fault --dump conv/target
"""

import argparse

from conv_config import FAULTY_MODULE, ConvConfig, batch


def torch_step(config: ConvConfig, arguments: argparse.Namespace) -> float:
    """Record a step of the PyTorch model; return its loss."""
    import torch
    import torch_conv
    from msprobe.pytorch import PrecisionDebugger

    model = torch_conv.build(config, arguments.fault)
    images, labels = (torch.from_numpy(array) for array in batch(config))
    debugger = PrecisionDebugger(dump_path=arguments.dump, level=arguments.level, task=arguments.task)
    debugger.start(model)
    loss = torch_conv.loss_function(model(images), labels.long())
    loss.backward()
    debugger.stop()
    debugger.step()
    return loss.item()


def mindspore_step(config: ConvConfig, arguments: argparse.Namespace) -> float:
    """Record a step of the MindSpore model; return its loss."""
    import mindspore as ms
    import mindspore_conv
    from msprobe.mindspore import PrecisionDebugger

    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.runtime.launch_blocking()
    model = mindspore_conv.WithLoss(mindspore_conv.build(config, arguments.fault))
    images, labels = (ms.Tensor(array) for array in batch(config))
    debugger = PrecisionDebugger(dump_path=arguments.dump, level=arguments.level, task=arguments.task)
    debugger.start(model)  # the Cell with the loss: the comparison detects that 'model' encloses the net
    loss, _ = ms.value_and_grad(model, None, model.trainable_params())(images, labels)
    debugger.stop()
    debugger.step()
    return float(loss.asnumpy())


def main() -> None:
    """Train and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=("torch", "mindspore"), required=True)
    parser.add_argument("--fault", action="store_true", help=f"with a wrong epsilon in {FAULTY_MODULE}")
    parser.add_argument("--dump", required=True, help="directory for the dump")
    parser.add_argument("--level", default="L0", help="L0, L1 or mix (%(default)s)")
    parser.add_argument("--task", default="statistics", help="statistics or tensor (%(default)s)")
    arguments = parser.parse_args()
    step = torch_step if arguments.framework == "torch" else mindspore_step
    print(f"loss {step(ConvConfig(), arguments):.6f}")


if __name__ == "__main__":
    main()
