"""A trainer and a serving engine that exchange the weights of a small model, with planted faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch

from msprobe_core.rl import Hop, Parallel, WeightLog

Weights = dict[str, torch.Tensor]
HEADS, GROUPS, DIM, HIDDEN, INNER, WORDS, LAYERS, EXPERTS = 4, 2, 4, 16, 24, 22, 2, 4
MODEL = SimpleNamespace(
    config=SimpleNamespace(
        vocab_size=WORDS, num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=DIM, hidden_size=HIDDEN
    )
)


def make(seed: int) -> Weights:
    """Return the trainer's weights."""
    random = torch.Generator().manual_seed(seed)

    def new(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * 0.05

    found = {"model.embed_tokens.weight": new(WORDS, HIDDEN), "lm_head.weight": new(WORDS, HIDDEN)}
    for layer in range(LAYERS):
        own = f"model.layers.{layer}"
        found[f"{own}.input_layernorm.weight"] = 1 + new(HIDDEN)
        for part, rows in (("q", HEADS * DIM), ("k", GROUPS * DIM), ("v", GROUPS * DIM)):
            found[f"{own}.self_attn.{part}_proj.weight"] = new(rows, HIDDEN)
        found[f"{own}.self_attn.o_proj.weight"] = new(HIDDEN, HEADS * DIM)
        for expert in range(EXPERTS):
            for part, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))):
                found[f"{own}.mlp.experts.{expert}.{part}_proj.weight"] = new(*shape)
    return found


def updated(weights: Weights, seed: int) -> Weights:
    """Return the weights after a step of an optimizer."""
    random = torch.Generator().manual_seed(seed)
    return {name: w + 1e-3 * torch.randn(w.shape, generator=random) for name, w in weights.items()}


def engine_of(weights: Weights, size: int, dtype: torch.dtype) -> list[Weights]:
    """Return the tensors of each process of an engine: fused, padded, sharded."""
    return [{name: w.to(dtype) for name, w in _process(weights, rank, size).items()} for rank in range(size)]


def _process(weights: Weights, rank: int, size: int) -> Weights:
    def rows(name: str) -> torch.Tensor:
        return weights[name].chunk(size)[rank]

    found: Weights = {}
    padding = torch.zeros(-WORDS % (size * 4), HIDDEN)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        found[name] = torch.cat([weights[name], padding]).chunk(size)[rank]
    for layer in range(LAYERS):
        own = f"model.layers.{layer}"
        found[f"{own}.input_layernorm.weight"] = weights[f"{own}.input_layernorm.weight"]
        heads = [rows(f"{own}.self_attn.q_proj.weight")]
        for part in "kv":
            begin = rank * GROUPS // size * DIM
            count = max(1, GROUPS // size) * DIM
            heads.append(weights[f"{own}.self_attn.{part}_proj.weight"][begin : begin + count])
        found[f"{own}.self_attn.qkv_proj.weight"] = torch.cat(heads)
        found[f"{own}.self_attn.o_proj.weight"] = weights[f"{own}.self_attn.o_proj.weight"].chunk(size, 1)[rank]
        experts = [f"{own}.mlp.experts.{expert}" for expert in range(EXPERTS)]
        found[f"{own}.mlp.experts.w13_weight"] = torch.stack(
            [torch.cat([rows(f"{e}.gate_proj.weight"), rows(f"{e}.up_proj.weight")]) for e in experts]
        )
        found[f"{own}.mlp.experts.w2_weight"] = torch.stack(
            [weights[f"{e}.down_proj.weight"].chunk(size, 1)[rank] for e in experts]
        )
    return found


@dataclass(frozen=True)
class Planted:
    """A fault: at which hop it shows, in which tensor, of which class.

    Attributes:
        hop: The hop that is first wrong.
        name: Part of the name of the wrong tensor.
        fault: Its class.
        change: Changes what the hop has, given what it had in the transfer before.
    """

    hop: Hop
    name: str
    fault: str
    change: Callable[[list[Weights], list[Weights]], None]


QKV = "model.layers.1.self_attn.qkv_proj.weight"
W13 = "model.layers.1.mlp.experts.w13_weight"
OUT = "model.layers.1.self_attn.o_proj.weight"
Q = "model.layers.1.self_attn.q_proj.weight"
EMBED = "model.embed_tokens.weight"


def _stale(now: list[Weights], before: list[Weights]) -> None:
    for own, former in zip(now, before, strict=True):
        own[QKV] = former[QKV].clone()


def _freed(now: list[Weights], _: list[Weights]) -> None:
    random = torch.Generator().manual_seed(9)
    for own in now:
        for name in list(own)[2:6]:
            own[name] = torch.randn(own[name].shape, generator=random).to(own[name].dtype)


def _swapped(now: list[Weights], _: list[Weights]) -> None:
    for own in now:
        rows = own[QKV].shape[0] - max(1, GROUPS // len(now)) * DIM * 2
        count = (own[QKV].shape[0] - rows) // 2
        own[QKV] = torch.cat([own[QKV][:rows], own[QKV][rows + count :], own[QKV][rows : rows + count]])


def _word(now: list[Weights], _: list[Weights]) -> None:
    now[0][EMBED] = now[0][EMBED].clone()
    now[0][EMBED][3] = 0


def _twice(now: list[Weights], _: list[Weights]) -> None:
    now[0][OUT] = now[0][OUT].to(torch.float16).to(torch.float32)


def _experts(now: list[Weights], _: list[Weights]) -> None:
    for own in now:
        own[W13] = own[W13][[1, 0, 3, 2]]


def _scaled(now: list[Weights], _: list[Weights]) -> None:
    for own in now:
        own[OUT] = own[OUT] * 2


def _transposed(now: list[Weights], _: list[Weights]) -> None:
    now[0][OUT] = now[0][OUT].T.contiguous()


def _lost(now: list[Weights], _: list[Weights]) -> None:
    for own in now:
        del own[OUT]


def _part_lost(now: list[Weights], _: list[Weights]) -> None:
    del now[-1][OUT]


def _zeroed(now: list[Weights], _: list[Weights]) -> None:
    for own in now:
        own[OUT] = torch.zeros_like(own[OUT])


def _misplaced(now: list[Weights], _: list[Weights]) -> None:
    for own in now:
        own[OUT] = own[OUT.replace(".1.", ".0.")].clone()


def _export_stale(now: list[Weights], before: list[Weights]) -> None:
    now[0][Q] = before[0][Q].clone()


PLANTED: Mapping[str, Planted] = {
    "stale tensor in the engine": Planted(Hop.LOADED, "self_attn", "stale", _stale),
    "stale export": Planted(Hop.SENT, "q_proj", "stale", _export_stale),
    "memory freed in sleep": Planted(Hop.AWAKE, "layers.0", "freed memory", _freed),
    "keys and values swapped": Planted(Hop.LOADED, "layers.1.self_attn", "permuted", _swapped),
    "one row of the vocabulary": Planted(Hop.LOADED, "embed_tokens", "partly different", _word),
    "cast twice": Planted(Hop.SENT, "o_proj", "cast twice", _twice),
    "experts permuted": Planted(Hop.LOADED, "experts", "permuted", _experts),
    "scaled": Planted(Hop.LOADED, "o_proj", "scaled", _scaled),
    "transposed in transfer": Planted(Hop.RECEIVED, "o_proj", "transposed", _transposed),
    "never loaded": Planted(Hop.LOADED, "o_proj", "missing", _lost),
    "one shard missing": Planted(Hop.LOADED, "o_proj", "a part is missing", _part_lost),
    "zeros": Planted(Hop.AWAKE, "o_proj", "freed memory", _zeroed),
    "another layer's values": Planted(Hop.LOADED, "o_proj", "misplaced", _misplaced),
}


def exchange(
    root: Path, size: int, *, syncs: int = 3, planted: Planted | None = None, dtype: torch.dtype = torch.bfloat16
) -> Path:
    """Log transfers from a trainer in float32 to an engine of some processes; the fault is in the last one."""
    weights, before = make(0), dict[Hop, list[Weights]]()
    for sync in range(syncs):
        has_fault = planted is not None and sync == syncs - 1
        at = {Hop.SENT: [dict(weights)]}
        for hop in (Hop.SENT, Hop.RECEIVED, Hop.LOADED, Hop.AWAKE):
            if hop is Hop.RECEIVED:
                at[hop] = [{n: w.clone() for n, w in at[Hop.SENT][0].items()}]
            elif hop is Hop.LOADED:
                at[hop] = engine_of(at[Hop.RECEIVED][0], size, dtype) if not _is_odd(at[Hop.RECEIVED][0]) else []
            elif hop is Hop.AWAKE:
                at[hop] = [dict(own) for own in at[Hop.LOADED]]
            if has_fault and planted is not None and planted.hop is hop:
                planted.change(at[hop], before[hop])
        _log(root, sync, {Hop.GATHERED: [weights], **at}, size)
        before, weights = at, updated(weights, sync + 1)
    return root


def _is_odd(weights: Weights) -> bool:
    return any(weights[name].shape != weight.shape for name, weight in make(0).items() if name in weights)


def _log(root: Path, sync: int, at: Mapping[Hop, list[Weights]], size: int) -> None:
    for hop, processes in at.items():
        is_engine = hop in (Hop.LOADED, Hop.AWAKE)
        for rank, own in enumerate(processes):
            parallel = Parallel(tensor_rank=rank, tensor_size=size) if is_engine else None
            log = WeightLog(root, hop, rank=rank, model=MODEL, parallel=parallel)
            log.sync(sync)
            for name, weight in own.items():
                log.add(name, weight)
            log.close()
