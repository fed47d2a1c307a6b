"""A small Llama in PyTorch: RMSNorm, rotary embedding, grouped-query attention, SwiGLU."""

import torch
import torch.nn.functional as F  # noqa: N812
from llama_config import FAULTY_EPS, WEIGHT_ERROR, Fault, LlamaConfig, causal_mask, rope_tables, weights
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate_half(x):
    """Return ``(-b, a)`` for ``x = (a, b)``, split along the last dimension."""
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        self.sine_sign = 1.0
        self.q_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.k_proj = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x, cos, sin, mask=None):
        batch, sequence, _ = x.shape
        q = self.q_proj(x).view(batch, sequence, self.heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(batch, sequence, self.kv_heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(batch, sequence, self.kv_heads, -1).transpose(1, 2)
        if self.sine_sign != 1.0:
            sin = sin * self.sine_sign
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k = k.repeat_interleave(self.heads // self.kv_heads, 1)
        v = v.repeat_interleave(self.heads // self.kv_heads, 1)
        scores = torch.matmul(q, k.transpose(2, 3)) * self.scale
        if mask is not None:
            scores = scores + mask
        attention = torch.softmax(scores, -1)
        mixed = torch.matmul(attention, v).transpose(1, 2).reshape(batch, sequence, -1)
        return self.o_proj(mixed), attention


class MLP(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.ffn, bias=False)
        self.up_proj = nn.Linear(config.dim, config.ffn, bias=False)
        self.down_proj = nn.Linear(config.ffn, config.dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.dim, config.eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.dim, config.eps)
        self.mlp = MLP(config)

    def forward(self, x, cos, sin, mask=None):
        attended, _ = self.self_attn(self.input_layernorm(x), cos, sin, mask=mask)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.dim)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.layers)])
        self.norm = RMSNorm(config.dim, config.eps)
        self.lm_head = nn.Linear(config.dim, config.vocab, bias=False)
        self.cos, self.sin = (torch.from_numpy(table) for table in rope_tables(config))
        self.mask = torch.from_numpy(causal_mask())

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, mask=self.mask)
        return self.lm_head(self.norm(x))


def build(config: LlamaConfig, fault: Fault | None = None) -> Llama:
    """Return the model with the shared weights, and with ``fault`` planted, if given."""
    model = Llama(config)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights(config).items()})
    if fault is Fault.EPS:
        model.layers[1].post_attention_layernorm.eps = FAULTY_EPS
    if fault is Fault.SCALE:
        model.layers[0].self_attn.scale = config.head_dim**-0.25
    if fault is Fault.ROPE:
        model.layers[1].self_attn.sine_sign = -1.0
    if fault is Fault.WEIGHT:
        with torch.no_grad():
            model.layers[0].mlp.up_proj.weight[0, 0] += WEIGHT_ERROR
    return model


def loss_function(logits, labels):
    """Return the cross entropy of logits [batch, sequence, vocab] and labels [batch, sequence]."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
