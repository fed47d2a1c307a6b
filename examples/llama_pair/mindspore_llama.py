"""The small Llama in MindSpore, in two variants that run on the CPU in dynamic and in static graphs.

The variant ``nn`` is built from `mindspore.nn` and `mindspore.ops`, the variant ``mint`` from `mindspore.mint`, as far
as that has kernels for the CPU. Parameters have PyTorch's names, except for the table of ``nn.Embedding``.
"""

import mindspore as ms
import numpy as np
from llama_config import FAULTY_EPS, WEIGHT_ERROR, Fault, LlamaConfig, causal_mask, rope_tables, weights
from mindspore import Parameter, Tensor, mint, nn, ops

VARIANTS = ("nn", "mint")


class RMSNorm(nn.Cell):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(dim, np.float32)), name="weight")
        self.eps = eps

    def construct(self, x):
        return x * ops.rsqrt((x * x).mean(-1, keep_dims=True) + self.eps) * self.weight


class MintRMSNorm(nn.Cell):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(dim, np.float32)), name="weight")
        self.eps = eps

    def construct(self, x):
        return x * mint.rsqrt(mint.mean(mint.mul(x, x), -1, True) + self.eps) * self.weight


class MintEmbedding(nn.Cell):
    """An embedding, because `mint.nn.Embedding` has no kernel for the CPU in MindSpore 2.10."""

    def __init__(self, vocab: int, dim: int) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros((vocab, dim), np.float32)), name="weight")

    def construct(self, tokens):
        return ops.gather(self.weight, tokens, 0)


def linear(variant: str, num_inputs: int, num_outputs: int) -> nn.Cell:
    """Return a linear layer without bias."""
    if variant == "mint":
        return mint.nn.Linear(num_inputs, num_outputs, bias=False)
    return nn.Dense(num_inputs, num_outputs, has_bias=False)


def norm(variant: str, config: LlamaConfig) -> nn.Cell:
    """Return a normalisation of the last dimension."""
    return (MintRMSNorm if variant == "mint" else RMSNorm)(config.dim, config.eps)


class Attention(nn.Cell):
    def __init__(self, config: LlamaConfig, variant: str) -> None:
        super().__init__()
        self.is_mint = variant == "mint"
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        self.sine_sign = 1.0
        self.q_proj = linear(variant, config.dim, config.dim)
        self.k_proj = linear(variant, config.dim, config.kv_heads * config.head_dim)
        self.v_proj = linear(variant, config.dim, config.kv_heads * config.head_dim)
        self.o_proj = linear(variant, config.dim, config.dim)

    def rotate_half(self, x):
        """Return ``(-b, a)`` for ``x = (a, b)``, split along the last dimension."""
        half = self.head_dim // 2
        a = x[..., :half]
        b = x[..., half:]
        if self.is_mint:
            return mint.cat((mint.neg(b), a), -1)
        return ops.cat((-b, a), -1)

    def attend(self, q, k, v, mask):
        """Return the mixed values and the attention weights."""
        if self.is_mint:
            scores = mint.mul(mint.matmul(q, k.swapaxes(2, 3)), self.scale)
            if mask is not None:
                scores = mint.add(scores, mask)
            attention = mint.nn.functional.softmax(scores, dim=-1)
            return mint.matmul(attention, v), attention
        scores = ops.matmul(q, k.swapaxes(2, 3)) * self.scale
        if mask is not None:
            scores = scores + mask
        attention = ops.softmax(scores, axis=-1)
        return ops.matmul(attention, v), attention

    def construct(self, x, cos, sin, mask=None):
        batch, sequence, _ = x.shape
        q = self.q_proj(x).reshape(batch, sequence, self.heads, self.head_dim).swapaxes(1, 2)
        k = self.k_proj(x).reshape(batch, sequence, self.kv_heads, self.head_dim).swapaxes(1, 2)
        v = self.v_proj(x).reshape(batch, sequence, self.kv_heads, self.head_dim).swapaxes(1, 2)
        if self.sine_sign != 1.0:
            sin = sin * self.sine_sign
        q = q * cos + self.rotate_half(q) * sin
        k = k * cos + self.rotate_half(k) * sin
        k = ops.repeat_elements(k, self.heads // self.kv_heads, 1)
        v = ops.repeat_elements(v, self.heads // self.kv_heads, 1)
        mixed, attention = self.attend(q, k, v, mask)
        mixed = mixed.swapaxes(1, 2).reshape(batch, sequence, self.heads * self.head_dim)
        return self.o_proj(mixed), attention


class MLP(nn.Cell):
    def __init__(self, config: LlamaConfig, variant: str) -> None:
        super().__init__()
        self.is_mint = variant == "mint"
        self.gate_proj = linear(variant, config.dim, config.ffn)
        self.up_proj = linear(variant, config.dim, config.ffn)
        self.down_proj = linear(variant, config.ffn, config.dim)

    def construct(self, x):
        gate = self.gate_proj(x)
        gate = mint.nn.functional.silu(gate) if self.is_mint else ops.silu(gate)
        return self.down_proj(gate * self.up_proj(x))


class DecoderLayer(nn.Cell):
    def __init__(self, config: LlamaConfig, variant: str) -> None:
        super().__init__()
        self.input_layernorm = norm(variant, config)
        self.self_attn = Attention(config, variant)
        self.post_attention_layernorm = norm(variant, config)
        self.mlp = MLP(config, variant)

    def construct(self, x, cos, sin, mask=None):
        attended, _ = self.self_attn(self.input_layernorm(x), cos, sin, mask=mask)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Cell):
    def __init__(self, config: LlamaConfig, variant: str = "nn") -> None:
        super().__init__()
        embedding = MintEmbedding if variant == "mint" else nn.Embedding
        self.embed_tokens = embedding(config.vocab, config.dim)
        self.layers = nn.CellList([DecoderLayer(config, variant) for _ in range(config.layers)])
        self.norm = norm(variant, config)
        self.lm_head = linear(variant, config.dim, config.vocab)
        cos, sin = rope_tables(config)
        self.cos = Tensor(cos)
        self.sin = Tensor(sin)
        self.mask = Tensor(causal_mask())

    def construct(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, mask=self.mask)
        return self.lm_head(self.norm(x))


class WithLoss(nn.Cell):
    """The model and its loss, for functions that take gradients of a Cell; parameters keep their names."""

    def __init__(self, model: Llama) -> None:
        super().__init__(auto_prefix=False)
        self.model = model

    def construct(self, tokens, labels):
        logits = self.model(tokens)
        return ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def parameter_name(torch_name: str, variant: str) -> str:
    """Return the name of a parameter of the PyTorch model in this model."""
    if variant == "nn" and torch_name == "embed_tokens.weight":
        return "embed_tokens.embedding_table"
    return torch_name


def build(config: LlamaConfig, variant: str = "nn", fault: Fault | None = None) -> Llama:
    """Return the model with the shared weights, and with ``fault`` planted, if given."""
    model = Llama(config, variant)
    arrays = {parameter_name(name, variant): array for name, array in weights(config).items()}
    parameters = {parameter.name: parameter for parameter in model.get_parameters()}
    assert {name: array.shape for name, array in arrays.items()} == {n: p.shape for n, p in parameters.items()}
    if fault is Fault.WEIGHT:
        arrays["layers.0.mlp.up_proj.weight"][0, 0] += WEIGHT_ERROR
    for name, parameter in parameters.items():
        parameter.set_data(Tensor(arrays[name]))
    if fault is Fault.EPS:
        model.layers[1].post_attention_layernorm.eps = FAULTY_EPS
    if fault is Fault.SCALE:
        model.layers[0].self_attn.scale = config.head_dim**-0.25
    if fault is Fault.ROPE:
        model.layers[1].self_attn.sine_sign = -1.0
    return model


def set_mode(mode: str) -> None:
    """Choose dynamic graphs, "pynative", or static ones, "graph".

    Operators of dynamic graphs then run one by one: on the CPU that is ten times as fast as running them on threads,
    and errors are raised where they occur.
    """
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    if mode != "graph":
        ms.runtime.launch_blocking()
