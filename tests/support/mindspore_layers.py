"""Layers of ``mindspore.nn`` that run on a CPU, each with arguments to make it of and tensors to call it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from tests.support.graph_nets import filled


@dataclass(frozen=True)
class Layer:
    """A layer and a call of it; random weights and inputs follow from the seed."""

    make: Callable[[], nn.Cell]
    inputs: Callable[[], tuple[Any, ...]]

    def build(self, seed: int = 0) -> nn.Cell:
        """Return a net whose only Cell is the layer and whose result is a number, in training mode."""
        ms.set_seed(seed)
        return Reduced(self.make()).set_train()


class Reduced(nn.Cell):
    """The sum of the squares of what a layer returns, so that every gradient depends on its values."""

    def __init__(self, layer: nn.Cell) -> None:
        super().__init__()
        self.layer = layer

    def construct(self, *inputs):
        return reduced(self.layer(*inputs))


def reduced(value):
    total = 0.0
    if isinstance(value, Tensor):
        value = ops.cast(value, ms.float32)
        total = (value * value).sum()
    else:
        for item in value:
            part = item
            if isinstance(part, (tuple, list)):
                part = part[0] + part[1]
            part = ops.cast(part, ms.float32)
            total = total + (part * part).sum()
    return total


def whole(*shape: int, below: int = 4, seed: int = 0) -> Tensor:
    return Tensor(np.random.RandomState(seed).randint(0, below, shape).astype(np.int32))


def positive(*shape: int, seed: int = 0) -> Tensor:
    return Tensor((np.abs(np.random.RandomState(seed).normal(size=shape)) + 0.1).astype(np.float32))


def share(*shape: int, seed: int = 0) -> Tensor:
    """Numbers between 0 and 1."""
    return Tensor(np.random.RandomState(seed).uniform(0.1, 0.9, size=shape).astype(np.float32))


def signs(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.sign(np.random.RandomState(seed).normal(size=shape)).astype(np.float32))


def of(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (filled(*shape),)


def two(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (filled(*shape), filled(*shape, seed=1))


ROW, LINE, IMAGE, VOLUME = (4, 6), (2, 4, 8), (2, 4, 8, 8), (1, 4, 6, 6, 6)

LAYERS: dict[str, Layer] = {}

FORWARD_ONLY = frozenset({"EmbeddingExt", "EmbeddingLookup", "FractionalMaxPool2d"})
"""Layers of which the CPU backend can compute no gradient."""


def _add(inputs: Callable[[], tuple[Any, ...]], **makes: Callable[[], nn.Cell]) -> None:
    for name, make in makes.items():
        LAYERS[name] = Layer(make, inputs)


# Activations: each of one tensor.
for _kind in (
    nn.CELU, nn.ELU, nn.FastGelu, nn.GELU, nn.GLU, nn.HShrink, nn.HSigmoid, nn.HSwish, nn.Hardtanh, nn.Identity,
    nn.LeakyReLU, nn.LogSigmoid, nn.LogSoftmax, nn.Mish, nn.PReLU, nn.RReLU, nn.ReLU, nn.ReLU6, nn.SeLU, nn.SiLU,
    nn.Sigmoid, nn.SoftShrink, nn.Softmax, nn.Softmin, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.PReLUExt,
    nn.LogSoftmaxExt,
):  # fmt: skip
    LAYERS[_kind.__name__] = Layer(_kind, of(*ROW))
_add(of(*ROW), Threshold=lambda: nn.Threshold(0.1, 2.0), Norm=nn.Norm, Moments=lambda: nn.Moments(0))
_add(of(*ROW), Tril=nn.Tril, Triu=nn.Triu, L1Regularizer=lambda: nn.L1Regularizer(0.1))
_add(of(*ROW), ReduceLogSumExp=lambda: nn.ReduceLogSumExp(1))
_add(of(*ROW), Pad=lambda: nn.Pad(((1, 1), (0, 2))), Unflatten=lambda: nn.Unflatten(1, (2, 3)))
_add(of(*IMAGE), Softmax2d=nn.Softmax2d, Flatten=nn.Flatten)
_add(lambda: (positive(*ROW),), LGamma=nn.LGamma, DiGamma=nn.DiGamma)
_add(lambda: (positive(*ROW), positive(*ROW, seed=1)), IGamma=nn.IGamma, LBeta=nn.LBeta)

# Linear maps and embeddings.
_add(
    of(*ROW),
    Dense=lambda: nn.Dense(6, 5),
    DenseWithoutBias=lambda: nn.Dense(6, 5, has_bias=False),
    DenseActivated=lambda: nn.Dense(6, 5, activation="relu"),
    DenseBnAct=lambda: nn.DenseBnAct(6, 5, has_bn=True, activation="relu"),
    DenseThor=lambda: nn.DenseThor(6, 5),
    Linear=lambda: nn.Linear(6, 5),
)
_add(lambda: (filled(4, 3), filled(4, 5, seed=1)), BiDense=lambda: nn.BiDense(3, 5, 2))
_add(lambda: (filled(4, 3), filled(3, 5, seed=1)), MatMul=nn.MatMul)
_add(
    lambda: (whole(3, 5, below=7),),
    Embedding=lambda: nn.Embedding(7, 4),
    EmbeddingPadded=lambda: nn.Embedding(7, 4, padding_idx=0),
    EmbeddingOneHot=lambda: nn.Embedding(7, 4, use_one_hot=True),
    EmbeddingLookup=lambda: nn.EmbeddingLookup(7, 4),
    EmbeddingThor=lambda: nn.EmbeddingThor(7, 4),
    EmbeddingExt=lambda: nn.EmbeddingExt(7, 4),
    OneHot=lambda: nn.OneHot(depth=7),
)

# Convolutions, pools, pads.
_add(
    of(*LINE),
    Conv1d=lambda: nn.Conv1d(4, 6, 3, has_bias=True),
    Conv1dTranspose=lambda: nn.Conv1dTranspose(4, 6, 3),
    AvgPool1d=lambda: nn.AvgPool1d(2, 2),
    MaxPool1d=lambda: nn.MaxPool1d(2, 2),
    AdaptiveAvgPool1d=lambda: nn.AdaptiveAvgPool1d(4),
    AdaptiveMaxPool1d=lambda: nn.AdaptiveMaxPool1d(4),
    LPPool1d=lambda: nn.LPPool1d(2.0, 2),
    ConstantPad1d=lambda: nn.ConstantPad1d(1, 0.5),
    ReflectionPad1d=lambda: nn.ReflectionPad1d(2),
    ReplicationPad1d=lambda: nn.ReplicationPad1d(2),
    BatchNorm1dLine=lambda: nn.BatchNorm1d(4),
    Dropout1d=lambda: nn.Dropout1d(0.5),
)
_add(
    of(*IMAGE),
    Conv2d=lambda: nn.Conv2d(4, 6, 3, has_bias=True),
    Conv2dGrouped=lambda: nn.Conv2d(4, 8, 3, group=2, pad_mode="pad", padding=1),
    Conv2dTranspose=lambda: nn.Conv2dTranspose(4, 6, 3, has_bias=True),
    Conv2dBnAct=lambda: nn.Conv2dBnAct(4, 6, 3, has_bn=True, activation="relu"),
    AvgPool2d=lambda: nn.AvgPool2d(2, 2),
    MaxPool2d=lambda: nn.MaxPool2d(2, 2),
    MaxPool2dIndices=lambda: nn.MaxPool2d(2, 2, pad_mode="pad", return_indices=True),
    AdaptiveAvgPool2d=lambda: nn.AdaptiveAvgPool2d(4),
    AdaptiveMaxPool2d=lambda: nn.AdaptiveMaxPool2d(4),
    LPPool2d=lambda: nn.LPPool2d(2.0, 2),
    FractionalMaxPool2d=lambda: nn.FractionalMaxPool2d(2, (4, 4), _random_samples=share(2, 4, 2)),
    ConstantPad2d=lambda: nn.ConstantPad2d(1, 0.5),
    ReflectionPad2d=lambda: nn.ReflectionPad2d(2),
    ReplicationPad2d=lambda: nn.ReplicationPad2d(2),
    ZeroPad2d=lambda: nn.ZeroPad2d(1),
    BatchNorm2d=lambda: nn.BatchNorm2d(4),
    GroupNorm=lambda: nn.GroupNorm(2, 4),
    LRN=nn.LRN,
    ChannelShuffle=lambda: nn.ChannelShuffle(2),
    PixelShuffle=lambda: nn.PixelShuffle(2),
    PixelUnshuffle=lambda: nn.PixelUnshuffle(2),
    Upsample=lambda: nn.Upsample(size=(16, 16)),
    UpsampleBilinear=lambda: nn.Upsample(size=(16, 16), mode="bilinear", align_corners=True),
    CentralCrop=lambda: nn.CentralCrop(0.5),
    Dropout2d=lambda: nn.Dropout2d(0.5),
    SyncBatchNorm=lambda: nn.SyncBatchNorm(4),
)
_add(
    of(*VOLUME),
    Conv3d=lambda: nn.Conv3d(4, 6, 3, has_bias=True),
    Conv3dTranspose=lambda: nn.Conv3dTranspose(4, 6, 3),
    AvgPool3d=lambda: nn.AvgPool3d(2, 2),
    MaxPool3d=lambda: nn.MaxPool3d(2, 2),
    AdaptiveAvgPool3d=lambda: nn.AdaptiveAvgPool3d(3),
    AdaptiveMaxPool3d=lambda: nn.AdaptiveMaxPool3d(3),
    FractionalMaxPool3d=lambda: nn.FractionalMaxPool3d(2, (3, 3, 3), _random_samples=share(1, 4, 3)),
    ConstantPad3d=lambda: nn.ConstantPad3d(1, 0.5),
    ReflectionPad3d=lambda: nn.ReflectionPad3d(2),
    ReplicationPad3d=lambda: nn.ReplicationPad3d(2),
    BatchNorm3d=lambda: nn.BatchNorm3d(4),
    Dropout3d=lambda: nn.Dropout3d(0.5),
)
_add(
    lambda: (filled(2, 4, 4), whole(2, 4, 4, below=4, seed=3).astype(ms.int64)),
    MaxUnpool1d=lambda: nn.MaxUnpool1d(2, 2),
)
_add(lambda: (filled(2, 1, 3, 8),), ImageGradients=nn.ImageGradients)

# Normalisations and dropout of rows.
_add(
    of(*ROW),
    LayerNorm=lambda: nn.LayerNorm((6,)),
    BatchNorm1d=lambda: nn.BatchNorm1d(6),
    BatchNorm1dFrozen=lambda: nn.BatchNorm1d(6, use_batch_statistics=False),
    Dropout=lambda: nn.Dropout(p=0.3),
)
_add(of(4, 3, 6), TimeDistributed=lambda: nn.TimeDistributed(nn.Dense(6, 3), time_axis=1))
_add(lambda: (filled(*ROW), Tensor(0.5, ms.float32)), ClipByNorm=nn.ClipByNorm)

# Recurrent layers: their inner Cells take Parameters as arguments.
_SEQUENCE = (2, 2, 4)  # batch, time, features


def _recurrent(kind: type[nn.Cell], **options: Any) -> Callable[[], nn.Cell]:
    return lambda: kind(4, 3, batch_first=True, **options)


for _kind in (nn.RNN, nn.GRU, nn.LSTM):
    _add(
        of(*_SEQUENCE),
        **{
            _kind.__name__: _recurrent(_kind),
            f"{_kind.__name__}Layers": _recurrent(_kind, num_layers=3),
            f"{_kind.__name__}BothWays": _recurrent(_kind, bidirectional=True),
            f"{_kind.__name__}LayersBothWays": _recurrent(_kind, num_layers=2, bidirectional=True),
            f"{_kind.__name__}WithoutBias": _recurrent(_kind, num_layers=2, has_bias=False),
        },
    )
_add(lambda: (filled(3, 4), filled(3, 3, seed=1)), RNNCell=lambda: nn.RNNCell(4, 3), GRUCell=lambda: nn.GRUCell(4, 3))
_add(lambda: (filled(3, 4), (filled(3, 3, seed=1), filled(3, 3, seed=2))), LSTMCell=lambda: nn.LSTMCell(4, 3))

# Attention.
_add(
    lambda: (filled(5, 2, 8), filled(5, 2, 8, seed=1), filled(5, 2, 8, seed=2)),
    MultiheadAttention=lambda: nn.MultiheadAttention(8, 2),
)
_add(
    of(5, 2, 8),
    TransformerEncoderLayer=lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
    TransformerEncoder=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2),
)
_add(
    two(5, 2, 8),
    TransformerDecoderLayer=lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0),
    # One layer, since the graph of each takes the compiler long; the encoder has two.
    TransformerDecoder=lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), 1),
    Transformer=lambda: nn.Transformer(8, 2, 1, 1, 16, dropout=0.0),
)

# Losses.
_add(
    two(*ROW),
    L1Loss=nn.L1Loss,
    MSELoss=nn.MSELoss,
    MAELoss=nn.MAELoss,
    RMSELoss=nn.RMSELoss,
    HuberLoss=nn.HuberLoss,
    SmoothL1Loss=nn.SmoothL1Loss,
    PoissonNLLLoss=nn.PoissonNLLLoss,
)
_add(
    lambda: (share(*ROW), share(*ROW, seed=1)),
    BCELoss=nn.BCELoss,
    BCEWithLogitsLoss=nn.BCEWithLogitsLoss,
    KLDivLoss=nn.KLDivLoss,
    DiceLoss=nn.DiceLoss,
    MultiClassDiceLoss=nn.MultiClassDiceLoss,
)
_add(
    lambda: (filled(*ROW), signs(*ROW)),
    HingeEmbeddingLoss=nn.HingeEmbeddingLoss,
)
_add(
    lambda: (filled(*ROW), whole(4, below=6)),
    CrossEntropyLoss=nn.CrossEntropyLoss,
    CrossEntropySmoothed=lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
    NLLLoss=nn.NLLLoss,
    SoftmaxCrossEntropyWithLogits=lambda: nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
)
_add(lambda: (filled(*ROW), whole(4, below=6).astype(ms.int64)), MultiMarginLoss=nn.MultiMarginLoss)
_add(lambda: (filled(*ROW), share(*ROW)), MultiLabelSoftMarginLoss=nn.MultiLabelSoftMarginLoss)
_add(lambda: (filled(*ROW), filled(*ROW, seed=1), signs(4)), CosineEmbeddingLoss=nn.CosineEmbeddingLoss)
_add(lambda: (filled(4), filled(4, seed=1), signs(4)), MarginRankingLoss=nn.MarginRankingLoss)
_add(
    lambda: (filled(*ROW), filled(*ROW, seed=1), filled(*ROW, seed=2)),
    TripletMarginWithDistanceLoss=nn.TripletMarginWithDistanceLoss,
)
_add(lambda: (filled(*ROW), filled(*ROW, seed=1), positive(*ROW)), GaussianNLLLoss=nn.GaussianNLLLoss)
_add(lambda: (filled(2, 4, 3, 3), whole(2, 1, 3, 3)), FocalLoss=nn.FocalLoss)
_add(
    lambda: (
        ops.log_softmax(filled(6, 2, 5), -1), whole(2, 3, below=4, seed=2) + 1,
        Tensor([6, 6], ms.int32), Tensor([3, 2], ms.int32),
    ),
    CTCLoss=nn.CTCLoss,
)  # fmt: skip
_add(lambda: (share(1, 1, 16, 16), share(1, 1, 16, 16, seed=1)), SSIM=nn.SSIM, PSNR=nn.PSNR)
