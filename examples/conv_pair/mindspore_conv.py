"""The small convolutional net in MindSpore, where some parameters have other names."""

from conv_config import ConvConfig, weights
from mindspore import Tensor, nn, ops

# Names of parameters and buffers of normalisations: PyTorch's, and MindSpore's.
NORM_NAMES = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}


class Block(nn.Cell):
    def __init__(self, before: int, after: int, eps: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, pad_mode="pad", padding=1, has_bias=True)
        self.norm = nn.BatchNorm2d(after, eps=eps, momentum=0.9)  # of the old value; PyTorch's is of the new one
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)

    def construct(self, x):
        return self.pool(self.relu(self.norm(self.conv(x))))


class ConvNet(nn.Cell):
    def __init__(self, config: ConvConfig, has_fault: bool) -> None:
        super().__init__()
        self.blocks = nn.SequentialCell(*[Block(*sizes) for sizes in config.blocks(has_fault)])
        self.head = nn.Dense(config.channels[-1], config.classes)

    def construct(self, images):
        return self.head(self.blocks(images).mean((2, 3)))


class WithLoss(nn.Cell):
    """The model and its loss, for functions that take gradients of a Cell; parameters keep their names."""

    def __init__(self, model: ConvNet) -> None:
        super().__init__(auto_prefix=False)
        self.model = model

    def construct(self, images, labels):
        return ops.cross_entropy(self.model(images), labels)


def parameter_name(torch_name: str) -> str:
    """Return the name of a parameter or buffer of the PyTorch model in this model."""
    module, _, name = torch_name.rpartition(".")
    return f"{module}.{NORM_NAMES[name]}" if module.endswith("norm") else torch_name


def build(config: ConvConfig, has_fault: bool = False) -> ConvNet:
    """Return the model in training mode, with the shared weights and, on request, a wrong epsilon."""
    model = ConvNet(config, has_fault)
    arrays = {parameter_name(name): array for name, array in weights(config).items()}
    parameters = {parameter.name: parameter for parameter in model.get_parameters()}
    assert {name: array.shape for name, array in arrays.items()} == {n: p.shape for n, p in parameters.items()}
    for name, parameter in parameters.items():
        parameter.set_data(Tensor(arrays[name]))
    return model.set_train()
