"""Recording changes nothing: losses, gradients, weights and random state are bitwise what they are without it."""

from contextlib import nullcontext

import pytest
import torch
from architectures import ARCHITECTURES, repeats, train
from msprobe.pytorch import PrecisionDebugger
from torch_has import attention_under_autocast, needs_fused

from msprobe_core.config import load_config

LEVELS = ("L0", "L1", "mix")
MODES = [("statistics", "statistics"), ("statistics", "md5"), ("statistics", "xor"), ("tensor", "statistics")]
# What a tensor is reduced to does not depend on the model, so these are tried on a few.
MORE_MODES = [("statistics", "hash"), ("statistics", "sketch")]
A_FEW = ("llama", "gpt2", "mixtral")
# One model is recorded in every way; the others once at each level and once by each reduction. The rest is slow.
IN_EVERY_WAY = "llama"
SOME_MODES = {("L0", "statistics"), ("L1", "md5"), ("mix", "tensor"), ("mix", "hash"), ("mix", "sketch")}


def cases():
    for name in ARCHITECTURES:
        for task, mode in [*MODES, *(MORE_MODES if name in A_FEW else [])]:
            for level in LEVELS:
                kept = "tensor" if task == "tensor" else mode
                marks = [] if name == IN_EVERY_WAY or (level, kept) in SOME_MODES else [pytest.mark.slow]
                yield pytest.param(name, task, mode, level, id=f"{name}-{kept}-{level}", marks=marks)


def state(model: torch.nn.Module) -> dict[str, bytes]:
    """Return the bytes of all parameters, buffers and gradients."""
    found = {name: value.detach().numpy().tobytes() for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        found[f"{name}.grad"] = b"" if parameter.grad is None else parameter.grad.numpy().tobytes()
    return found


def write_config(path, **settings):
    import json

    task, mode = settings.pop("task"), settings.pop("summary_mode")
    path.write_text(json.dumps({"task": task, "risk_level": "ALL", task: {"summary_mode": mode}, **settings}))
    load_config(path)
    return path


@pytest.mark.parametrize(("name", "task", "summary_mode", "level"), list(cases()))
def test_three_steps_are_bitwise_equal(name, task, summary_mode, level, tmp_path, close_debugger):
    with nullcontext() if repeats(ARCHITECTURES[name].model) else torch.backends.mkldnn.flags(enabled=False):
        check_three_steps(name, task, summary_mode, level, tmp_path)


def check_three_steps(name, task, summary_mode, level, tmp_path):
    architecture = ARCHITECTURES[name]
    plain = architecture.build()
    expected = [train(plain, architecture, step) for step in range(3)]
    expected_rng = torch.get_rng_state()

    probed = architecture.build()
    config = write_config(tmp_path / "c.json", level=level, task=task, summary_mode=summary_mode)
    debugger = PrecisionDebugger(config, dump_path=tmp_path / "run")
    losses = []
    for step in range(3):
        debugger.start(probed)
        losses.append(train(probed, architecture, step))
        debugger.stop()
        debugger.step()

    assert losses == expected
    assert torch.equal(torch.get_rng_state(), expected_rng)
    assert state(probed) == state(plain)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "sgd-foreach": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True),
    "adamw-foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
}


@pytest.mark.parametrize(
    "optimizer", [pytest.param(one, marks=[needs_fused] if one == "adamw-fused" else []) for one in OPTIMIZERS]
)
@pytest.mark.parametrize("precision", ["float32", "autocast"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_optimizers_and_accumulated_micro_batches(optimizer, precision, level, tmp_path, close_debugger):
    architecture = ARCHITECTURES["gpt2"]  # dropout is on, embeddings are tied

    def step(model, optimize, number):
        torch.manual_seed(number)
        for micro_batch in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
                loss = model(**architecture.batch(10 * number + micro_batch)).loss / 2
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimize.step()
        optimize.zero_grad()
        return loss.item()

    plain, probed = architecture.build(), architecture.build()
    plain_optimizer, probed_optimizer = (OPTIMIZERS[optimizer](model.parameters()) for model in (plain, probed))
    expected = [step(plain, plain_optimizer, number) for number in range(3)]
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level)
    found = []
    for number in range(3):
        with debugger.start(probed):
            found.append(step(probed, probed_optimizer, number))
        debugger.step()
    assert found == expected
    assert state(probed) == state(plain)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_layers_are_bitwise_equal_and_their_recomputation_is_seen(use_reentrant, tmp_path, close_debugger):
    architecture = ARCHITECTURES["llama"]

    def build():
        model = architecture.build(attention_dropout=0.1)
        # As transformers calls it since 5.0, and as it did before.
        for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable"):
            if hasattr(model, name):
                getattr(model, name)({"use_reentrant": use_reentrant})
                break
        return model

    plain, probed = build(), build()
    expected = [train(plain, architecture, step) for step in range(2)]
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="mix")
    losses = []
    for step in range(2):
        with debugger.start(probed):
            losses.append(train(probed, architecture, step))
        debugger.step()
    assert losses == expected
    assert state(probed) == state(plain)

    import json

    dump = json.loads(next(tmp_path.glob("run/step0/*/dump.json")).read_text())["data"]
    calls = [entry for entry in dump if entry.startswith("Module.model.layers.0.mlp.LlamaMLP.forward")]
    assert len(calls) == 2
    activations = [entry for entry in dump if entry.startswith("Functional.silu") and entry.endswith("forward")]
    assert len(activations) == 4


@pytest.mark.skipif(not attention_under_autocast(), reason="attention of this release fails under autocast on CPUs")
def test_autocast_is_bitwise_equal(tmp_path, close_debugger):
    architecture = ARCHITECTURES["llama"]

    def step(model):
        torch.manual_seed(5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**architecture.batch()).loss
        loss.backward()
        return loss.item()

    plain, probed = architecture.build(), architecture.build()
    expected = step(plain)
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="mix")
    with debugger.start(probed):
        found = step(probed)
    assert found == expected
    assert state(probed) == state(plain)
