"""Sizes, weights, batches, tables and faults, which both sides of the pair share; in NumPy, without a framework."""

from dataclasses import dataclass
from enum import Enum

import numpy as np

BATCH_SIZE, SEQUENCE_LENGTH = 2, 12


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of the model."""

    vocab: int = 97
    dim: int = 32
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 64
    eps: float = 1e-5
    theta: float = 10000.0

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


class Fault(Enum):
    """A mistake that can be planted on either side."""

    EPS = "eps"
    SCALE = "scale"
    ROPE = "rope"
    WEIGHT = "weight"


FAULTY_MODULE = {
    Fault.EPS: "layers.1.post_attention_layernorm",  # its epsilon is FAULTY_EPS
    Fault.SCALE: "layers.0.self_attn",  # scores are multiplied by head_dim ** -0.25 instead of head_dim ** -0.5
    Fault.ROPE: "layers.1.self_attn",  # the table of sines has the opposite sign
    Fault.WEIGHT: "layers.0.mlp.up_proj",  # weight[0, 0] is off by WEIGHT_ERROR
}
FAULTY_EPS = 1e-2
WEIGHT_ERROR = 0.5


def weights(config: LlamaConfig, seed: int = 1234) -> dict[str, np.ndarray]:
    """Return the parameters, float32, by their names in PyTorch; those of linear layers are [out, in]."""
    random = np.random.RandomState(seed)
    arrays: dict[str, np.ndarray] = {}

    def normal(name: str, *shape: int, scale: float) -> None:
        arrays[name] = (random.randn(*shape) * scale).astype(np.float32)

    def near_one(name: str) -> None:
        arrays[name] = (1 + 0.1 * random.randn(config.dim)).astype(np.float32)

    normal("embed_tokens.weight", config.vocab, config.dim, scale=0.5)
    for layer in range(config.layers):
        prefix = f"layers.{layer}."
        kv_dim = config.kv_heads * config.head_dim
        near_one(prefix + "input_layernorm.weight")
        normal(prefix + "self_attn.q_proj.weight", config.dim, config.dim, scale=0.2)
        normal(prefix + "self_attn.k_proj.weight", kv_dim, config.dim, scale=0.2)
        normal(prefix + "self_attn.v_proj.weight", kv_dim, config.dim, scale=0.2)
        normal(prefix + "self_attn.o_proj.weight", config.dim, config.dim, scale=0.2)
        near_one(prefix + "post_attention_layernorm.weight")
        normal(prefix + "mlp.gate_proj.weight", config.ffn, config.dim, scale=0.2)
        normal(prefix + "mlp.up_proj.weight", config.ffn, config.dim, scale=0.2)
        normal(prefix + "mlp.down_proj.weight", config.dim, config.ffn, scale=0.2)
    near_one("norm.weight")
    normal("lm_head.weight", config.vocab, config.dim, scale=0.2)
    return arrays


def batch(config: LlamaConfig, step: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and labels of one step, int32 [batch, sequence] each."""
    random = np.random.RandomState(100 + step)
    shape = (BATCH_SIZE, SEQUENCE_LENGTH)
    tokens = random.randint(0, config.vocab, shape).astype(np.int32)
    return tokens, random.randint(0, config.vocab, shape).astype(np.int32)


def rope_tables(config: LlamaConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and sines of the rotary embedding, float32 [sequence, head_dim] each."""
    frequencies = 1.0 / config.theta ** (np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim)
    angles = np.outer(np.arange(SEQUENCE_LENGTH), frequencies)
    angles = np.concatenate([angles, angles], -1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def causal_mask() -> np.ndarray:
    """Return the mask that is added to the scores, float32 [sequence, sequence]."""
    return np.triu(np.full((SEQUENCE_LENGTH, SEQUENCE_LENGTH), -1e9, np.float32), 1)
