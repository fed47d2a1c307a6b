"""Choices of experts that rollout and trainer made, of real models with experts, and faults planted in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msprobe_core.errors import CompareError, DumpError, StoreError
from msprobe_core.findings import Language, worded
from msprobe_core.rl import RLStage, RoutedTokens, RunWriter
from msprobe_core.rl.detail_codes import RunNoteCode
from msprobe_core.rl.log_probs_outcome import compare_log_probs
from msprobe_core.rl.outcome import Outcome
from msprobe_core.rl.recorded import open_run
from msprobe_core.rl.routing_codes import RoutingCode
from msprobe_core.rl.routing_outcome import RoutingOptions, compare_routing

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from msprobe.pytorch import RoutingRecorder  # noqa: E402

from msprobe_core.plugin import PluginError  # noqa: E402

Run = Callable[..., tuple[int, str, str]]
ROWS, PROMPT, RESPONSE, LAYERS, EXPERTS, CHOSEN = 4, 6, 20, 3, 8, 2
R3 = {"actor_rollout_ref": {"actor": {"megatron": {"router_replay": {"mode": "R3"}}}}}


def model_of(kind: str, dtype: Any) -> Any:
    torch.manual_seed(0)
    common = {
        "vocab_size": 97, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": CHOSEN, "initializer_range": 0.2,
    }  # fmt: skip
    if kind == "mixtral":
        config = transformers.MixtralConfig(**common, num_local_experts=EXPERTS)
        return transformers.MixtralForCausalLM(config).to(dtype).eval()
    config = transformers.Qwen3MoeConfig(
        **common, num_experts=EXPERTS, moe_intermediate_size=16, head_dim=8, norm_topk_prob=True
    )
    return transformers.Qwen3MoeForCausalLM(config).to(dtype).eval()


@dataclass
class Rollout:
    model: Any
    ids: Any
    mask: Any
    routed: RoutedTokens

    @property
    def tensors(self) -> dict[str, Any]:
        return {"prompts": self.ids[:, :PROMPT], "responses": self.ids[:, PROMPT:], "attention_mask": self.mask}


def generated(kind: str = "mixtral", dtype: Any = torch.float32) -> Rollout:
    """Return what an engine generated with a cache, and which experts it chose; prompts are padded on the left."""
    model = model_of(kind, dtype)
    prompts = torch.randint(1, 97, (ROWS, PROMPT))
    mask = torch.ones_like(prompts)
    mask[0, :3] = 0
    with RoutingRecorder(model) as recorder, torch.no_grad():
        ids = model.generate(
            input_ids=prompts, attention_mask=mask, max_new_tokens=RESPONSE, do_sample=True, pad_token_id=0,
            eos_token_id=None,
        )  # fmt: skip
    return Rollout(model, ids, torch.cat([mask, torch.ones(ROWS, RESPONSE, dtype=mask.dtype)], 1), recorder.take())


def forward(rollout: Rollout, model: Any = None) -> RoutedTokens:
    """Return the experts that a trainer chooses for the same tokens in one forward."""
    model = rollout.model if model is None else model
    positions = (rollout.mask.cumsum(1) - 1).clamp(min=0)
    with RoutingRecorder(model) as recorder, torch.no_grad():
        model(input_ids=rollout.ids, attention_mask=rollout.mask, position_ids=positions)
    return recorder.take()


@contextmanager
def replayed(model: Any, routed: RoutedTokens, layers: tuple[int, ...]) -> Iterator[None]:
    """Use recorded experts in place of the routers' own."""

    def hook_of(layer: int) -> Any:
        given = torch.from_numpy(routed.experts[:, :, layer]).long()

        def hook(module: Any, args: Any, output: Any) -> Any:
            logits, weights, own = output
            own = own.reshape(ROWS, -1, CHOSEN).clone()
            own[:, : given.shape[1]] = given
            weights = torch.softmax(logits.float(), -1).gather(1, own.reshape(-1, CHOSEN))
            return logits, (weights / weights.sum(-1, keepdim=True)).to(logits.dtype), own.reshape(-1, CHOSEN)

        return hook

    handles = [model.model.layers[n].mlp.gate.register_forward_hook(hook_of(n), prepend=True) for n in layers]
    yield
    for handle in handles:
        handle.remove()


def changed(rollout: Rollout) -> Any:
    """Return a model of the same kind that chooses otherwise for some tokens, as after an update."""
    model = model_of("mixtral", torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * parameter.std() * torch.randn_like(parameter)
    return model


def compared(
    root: Path, rollout: Rollout, target: RoutedTokens, *, golden: RoutedTokens | None = None, config: Any = None
) -> Outcome:
    run = RunWriter(root, config=config or {})
    run.routing(1, RLStage.ROLLOUT, rollout.routed if golden is None else golden, rollout.tensors)
    run.routing(1, RLStage.ACTOR_LOG_PROB, target, rollout.tensors)
    return compare_routing(open_run(root))


def codes(outcome: Outcome) -> list[Any]:
    for finding in outcome.findings:
        assert worded(finding.said, Language.CHINESE)
    return [finding.said.code for finding in outcome.findings]


@pytest.mark.parametrize("kind", ["mixtral", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_healthy_engines_agree(tmp_path: Path, kind: str, dtype: Any) -> None:
    rollout = generated(kind, dtype)
    outcome = compared(tmp_path, rollout, forward(rollout))
    assert outcome.agrees, outcome.headline
    assert set(codes(outcome)) <= {RoutingCode.TIES}
    layers = outcome.numbers["pairs"][0]["layers"]
    assert [layer["tokens"] for layer in layers] == [ROWS * (PROMPT + RESPONSE) - 3 - ROWS] * LAYERS


def test_recording_changes_nothing(tmp_path: Path) -> None:
    rollout = generated(dtype=torch.bfloat16)
    before = rollout.model(input_ids=rollout.ids).logits
    with RoutingRecorder(rollout.model):
        assert torch.equal(before, rollout.model(input_ids=rollout.ids).logits)
    assert torch.equal(before, rollout.model(input_ids=rollout.ids).logits)


def test_replay_that_is_in_effect_agrees(tmp_path: Path) -> None:
    rollout, model = generated(dtype=torch.bfloat16), model_of("mixtral", torch.bfloat16).float()
    without = compared(tmp_path / "without", rollout, forward(rollout, model))
    assert without.agrees, without.headline
    assert codes(without) == [RoutingCode.DTYPE, RoutingCode.TIES]
    with replayed(model, rollout.routed, tuple(range(LAYERS))):
        outcome = compared(tmp_path, rollout, forward(rollout, model), config=R3)
    assert outcome.agrees, outcome.headline
    assert "applied" in {layer["replay"] for layer in outcome.numbers["pairs"][0]["layers"]}
    assert outcome.headline == "AGREE: all tokens have the same experts."
    assert not outcome.notes


def test_replay_does_not_hide_other_weights(tmp_path: Path) -> None:
    rollout = generated()
    model = changed(rollout)
    with replayed(model, rollout.routed, tuple(range(LAYERS))):
        outcome = compared(tmp_path, rollout, forward(rollout, model), config=R3)
    assert codes(outcome)[0] is RoutingCode.SCORES
    assert {layer["replay"] for layer in outcome.numbers["pairs"][0]["layers"]} == {"applied"}


def test_replay_that_cannot_be_told_is_said_to_be_so(tmp_path: Path) -> None:
    rollout = generated()
    outcome = compared(tmp_path, rollout, forward(rollout), config=R3)
    assert outcome.agrees
    assert [note.code for note in outcome.notes] == [RunNoteCode.REPLAY_UNKNOWN]


def test_replay_that_leaves_out_a_layer_names_it(tmp_path: Path) -> None:
    rollout = generated()
    model = changed(rollout)
    with replayed(model, rollout.routed, (0, 2)):
        outcome = compared(tmp_path, rollout, forward(rollout, model), config=R3)
    assert codes(outcome) == [RoutingCode.REPLAY_LAYERS]
    assert outcome.findings[0].place == "model.layers.1.mlp"
    assert "R3 replays the experts of rollout_generate in actor_compute_log_prob, but 1 of 3" in outcome.headline
    assert "first at token" in outcome.headline


def test_replay_that_is_off_is_named(tmp_path: Path) -> None:
    rollout = generated()
    outcome = compared(tmp_path, rollout, forward(rollout, changed(rollout)), config=R3)
    assert codes(outcome) == [RoutingCode.REPLAY_OFF]
    assert "routing replay is not in effect" in outcome.headline


def test_a_router_in_another_dtype_is_named(tmp_path: Path) -> None:
    rollout = generated()
    gate = rollout.model.model.layers[1].mlp.gate
    own = gate.forward

    def coarse(hidden: Any) -> Any:
        gate.weight.data = gate.weight.data.bfloat16()
        found = own(hidden.bfloat16())
        gate.weight.data = gate.weight.data.float()
        return tuple(each.float() if each.is_floating_point() else each for each in found)

    gate.forward = coarse
    outcome = compared(tmp_path, rollout, forward(rollout))
    assert codes(outcome)[:2] == [RoutingCode.DTYPE, RoutingCode.SCORES]
    assert {finding.place for finding in outcome.findings[:2]} == {"model.layers.1.mlp"}
    assert "the router of model.layers.1.mlp computes in bfloat16 in actor_compute_log_prob" in outcome.headline


def test_another_router_is_named_at_its_layer(tmp_path: Path) -> None:
    rollout = generated()
    with torch.no_grad():
        rollout.model.model.layers[1].mlp.gate.weight.mul_(1.02)
    outcome = compared(tmp_path, rollout, forward(rollout))
    assert codes(outcome)[0] is RoutingCode.SCORES
    assert outcome.findings[0].place == "model.layers.1.mlp"


def moved(routed: RoutedTokens, move: Callable[[Any], Any]) -> RoutedTokens:
    return replace(routed, **{name: np.ascontiguousarray(move(array)) for name, array in routed.parts.items()})


def test_shifted_tokens_are_named(tmp_path: Path) -> None:
    rollout = generated()
    outcome = compared(tmp_path, rollout, moved(forward(rollout), lambda a: np.roll(a, 1, axis=1)))
    assert codes(outcome) == [RoutingCode.SHIFTED]
    assert outcome.findings[0].said.fields["by"] == 1


def test_shuffled_tokens_are_named(tmp_path: Path) -> None:
    rollout = generated()
    shown, order = forward(rollout), np.random.default_rng(0).permutation(PROMPT + RESPONSE)
    outcome = compared(tmp_path, rollout, moved(shown, lambda a: a[:, order]))
    assert codes(outcome) == [RoutingCode.SHUFFLED]


def test_exchanged_samples_are_named(tmp_path: Path) -> None:
    rollout = generated()
    outcome = compared(tmp_path, rollout, moved(forward(rollout), lambda a: a[::-1]))
    assert codes(outcome) == [RoutingCode.SHUFFLED]


def test_renumbered_experts_are_named_at_their_layer(tmp_path: Path) -> None:
    rollout = generated()
    found = forward(rollout)
    experts = found.experts.copy()
    experts[:, :, 1] = (experts[:, :, 1] + 3) % EXPERTS
    outcome = compared(tmp_path, rollout, replace(found, experts=experts, scores=None))
    assert codes(outcome) == [RoutingCode.RENUMBERED]
    assert outcome.findings[0].place == "model.layers.1.mlp"


def test_experts_that_do_not_have_the_highest_scores_are_named(tmp_path: Path) -> None:
    rollout = generated()
    found = forward(rollout)
    experts = found.experts.copy()
    order = np.argsort(-found.scores[:, :, 1], axis=-1)  # pyright: ignore[reportOptionalSubscript]
    experts[:, :, 1] = order[..., 1 : CHOSEN + 1]
    outcome = compared(tmp_path, rollout, replace(found, experts=experts))
    assert codes(outcome)[0] is RoutingCode.SELECTION
    assert outcome.findings[0].place == "model.layers.1.mlp"
    assert outcome.findings[0].said.fields["share"] == pytest.approx(100)


def test_another_number_of_experts_is_named(tmp_path: Path) -> None:
    rollout = generated()
    rollout.model.config.num_experts_per_tok = 1
    for layer in rollout.model.model.layers:
        layer.mlp.gate.top_k = 1
    outcome = compared(tmp_path, rollout, forward(rollout))
    assert codes(outcome) == [RoutingCode.TOP_K]
    assert "chooses 1 expert for each token, rollout_generate 2" in outcome.headline


def test_weights_that_one_side_alone_scales_are_named(tmp_path: Path) -> None:
    rollout = generated()
    found = forward(rollout)
    weights = found.weights.copy()  # pyright: ignore[reportOptionalMemberAccess]
    weights[:, :, 2] *= 2.5
    outcome = compared(tmp_path, rollout, replace(found, weights=weights))
    assert codes(outcome) == [RoutingCode.WEIGHTS_FACTOR]
    assert "2.5 times" in outcome.headline


def test_without_scores_ties_cannot_be_told_from_faults(tmp_path: Path) -> None:
    rollout = generated()
    bare = {"scores": None, "weights": None}
    target = forward(rollout, changed(rollout))
    outcome = compared(tmp_path, rollout, replace(target, **bare), golden=replace(rollout.routed, **bare))
    assert codes(outcome) == [RoutingCode.UNEXPLAINED]
    assert outcome.agrees


def test_routed_experts_of_the_batch_are_the_rollouts(run: Run, tmp_path: Path) -> None:
    rollout = generated()
    writer = RunWriter(tmp_path / "run", config=R3)
    padded = np.zeros((ROWS, PROMPT + RESPONSE, LAYERS, CHOSEN), np.int64)
    padded[:, :-1] = rollout.routed.experts
    writer.batch(1, {**rollout.tensors, "routed_experts": padded})
    writer.routing(1, RLStage.ACTOR_UPDATE, forward(rollout, changed(rollout)), rollout.tensors)
    code, out, err = run("rl", "compare", "routing", tmp_path / "run", "-o", tmp_path)
    assert code == 1, out + err
    assert "R3 replays the experts of rollout_generate in actor_update" in out
    content = json.loads((tmp_path / "rl_routing.json").read_text())
    assert content["findings"][0]["sentence_finding"]["code"] == "rl.routing.replay-off"
    code, out, err = run("rl", "compare", "routing", tmp_path / "run", "--replay", "disabled", "-o", tmp_path)
    assert code == 0, out + err


def test_other_experts_explain_a_difference_of_log_probs(tmp_path: Path) -> None:
    rollout = generated()
    experts = rollout.routed.experts.copy()
    chosen = np.arange(PROMPT + 2, PROMPT + RESPONSE - 1, 6)
    experts[:, chosen, LAYERS - 1] = (experts[:, chosen, LAYERS - 1] + 1) % EXPERTS
    other = replace(rollout.routed, experts=experts)
    log_probs: list[Any] = []
    for routed in (rollout.routed, other):
        with replayed(rollout.model, routed, (LAYERS - 1,)), torch.no_grad():
            positions = (rollout.mask.cumsum(1) - 1).clamp(min=0)
            found = rollout.model(input_ids=rollout.ids, attention_mask=rollout.mask, position_ids=positions)
        own = torch.log_softmax(found.logits[:, PROMPT - 1 : -1], -1)
        log_probs.append(own.gather(2, rollout.ids[:, PROMPT:, None])[..., 0])
    run = RunWriter(tmp_path, config={})
    names = dict(zip(("rollout_log_probs", "old_log_probs"), log_probs, strict=True))
    mask = torch.ones(ROWS, RESPONSE, dtype=torch.int64)
    run.batch(1, {**rollout.tensors, **names, "response_mask": mask})
    run.routing(1, RLStage.ROLLOUT, rollout.routed, rollout.tensors)
    run.routing(1, RLStage.ACTOR_LOG_PROB, other, rollout.tensors)
    outcome = compare_log_probs(open_run(tmp_path))
    assert not outcome.agrees
    assert outcome.headline.endswith("other experts explains it.")
    assert outcome.numbers["steps"]["1"]["causes"]["other experts"]["explained"] > 0.9


def test_a_run_without_routings_says_how_to_record_them(tmp_path: Path) -> None:
    rollout = generated()
    RunWriter(tmp_path, config={}).routing(1, RLStage.ROLLOUT, rollout.routed, rollout.tensors)
    with pytest.raises(CompareError, match="record them with RunWriter"):
        compare_routing(open_run(tmp_path))
    with pytest.raises(CompareError, match="has no step 7"):
        compare_routing(open_run(tmp_path), RoutingOptions(steps=[7]))


def test_contradicting_shapes_are_refused(tmp_path: Path) -> None:
    rollout, writer = generated(), RunWriter(tmp_path)
    odd = replace(rollout.routed, scores=rollout.routed.scores[:2])  # pyright: ignore[reportOptionalSubscript]
    with pytest.raises(StoreError, match="'scores' of a routing is"):
        writer.routing(1, RLStage.ROLLOUT, odd, rollout.tensors)
    with pytest.raises(StoreError, match="has no 'prompts'"):
        writer.routing(1, RLStage.ROLLOUT, rollout.routed, {})


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    rollout = generated()
    RunWriter(tmp_path, config={}).routing(1, RLStage.ROLLOUT, rollout.routed, rollout.tensors)
    (path,) = tmp_path.rglob("rollout_generate-0.json")
    content = json.loads(path.read_text())
    content["samples"][0]["length"] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(DumpError, match="describes other routings"):
        compare_routing(open_run(tmp_path))


def test_a_model_without_experts_is_refused() -> None:
    with pytest.raises(PluginError, match="has no module with the children"):
        RoutingRecorder(torch.nn.Linear(2, 2))


def test_repeated_forwards_of_checkpointing_are_left_out() -> None:
    model = model_of("qwen3", torch.float32).train()
    model.gradient_checkpointing_enable() if not hasattr(model, "activation_checkpointing_enable") else (
        model.activation_checkpointing_enable()
    )
    ids = torch.randint(1, 97, (2, 5))
    with RoutingRecorder(model) as recorder:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert recorder.take().experts.shape == (2, 5, LAYERS, CHOSEN)
    with pytest.raises(PluginError, match="0 forwards"):
        recorder.take()
