"""Layers for programs made by chance: each maps [BATCH, WIDTH] to the same shape, whatever is inside it."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

BATCH, WIDTH = 4, 8

Numbers = Sequence[int]
Make = Callable[[Numbers, Sequence[nn.Module]], nn.Module]

LAYERS: dict[str, tuple[int, Make]] = {}
"""By name: how many layers each has inside at most, and what makes it of numbers and of these."""


def layer(make: Callable[..., nn.Module] | None = None, *, inside: int = 0):
    def register(make):
        LAYERS[make.__name__.strip("_")] = inside, make
        return make

    return register if make is None else register(make)


class Of(nn.Module):
    """A layer that is a function of its input, itself, and what it holds."""

    def __init__(self, function, *modules, **parameters):
        super().__init__()
        self.function = function
        self.inner = nn.ModuleList(modules)
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value) if isinstance(value, Tensor) else value)

    def forward(self, x):
        return self.function(self, x)

    def __deepcopy__(self, memo):
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        state = {key: value for key, value in self.__getstate__().items() if key != "function"}
        copied.__dict__.update(copy.deepcopy(state, memo), function=self.function)
        return copied


def weight(*shape):
    return torch.randn(*(shape or (WIDTH,))) * 0.5


# --- what is in most models ---------------------------------------------------------------------------------------


@layer
def linear(numbers, _):
    return nn.Linear(WIDTH, WIDTH, bias=numbers[0] % 2 == 0)


@layer
def bilinear(_numbers, _):
    return Of(lambda self, x: self.inner[0](x, x.tanh()), nn.Bilinear(WIDTH, WIDTH, WIDTH))


@layer
def norm(numbers, _):
    makers = [
        lambda: nn.LayerNorm(WIDTH),
        lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
        lambda: nn.BatchNorm1d(WIDTH),
        lambda: nn.BatchNorm1d(WIDTH, momentum=None, affine=False),
        lambda: nn.GroupNorm(2, WIDTH),
        lambda: getattr(nn, "RMSNorm", nn.LayerNorm)(WIDTH),
        lambda: Of(lambda self, x: self.inner[0](x.view(BATCH, 2, -1)).view_as(x), nn.InstanceNorm1d(2, affine=True)),
        lambda: Of(lambda self, x: F.normalize(x, dim=numbers[1] % 2)),
        lambda: Of(lambda self, x: F.local_response_norm(x.unsqueeze(-1), 2).squeeze(-1)),
    ]
    return makers[numbers[0] % len(makers)]()


ACTIVATIONS = (
    F.relu, F.gelu, F.silu, torch.tanh, torch.sigmoid, F.elu, F.hardswish, F.mish, F.leaky_relu, F.softplus, F.selu,
    F.logsigmoid, F.hardtanh, F.softsign, F.relu6, F.tanhshrink, F.celu, Tensor.sin, torch.special.expit, F.softmin,
)  # fmt: skip


@layer
def activation(numbers, _):
    function = ACTIVATIONS[numbers[0] % len(ACTIVATIONS)]
    if function is F.softmin:
        return Of(lambda self, x: function(x, dim=-1) * 3)
    return Of(lambda self, x: function(x))


@layer
def activation_module(numbers, _):
    makers = [
        nn.ReLU, lambda: nn.ReLU(inplace=True), nn.GELU, nn.SiLU, nn.PReLU, nn.Hardsigmoid, nn.RReLU,
        lambda: nn.Softmax(dim=-1), lambda: nn.Threshold(0.1, 0.2), nn.Softshrink,
    ]  # fmt: skip
    # In place writes to what the layer before has kept, which that may need.
    return nn.Sequential(Of(lambda self, x: x * 1), makers[numbers[0] % len(makers)]())


@layer
def glu(_numbers, _):
    return Of(lambda self, x: F.glu(self.inner[0](x)), nn.Linear(WIDTH, 2 * WIDTH))


@layer
def dropout(numbers, _):
    makers = [
        nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout,
        lambda p: Of(lambda self, x: F.dropout(x, p, training=self.training)),
        lambda p: Of(lambda self, x: F.dropout1d(x.unsqueeze(0), p, training=self.training).squeeze(0)),
        lambda p: nn.Sequential(Of(lambda self, x: x + 0), nn.Dropout(p, inplace=True)),
    ]  # fmt: skip
    return makers[numbers[0] % len(makers)](0.1 + numbers[1] % 5 / 10)


@layer
def convolution(numbers, _):
    def one(self, x):
        return self.inner[0](x.unsqueeze(1)).mean(1)

    def two(self, x):
        return self.inner[0](x.view(BATCH, 1, 2, -1)).sum(1).reshape(BATCH, WIDTH)

    makers = [
        lambda: Of(one, nn.Conv1d(1, 3, 3, padding=1)),
        lambda: Of(one, nn.Conv1d(1, 2, 3, padding="same", padding_mode="circular")),
        lambda: Of(two, nn.Conv2d(1, 2, 3, padding=1)),
        lambda: Of(one, nn.ConvTranspose1d(1, 2, 3, padding=1)),
        lambda: Of(lambda self, x: self.inner[0](x.unsqueeze(-1)).squeeze(-1), nn.Conv1d(WIDTH, WIDTH, 1, groups=2)),
    ]
    return makers[numbers[0] % len(makers)]()


@layer
def pooling(numbers, _):
    functions = [
        lambda x: F.max_pool1d(x, 3, 1, 1),
        lambda x: F.max_pool1d(x, 3, 1, 1, return_indices=True)[0],
        lambda x: F.avg_pool1d(x, 3, 1, 1),
        lambda x: F.adaptive_avg_pool1d(x, WIDTH),
        lambda x: F.adaptive_max_pool1d(x, WIDTH),
        lambda x: F.lp_pool1d(x.abs() + 0.1, 2, 1, 1),
        lambda x: F.interpolate(x, scale_factor=1.0, mode="linear"),
    ]
    function = functions[numbers[0] % len(functions)]
    return Of(lambda self, x: function(x.unsqueeze(1)).squeeze(1))


@layer
def embedding(numbers, _):
    def indices(x):
        return (x.detach() * 7).nan_to_num().clamp(-1e6, 1e6).long() % 11

    is_sparse = numbers[1] % 4 == 0
    makers = [
        lambda: Of(lambda self, x: x + self.inner[0](indices(x)).mean(1), nn.Embedding(11, WIDTH, sparse=is_sparse)),
        lambda: Of(lambda self, x: x + self.inner[0](indices(x)), nn.EmbeddingBag(11, WIDTH, mode="sum")),
        lambda: Of(lambda self, x: x * self.inner[0](indices(x)).mean(1), nn.Embedding(11, WIDTH, padding_idx=0)),
        lambda: Of(lambda self, x: x + F.one_hot(indices(x), 11).float().mean(1)[:, :WIDTH]),
    ]
    return makers[numbers[0] % len(makers)]()


@layer
def recurrent(numbers, _):
    options = {
        "num_layers": 1 + numbers[1] % 2,
        "dropout": 0.2 * (numbers[1] % 2),
        "batch_first": True,
        "bidirectional": numbers[2] % 2 == 0,
    }
    size = 2 if options["bidirectional"] else 4
    inner = (nn.LSTM, nn.GRU, nn.RNN)[numbers[0] % 3](4, size, **options)
    return Of(lambda self, x: self.inner[0](x.view(BATCH, 2, 4))[0].reshape(BATCH, WIDTH), inner)


@layer
def recurrent_cell(numbers, _):
    cell = (nn.LSTMCell, nn.GRUCell, nn.RNNCell)[numbers[0] % 3](WIDTH, WIDTH)

    def run(self, x):
        state = None
        for _ in range(1 + numbers[1] % 3):
            state = self.inner[0](x, state)
        return state[0] if isinstance(state, tuple) else state

    return Of(run, cell)


@layer
def attention(numbers, _):
    needs_weights, batch_first = numbers[0] % 2 == 0, numbers[1] % 2 == 0

    def run(self, x):
        x = x.unsqueeze(0)
        return self.inner[0](x, x, x, need_weights=needs_weights)[0].squeeze(0)

    return Of(run, nn.MultiheadAttention(WIDTH, 2, dropout=0.1 * (numbers[2] % 3), batch_first=batch_first))


@layer
def attention_function(numbers, _):
    def run(self, x):
        query, key, value = self.inner[0](x).view(1, BATCH, 3, 2, WIDTH // 2).unbind(2)
        dropped = 0.2 * (numbers[0] % 2) if self.training else 0.0
        heads = [each.transpose(1, 2) for each in (query, key, value)]
        y = F.scaled_dot_product_attention(*heads, dropout_p=dropped, is_causal=numbers[1] % 2 == 0)
        return y.transpose(1, 2).reshape(BATCH, WIDTH)

    return Of(run, nn.Linear(WIDTH, 3 * WIDTH))


@layer
def transformer(numbers, _):
    options = {"norm_first": numbers[0] % 2 == 0, "batch_first": numbers[1] % 2 == 0, "dropout": 0.1 * (numbers[2] % 2)}
    inner = nn.TransformerEncoderLayer(WIDTH, 2, 16, **options)
    is_encoder, is_padded = numbers[2] % 3 == 0, numbers[1] % 3 == 0
    if is_encoder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inner = nn.TransformerEncoder(inner, 2)

    def run(self, x):
        padded = torch.zeros(2, 2, dtype=torch.bool)
        padded[1, 1] = True
        sequence = x.view(2, 2, WIDTH)
        y = self.inner[0](sequence, src_key_padding_mask=padded if is_padded else None)
        return y.reshape(BATCH, WIDTH)

    return Of(run, inner)


# --- operators ----------------------------------------------------------------------------------------------------


def in_place_row(x):
    y = x * 1
    y[0] *= 2
    y[:, 1::2] = y[:, ::2].clone() + 1
    return y


def in_place_view(x):
    y = x * 2
    view = y.view(-1)[3:]
    view.add_(1)
    y[1:].mul_(0.5)
    return y + view.sum() * 0.01


def in_place_chain(x):
    return (x * 1).add_(1).mul_(x.detach()).clamp_(-2, 2).sub_(0.1).abs_().sqrt_()


def stale_view(x):
    y = x * 1.0
    view = y[:]
    y.mul_(1.1)
    return y * 0.3 + view.exp().clamp(max=3)


def through_data(x):
    y = x * 1
    y.data.add_(1)
    return y * y


def through_numpy(x):
    shared = np.zeros((BATCH, WIDTH), dtype=np.float32)
    y = torch.from_numpy(shared)
    shared += 2
    return x * y


def with_out(x):
    result = torch.empty(BATCH, WIDTH)
    torch.add(x.detach(), 1, out=result)
    return x * result


def data_dependent(x):
    if x.sum().item() > 0:
        return x + 1
    return x * 2 if bool((x > 0).any()) else -x


def sparse_product(x):
    matrix = torch.eye(WIDTH).to_sparse()
    return torch.sparse.mm(matrix, x.t()).t()


def spectrum(x):
    z = torch.fft.rfft(x)
    return torch.fft.irfft(z * torch.polar(torch.ones_like(z.real), z.real), n=WIDTH)


def scattered(x):
    index = torch.arange(WIDTH).flip(0).expand(BATCH, WIDTH)
    return torch.zeros_like(x).scatter_add(1, index, x).gather(1, index) + x.index_select(1, index[0])


def caught(x):
    try:
        torch.matmul(x, x)
    except RuntimeError:
        return x * 1.5
    return x


def penalized(x):
    y = x.sin()
    if not y.requires_grad:
        return y
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y + gradient


OPERATORS = [
    in_place_row, in_place_view, in_place_chain, stale_view, through_data, through_numpy, with_out, data_dependent,
    sparse_product, spectrum, scattered, caught, penalized,
    lambda x: torch.cat(x.chunk(2, dim=1)[::-1], dim=1),
    lambda x: torch.stack(x.unbind(1)[::-1], dim=1),
    lambda x: torch.sort(x, dim=1).values + x.topk(3).values.sum(1, keepdim=True),
    lambda x: torch.cumsum(x, 1) * 0.1 + torch.logcumsumexp(x, 1) * 0.1,
    lambda x: torch.where(x > 0, x, x * 0.1).masked_fill(x > 2, 2.0),
    lambda x: torch.einsum("ij,ik->ij", x, x.tanh()),
    lambda x: torch.linalg.qr(x.t() @ x + torch.eye(WIDTH))[1].diagonal() * 0.1 + x,
    lambda x: torch.linalg.solve(x.t() @ x + 5 * torch.eye(WIDTH), x.t()).t(),
    lambda x: x + torch.rand_like(x) * 0.01 + torch.randn(WIDTH) * 0.01,
    lambda x: x.detach() * 0.5 + x,
    lambda x: x.to(torch.bfloat16).float() * x,
    lambda x: x.double().exp().clamp(max=5).float(),
    lambda x: x.expand(2, BATCH, WIDTH).mean(0) + x.roll(1, 0),
    lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(BATCH, -1, 2)).tanh()).reshape(BATCH, WIDTH),
    lambda x: F.pad(x, (1, 1), mode="constant")[:, 1:-1] + F.cosine_similarity(x, x.flip(0), dim=1).unsqueeze(1),
    lambda x: torch.bmm(x.unsqueeze(2), x.unsqueeze(1)).softmax(-1).sum(1),
    lambda x: torch.func.vmap(lambda row: row.sin() * row.sum())(x),
    lambda x: torch.func.vmap(torch.func.grad(lambda row: row.square().sum()))(x),
    lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1],
    lambda x: torch.func.vjp(torch.cos, x)[1](torch.ones_like(x))[0] + x,
    lambda x: torch.func.functionalize(lambda y: (y * 1).add_(1))(x),
    lambda x: x.as_strided((BATCH, WIDTH), x.stride()) + torch.empty_like(x).fill_(0.5),
    lambda x: torch.nested.to_padded_tensor(torch.nested.nested_tensor([*x.detach().unbind()]), 0.0) + x,
]  # fmt: skip


@layer
def operator(numbers, _):
    function = OPERATORS[numbers[0] % len(OPERATORS)]
    return Of(lambda self, x: function(x))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        y = x**3 * scale
        rounded = x.round()
        ctx.mark_non_differentiable(rounded)
        return y, rounded

    @staticmethod
    def backward(ctx, gradient, _):
        (x,) = ctx.saved_tensors
        return 3 * gradient * x**2 * ctx.scale, None


class AddInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@layer
def custom_function(numbers, _):
    functions = [
        lambda x: Cube.apply(x.tanh(), 0.5)[0],
        lambda x: sum(Cube.apply(x.sigmoid(), 0.25)),
        lambda x: AddInPlace.apply(x * 1),
    ]
    function = functions[numbers[0] % len(functions)]
    return Of(lambda self, x: function(x))


# --- state --------------------------------------------------------------------------------------------------------


class Averages(nn.Module):
    """Keeps a buffer that every forward writes to."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.detach().float().mean(0).clamp(-9, 9), 0.1)
            self.count += 1
        return x - self.mean * self.count.clamp(max=2)


@layer
def buffers(_numbers, _):
    return Averages()


@layer
def own_parameters(numbers, _):
    if numbers[0] % 3 == 0:
        return Of(lambda self, x: x * self.scale + self.shift, scale=weight(), shift=weight())
    if numbers[0] % 3 == 1:
        module = Of(lambda self, x: sum(x * each for each in self.several))
        module.several = nn.ParameterList([weight() for _ in range(3)])
        return module
    module = Of(lambda self, x: x * self.several["a"] + self.several["b"].sum())
    module.several = nn.ParameterDict({"a": weight(), "b": weight()})
    return module


@layer
def tied(numbers, _):
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    second.weight = first.weight
    return Of(lambda self, x: self.inner[1](self.inner[0](x).tanh()) @ self.inner[0].weight, first, second)


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


@layer
def parametrized(numbers, _):
    inner = nn.Linear(WIDTH, WIDTH)
    if numbers[0] % 4 == 0:
        return parametrizations.weight_norm(inner)
    if numbers[0] % 4 == 1:
        return parametrizations.spectral_norm(inner)
    if numbers[0] % 4 == 2:
        parametrize.register_parametrization(inner, "weight", Symmetric())
        return inner
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(inner) if numbers[1] % 2 else nn.utils.spectral_norm(inner)


@layer
def scripted(numbers, _):
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(inner) if numbers[0] % 2 else torch.jit.trace(inner, torch.ones(BATCH, WIDTH))


# --- containers ---------------------------------------------------------------------------------------------------


@layer(inside=3)
def sequence(_numbers, inside):
    return nn.Sequential(*inside)


@layer(inside=2)
def shared(_numbers, inside):
    """A layer that is reached under two names, and runs under both."""
    return nn.Sequential(*inside, nn.Tanh(), nn.Sequential(inside[0]))


@layer(inside=2)
def residual(_numbers, inside):
    return Of(lambda self, x: x + self.inner[0](x), nn.Sequential(*inside))


@layer(inside=3)
def branches(numbers, inside):
    reverses = numbers[0] % 2 == 0

    def run(self, x):
        modules = list(self.inner)
        return sum(module(x) for module in (modules[::-1] if reverses else modules)) / len(modules)

    return Of(run, *inside)


@layer(inside=2)
def chosen(_numbers, inside):
    return Of(lambda self, x: self.inner[int(x.sum() > 0) % len(self.inner)](x), *inside)


@layer(inside=1)
def repeated(numbers, inside):
    def run(self, x):
        for _ in range(1 + numbers[0] % 3):
            x = self.inner[0](x).clamp(-5, 5)
        return x

    return Of(run, *inside)


class Pair(NamedTuple):
    value: Tensor
    scale: float


class Structured(nn.Module):
    """Takes and returns what is not a tensor."""

    def __init__(self, inner, kind):
        super().__init__()
        self.inner, self.kind = inner, kind

    def forward(self, *, values, more=None):
        x = self.inner(values["x"])
        return ({"x": x, "more": more}, [x, {"deep": (x,)}], Pair(x, 2.0))[self.kind]


@layer(inside=1)
def structured(numbers, inside):
    kind = numbers[0] % 3

    def run(self, x):
        result = self.inner[0](values={"x": x, "n": 3, "none": None}, more=(1, "two"))
        return (lambda: result["x"], lambda: result[1]["deep"][0] * 1, lambda: result.value * result.scale)[kind]()

    return Of(run, Structured(inside[0], kind))


@layer(inside=2)
def checkpointed(numbers, inside):
    reentrant = numbers[0] % 3 == 0

    def run(self, x):
        return checkpoint(self.inner[0], x, use_reentrant=reentrant, preserve_rng_state=numbers[1] % 4 != 0)

    return Of(run, nn.Sequential(*inside))


@layer(inside=1)
def on_thread(numbers, inside):
    def run(self, x):
        results = []
        is_enabled = torch.is_grad_enabled()

        def work():
            with torch.set_grad_enabled(is_enabled):
                for _ in range(numbers[0] % 4):
                    results.append(x * 1)
                results.append(self.inner[0](x))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return sum(results) / max(len(results), 1)

    return Of(run, *inside)


@layer(inside=1)
def autocast(_numbers, inside):
    def run(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner[0](x).float()

    return Of(run, *inside)


@layer(inside=1)
def without_gradient(numbers, inside):
    def run(self, x):
        with torch.no_grad() if numbers[0] % 2 else torch.inference_mode():
            y = self.inner[0](x).clone()
        return x + y.clone()

    return Of(run, *inside)


@layer(inside=1)
def copied(numbers, inside):
    def run(self, x):
        other = copy.deepcopy(self.inner[0]) if numbers[0] % 2 else copy.copy(self.inner[0])
        return self.inner[0](x) + 0.1 * other(x)

    return Of(run, *inside)


@layer(inside=1)
def functional_call(numbers, inside):
    def run(self, x):
        parameters = {name: value * 1.1 for name, value in self.inner[0].named_parameters()}
        return torch.func.functional_call(self.inner[0], parameters, (x,))

    return Of(run, *inside)


@layer(inside=1)
def hooked(numbers, inside):
    module = nn.Sequential(*inside)  # scripted modules refuse hooks
    kinds = [
        lambda: module.register_forward_pre_hook(lambda module, args: (args[0] * 1.1,)),
        lambda: module.register_forward_pre_hook(lambda module, args, kwargs: (args, kwargs), with_kwargs=True),
        lambda: module.register_forward_hook(lambda module, args, output: output * 0.9),
        lambda: module.register_forward_hook(lambda module, args, output: None, always_call=True),
        lambda: module.register_full_backward_hook(lambda module, sent, received: None),
        lambda: module.register_full_backward_hook(lambda module, sent, received: tuple(
            None if each is None else each * 0.5 for each in sent
        )),
        lambda: module.register_full_backward_pre_hook(lambda module, received: (received[0] * 2,)),
    ]  # fmt: skip
    for number in numbers[:2]:
        kinds[number % len(kinds)]()
    return Of(lambda self, x: self.inner[0](x * 1), module)


@layer(inside=1)
def watched(numbers, inside):
    """A layer whose values have hooks of their own."""

    def run(self, x):
        y = self.inner[0](x)
        if y.requires_grad:
            if numbers[0] % 3 == 0:
                y.register_hook(lambda gradient: gradient.clamp(-1, 1))
            elif numbers[0] % 3 == 1 and y.grad_fn is not None:
                y.grad_fn.register_prehook(lambda gradients: tuple(each * 1.5 for each in gradients))
            else:
                y.retain_grad()
        return y

    return Of(run, *inside)


class Frozen(nn.Module):
    """Hands out parts of itself, as programs do that call what is inside of other modules."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        raise NotImplementedError


@layer(inside=1)
def reached_into(_numbers, inside):
    return Of(lambda self, x: self.inner[0].inner(x), Frozen(inside[0]))
