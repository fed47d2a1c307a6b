"""``msprobe verl compare weights``: planted faults by name and class, and healthy transfers without a finding."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from rl_runs import make_weights, updated, write_weights

from msprobe_core.checkpoint.canonical import Heads
from msprobe_core.errors import CompareError
from msprobe_core.recording import ModelSizes
from msprobe_core.rl.files import RunInfo, Weight, WeightsFile, rank_directory, save_run, save_weights
from msprobe_core.rl.recorded import open_run
from msprobe_core.rl.weights import Transfer, syncs
from msprobe_core.rl.weights_outcome import compare_weights

Weights = dict[str, np.ndarray]
Engine = Callable[[Weights, list[Weights]], Weights]
"""What an engine has, given the weights just sent and all that were sent before."""

ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.1.mlp"
NORM = "model.layers.1.input_layernorm.weight"
BIAS = "model.layers.0.self_attn.q_proj.bias"
HEADS = Heads(4, 2, 2)
WORDS = 24


def model(seed: int = 0) -> Weights:
    """Return weights with grouped attention, a gate, experts, biases of zero and norms of one."""
    random = np.random.default_rng(seed)
    found = make_weights(seed)
    for layer in range(2):
        own = f"model.layers.{layer}"
        for name in "kv":
            found[f"{own}.self_attn.{name}_proj.weight"] = found[f"{own}.self_attn.{name}_proj.weight"][:4]
        found[f"{own}.mlp.gate_proj.weight"] = random.standard_normal((8, 8)).astype(np.float32)
        found[f"{own}.input_layernorm.weight"] = np.ones(8, np.float32)
        found[f"{own}.self_attn.q_proj.bias"] = np.zeros(8, np.float32)
        for expert in range(3):
            for part in ("gate", "up", "down"):
                name = f"{own}.mlp.experts.{expert}.{part}_proj.weight"
                found[name] = random.standard_normal((8, 8)).astype(np.float32)
    return found


def record(
    root: Path,
    engine: Engine,
    dtype: str = "bfloat16",
    *,
    sizes: ModelSizes | None = None,
    settings: Mapping[str, object] | None = None,
) -> Path:
    """Record three transfers."""
    save_run(root, RunInfo(config=dict(settings or {})))
    weights, before = model(), list[Weights]()
    for step in range(3):
        write_weights(root, "update_weights_send", step, weights, "float32")
        received = engine(dict(weights), before)
        write_weights(root, "update_weights_recv", step, received, dtype, sizes)
        before.append(weights)
        weights = updated(weights, step + 1, 0.02)
    return root


def same(weights: Weights, _before: list[Weights]) -> Weights:
    return weights


def fused(weights: Weights, _before: list[Weights]) -> Weights:
    """Return the tensors of a serving engine."""
    return dict(_fused(weights))


def _fused(weights: Weights) -> Iterator[tuple[str, np.ndarray]]:
    for name, value in weights.items():
        if ".experts." in name:
            if ".experts.0.down_proj" in name:
                yield from _experts(weights, name.partition(".experts.")[0])
        elif "q_proj.weight" in name:
            parts = [weights[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            yield name.replace("q_proj", "qkv_proj"), np.concatenate(parts)
        elif ".mlp.gate_proj" in name:
            parts = [weights[name], weights[name.replace("gate_proj", "up_proj")]]
            yield name.replace("gate_proj", "gate_up_proj"), np.concatenate(parts)
        elif not any(part in name for part in ("k_proj.weight", "v_proj.weight", ".mlp.up_proj")):
            yield name, value


def _experts(weights: Weights, layer: str) -> Iterator[tuple[str, np.ndarray]]:
    def of(part: str) -> np.ndarray:
        return np.stack([weights[f"{layer}.experts.{expert}.{part}_proj.weight"] for expert in range(3)])

    yield f"{layer}.experts.w13_weight", np.concatenate([of("gate"), of("up")], axis=1)
    yield f"{layer}.experts.w2_weight", of("down")


def padded(weights: Weights, before: list[Weights]) -> Weights:
    """Return the same with rows of padding, of zeros in the embedding and of anything in the head."""
    found = fused(weights, before)
    rows = np.full((8, 8), 3, np.float32)
    for name, more in (("model.embed_tokens.weight", 0 * rows), ("lm_head.weight", rows)):
        found[name] = np.concatenate([found[name], more])
    return found


def tied(weights: Weights, _before: list[Weights]) -> Weights:
    return {name: value for name, value in weights.items() if name != "lm_head.weight"}


KNOWN = ModelSizes(HEADS, WORDS)
HEALTHY: Mapping[str, tuple[Engine, str, ModelSizes | None]] = {
    "equal": (same, "float32", None),
    "cast": (same, "bfloat16", None),
    "cast to float16": (same, "float16", None),
    "fused": (fused, "float32", KNOWN),
    "fused, cast, experts in one": (fused, "bfloat16", KNOWN),
    "padded vocabulary": (padded, "bfloat16", KNOWN),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_transfer_is_no_difference(tmp_path: Path, name: str) -> None:
    engine, dtype, sizes = HEALTHY[name]
    outcome = compare_weights(open_run(record(tmp_path, engine, dtype, sizes=sizes)))
    assert outcome.headline == "AGREE: the engine has every parameter as it was sent."
    assert not [finding for finding in outcome.findings if finding.is_fault]
    found = {one.transfer for step in range(3) for sync in syncs(open_run(tmp_path), step) for one in sync.parameters}
    assert found <= {Transfer.EQUAL, Transfer.CAST, Transfer.PADDED}
    assert (Transfer.CAST in found) == (dtype != "float32")


def test_padding_of_zeros_needs_no_settings(tmp_path: Path) -> None:
    def engine(weights: Weights, _: list[Weights]) -> Weights:
        name = "model.embed_tokens.weight"
        return weights | {name: np.concatenate([weights[name], np.zeros((8, 8), np.float32)])}

    root = record(tmp_path, engine)
    assert compare_weights(open_run(root)).agrees
    (sync,) = syncs(open_run(root), 1)
    assert [one.name for one in sync.parameters if one.transfer is Transfer.PADDED] == ["model.embed_tokens.weight"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_that_the_engine_ties_to_its_embedding_is_compared_with_it(tmp_path: Path, dtype: str) -> None:
    save_run(tmp_path, RunInfo())
    for step in range(2):
        weights = updated(model(), step)
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        write_weights(tmp_path, "update_weights_send", step, weights, "float32")
        write_weights(tmp_path, "update_weights_recv", step, tied(weights, []), dtype)
    outcome = compare_weights(open_run(tmp_path))
    assert outcome.agrees, outcome.headline
    (sync,) = syncs(open_run(tmp_path), 1)
    assert [one.name for one in sync.parameters if one.transfer is Transfer.TIED] == ["lm_head.weight"]


# --- faults -----------------------------------------------------------------------------------------------------------


def changed(name: str, change: Callable[[np.ndarray], np.ndarray], base: Engine = same) -> Engine:
    def engine(weights: Weights, before: list[Weights]) -> Weights:
        found = base(weights, before)
        return found | {name: change(found[name])} if before else found  # from the second transfer on

    return engine


def stale_engine(weights: Weights, before: list[Weights]) -> Weights:
    return before[0] if before else weights


def stale_one(weights: Weights, before: list[Weights]) -> Weights:
    name = f"{MLP}.down_proj.weight"
    return weights | {name: before[0][name]} if before else weights


def stale_part(weights: Weights, before: list[Weights]) -> Weights:
    name = f"{ATTENTION}.k_proj.weight"
    return fused(weights | {name: before[0][name]} if before else weights, before)


def swapped(first: str, second: str, base: Engine = same) -> Engine:
    def engine(weights: Weights, before: list[Weights]) -> Weights:
        if not before:
            return base(weights, before)
        return base(weights | {first: weights[second], second: weights[first]}, before)

    return engine


def cast_twice(value: np.ndarray) -> np.ndarray:
    return (value * 300).astype(np.float16).astype(np.float32) / 300


def other_model(weights: Weights, before: list[Weights]) -> Weights:
    return model(7) if before else weights


def untied(weights: Weights, before: list[Weights]) -> Weights:
    return tied(weights, before)


def lost(weights: Weights, before: list[Weights]) -> Weights:
    return {name: value for name, value in weights.items() if not before or name != NORM}


def expert_shuffled(weights: Weights, before: list[Weights]) -> Weights:
    found = fused(weights, before)
    name = f"{MLP}.experts.w2_weight"
    return found | {name: found[name][[1, 0, 2]]} if before else found


K, V, Q = (f"{ATTENTION}.{part}_proj.weight" for part in "kvq")
GATE, UP, DOWN = (f"{MLP}.{part}_proj.weight" for part in ("gate", "up", "down"))
FAULTS: Mapping[str, tuple[Engine, ModelSizes | None, str, str]] = {
    "stale engine": (stale_engine, None, "model.embed_tokens.weight", "stale"),
    "one stale tensor": (stale_one, None, DOWN, "stale"),
    "stale keys in a fused projection": (stale_part, KNOWN, K, "stale"),
    "transposed": (changed(DOWN, np.transpose), None, DOWN, "transposed"),
    "transposed, not square": (
        changed("model.embed_tokens.weight", np.transpose),
        None,
        "model.embed_tokens.weight",
        "transposed",
    ),
    "keys and values exchanged": (swapped(K, V), None, K, "misplaced|qkv order"),
    "keys and values exchanged in a fused projection": (swapped(K, V, fused), KNOWN, K, "misplaced|qkv order"),
    "gate and up exchanged": (swapped(GATE, UP, fused), KNOWN, UP, "gate/up swapped|misplaced"),
    "rows permuted": (changed(Q, lambda value: value[::-1]), None, Q, "reordered|different"),
    "another model": (other_model, None, "model.embed_tokens.weight", "different"),
    "scaled": (changed(DOWN, lambda value: value * 2), None, DOWN, "scaled"),
    "freed memory": (changed(DOWN, np.zeros_like), None, DOWN, "uninitialised"),
    "cast twice": (changed(DOWN, cast_twice), None, DOWN, "close"),
    "experts exchanged": (expert_shuffled, KNOWN, f"{MLP}.experts.0.down_proj.weight", "experts permuted|misplaced"),
    "head not tied": (untied, None, "lm_head.weight", "tied-broken"),
    "one missing": (lost, None, NORM, "only in golden"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_first_with_its_class(tmp_path: Path, name: str) -> None:
    """Also after a cast to bfloat16, and with biases of zero and norms of one beside it."""
    engine, sizes, place, relations = FAULTS[name]
    run = open_run(record(tmp_path, engine, sizes=sizes))
    outcome = compare_weights(run)
    assert not outcome.agrees
    first = next(finding for finding in outcome.findings if finding.is_fault)
    step = 0 if name == "head not tied" else 1
    assert (first.step, first.place) == (step, place)
    (sync,) = syncs(run, step)
    relation = next(one.relation.value for one in sync.faults if one.name == place)
    assert relation in relations.split("|")
    if step:
        assert not syncs(run, 0)[0].faults
    if name not in {"stale engine", "another model"}:
        assert len(sync.faults) <= 2  # and nothing besides


def test_every_tensor_of_another_model_differs(tmp_path: Path) -> None:
    (sync,) = syncs(open_run(record(tmp_path, other_model)), 1)
    alike = {one.name for one in sync.parameters if not one.transfer.is_fault}
    assert all("bias" in name for name in alike)  # zeros are zeros


def test_a_shard_of_an_engine_is_not_compared_and_said_so(tmp_path: Path) -> None:
    settings = {"actor_rollout_ref": {"rollout": {"tensor_model_parallel_size": 2}}}

    def engine(weights: Weights, _: list[Weights]) -> Weights:
        return weights | {DOWN: weights[DOWN][:, :4]}

    outcome = compare_weights(open_run(record(tmp_path, engine, settings=settings)))
    assert outcome.headline == ("AGREE: the engine has the others as they were sent; 1 parameters were not compared.")
    assert not compare_weights(open_run(record(tmp_path / "other", engine))).agrees


def test_files_of_former_versions_are_compared_by_their_checksums(tmp_path: Path) -> None:
    """A cast cannot be verified by them: that is said, instead of an agreement of norms."""

    def file(step: int, values: Mapping[str, np.ndarray], dtype: str) -> WeightsFile:
        parameters = tuple(
            Weight(
                name=n, shape=v.shape, dtype=dtype, crc32=f"{zlib.crc32(v.tobytes()):08x}", l2=1.0, mean=0.0, max=1.0
            )
            for n, v in values.items()
        )
        return WeightsFile(version=1, step=step, rank=0, parameters=parameters)

    weights = {"a.weight": np.ones((2, 2), np.float32), "b.weight": np.arange(4, dtype=np.float32)}
    save_run(tmp_path, RunInfo())
    save_weights(rank_directory(tmp_path, "update_weights_send", 1, 0), file(1, weights, "float32"))
    received = rank_directory(tmp_path, "update_weights_recv", 1, 0)
    save_weights(received, file(1, weights, "float32"))
    assert compare_weights(open_run(tmp_path)).agrees
    save_weights(received, file(1, {**weights, "b.weight": np.zeros(4, np.float32)}, "float32"))
    outcome = compare_weights(open_run(tmp_path))
    assert [finding.place for finding in outcome.findings] == ["b.weight"]
    save_weights(received, file(1, {**weights, "b.weight": np.zeros(4, np.float32)}, "bfloat16"))
    with pytest.raises(CompareError, match=r"no parameter could be compared: a\.weight, float32 became bfloat16"):
        compare_weights(open_run(tmp_path))
    assert json.loads((received / "weights.json").read_bytes())["parameters"][0]["crc32"]
