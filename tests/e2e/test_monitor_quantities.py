"""Updates, directions, features of layers, further operations: recomputed in float64; the training stays the same."""

import csv
import io
import json
import math

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES
from jobs import run_job
from monitored_trainers import train_in_parallel
from msprobe.pytorch import TrainerMon
from msprobe.pytorch._framework import PyTorchFramework
from msprobe.pytorch._reduce import TorchReducer
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe_core.errors import ConfigError, SessionError
from msprobe_core.model import Digest
from msprobe_core.monitor import call_features, layer_features, measures, updates
from msprobe_core.monitor.directions import Directions
from msprobe_core.monitor.layer_features import spectral_columns, spectrum_of
from msprobe_core.monitor.layer_weights import LayerWeights
from msprobe_core.monitor.step_buffer import StepBuffer
from msprobe_core.monitor.updates import Updates
from msprobe_core.monitoring.files import read_monitored
from msprobe_core.monitoring.quantities import Op, Quantity

PERCENTILES = {"p01": 0.01, "p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99}
LOSSES = ["fp8_underflow", "fp8_overflow", "fp8_e5m2_underflow", "fp8_e5m2_overflow",
          "fp16_underflow", "fp16_overflow", "bf16_underflow", "bf16_overflow"]  # fmt: skip
OPS = ["norm", "min", "max", "mean", "zeros", "nans", "id", *PERCENTILES, *LOSSES]
EVERYTHING = dict.fromkeys(
    ("xy_distribution", "wg_distribution", "mv_distribution", "param_distribution", "ur_distribution", "mg_direction",
     "stack_info", "print_struct", "recording_l2_features"), True,
)  # fmt: skip


class Attend(nn.Module):
    """What trainers call core attention: queries and keys are its arguments."""

    def forward(self, query, key, value):
        scores = torch.einsum("sbhd,tbhd->bhst", query, key.repeat_interleave(2, 2)) / 4**0.5
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        return torch.einsum("bhst,tbhd->sbhd", scores.softmax(-1), value.repeat_interleave(2, 2))


class Net(nn.Module):
    """One head of keys for two of queries, dropout, and a router over four experts."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key = nn.Linear(8, 16, dtype=dtype), nn.Linear(8, 8, dtype=dtype)
        self.attend, self.drop = Attend(), nn.Dropout(0.1)
        self.gate = nn.Linear(16, 4, bias=False, dtype=dtype)
        self.experts = nn.Parameter(torch.randn(4, 16, 8, dtype=dtype) / 4)

    def forward(self, x):
        length, batch, _ = x.shape
        query = self.query(x).view(length, batch, 4, 4)
        key = self.key(x).view(length, batch, 2, 4)
        mixed = self.drop(self.attend(query, key, key)).reshape(length, batch, 16)
        return torch.einsum("sbe,sbi,eio->sbo", self.gate(mixed).softmax(-1), mixed, self.experts)


L2_TARGETS = {
    "linear_hook": ["query", "gate"],
    "attention_hook": ["attend"],
    "moe_router_weight_hook": ["gate"],
    "moe_router_logit_hook": ["g*"],
}


@pytest.fixture
def monitored(tmp_path, monkeypatch):
    """Return a function that monitors a training, and where its files are."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))

    def begin(model, optimizer, *, steps_of_batch=1, **settings):
        path = tmp_path / "monitor.json"
        path.write_text(json.dumps({"targets": {}, "ops": OPS, "ndigits": 14, "l2_targets": L2_TARGETS, **settings}))
        monitor = TrainerMon(path, params_have_main_grad=False)
        monitor.set_monitor(model, optimizer, grad_acc_steps=steps_of_batch)
        return monitor

    return begin, tmp_path / "out"


def train(model, optimizer, steps=3, micro_batches=2, between=None):
    torch.manual_seed(1)
    dtype = model.gate.weight.dtype
    seen = []
    for _ in range(steps):
        for _ in range(micro_batches):
            loss = model(torch.randn(5, 3, 8, dtype=dtype)).float().square().mean()
            loss.backward()
            seen.append(loss.item().hex())
        if between is not None:
            between()
        optimizer.step()
        seen += [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.zero_grad()
    return seen, [parameter.detach().clone() for parameter in model.parameters()], torch.get_rng_state()


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def row(run, quantity, name, step, micro_step=None):
    found = [
        each for each in run.frame.filter(quantity=quantity, name=name, step=step).to_dicts()
        if each["micro_step"] == micro_step
    ]  # fmt: skip
    assert len(found) == 1, found
    return found[0]


# --- the training ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_the_training_is_the_same_to_the_bit(monitored, dtype):
    begin, out = monitored
    bare = Net(dtype).train()
    expected = train(bare, torch.optim.AdamW(bare.parameters()), steps=5)
    model = Net(dtype).train()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = begin(model, optimizer, steps_of_batch=2, step_interval=2, **EVERYTHING)

    def between():
        monitor.generate_wgrad_metrics()
        monitor.generate_xy_metrics()
        monitor.adhoc_check(model.gate.weight, "gate", "weight", [], ["norm"])

    assert same(train(model, optimizer, steps=5, between=between), expected)
    monitor.close()
    (coverage,) = out.glob("*/coverage.json")
    seen = json.loads(coverage.read_text())
    assert all(each["expected"] in (None, each["seen"]) for each in seen.values()), seen
    assert len(seen) == 14


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_transformers_train_the_same_to_the_bit(name, monitored):
    begin, out = monitored
    architecture = ARCHITECTURES[name]

    def run(watched):
        model = architecture.build()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        targets = {"linear_hook": ["model.layers.*_proj"], "moe_router_weight_hook": ["lm_head"]}
        monitor = begin(model, optimizer, **{**EVERYTHING, "l2_targets": targets}) if watched else None
        losses = []
        for step in range(3):
            loss = model(**architecture.batch(step)).loss
            loss.backward()
            losses.append(loss.item().hex())
            optimizer.step()
            optimizer.zero_grad()
        if monitor is not None:
            monitor.close()
        return losses, [parameter.detach().clone() for parameter in model.parameters()], torch.get_rng_state()

    assert same(run(watched=True), run(watched=False))
    (coverage,) = out.glob("*/coverage.json")
    seen = json.loads(coverage.read_text())
    assert all(each["expected"] in (None, each["seen"]) for each in seen.values()), seen
    assert seen["linear_hook"]["seen"] == 14
    assert min(each["seen"] for each in seen.values()) > 0


class Waits(TorchDispatchMode):
    """Notes the operators that fetch a number from a device, or whose shape depends on values."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(part in str(func) for part in ("_local_scalar_dense", "nonzero", "unique")):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
def test_nothing_waits_for_a_device_inside_a_step(monitored, monkeypatch):
    """Tensors on the host are treated like those on a device, whose results are fetched a step later."""
    begin, _ = monitored
    waits, collects = Waits(), []

    def seen(function):
        """Run the monitor's work, which is hidden from modes, in sight of one."""

        def run(*args, **kwargs):
            with waits:
                return function(*args, **kwargs)

        return run

    monkeypatch.setattr(PyTorchFramework, "reducer", lambda _self: TorchReducer(defer_host=True))
    monkeypatch.setattr(PyTorchFramework, "are_on_host", lambda _self, numbers: not numbers)
    monkeypatch.setattr(StepBuffer, "_collect", lambda self, pending: collects.append(pending.step))
    for name in ("tensor", "numbers"):
        monkeypatch.setattr(StepBuffer, name, seen(getattr(StepBuffer, name)))
    for kind in (Updates, Directions, LayerWeights):
        for name in ("before_update", "after_update"):
            monkeypatch.setattr(kind, name, seen(getattr(kind, name)))
    for name in ("attention_columns", "logits_of", "router_entropy"):
        monkeypatch.setattr(call_features, name, seen(getattr(call_features, name)))
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monitor = begin(model, optimizer, **EVERYTHING)
    train(model, optimizer, steps=2)
    assert waits.found == []
    assert [step.number for step in collects] == [0]  # while step 1 is computed
    quantities = {reading.quantity for reading in collects[0].readings.values()}
    assert quantities >= {Quantity.UPDATE, Quantity.DIRECTION, Quantity.ATTENTION, Quantity.ROUTER_LOGIT}
    with waits:
        torch.ones(1).item()
    assert waits.found  # the check can fail
    monitor.close()


# --- operations -----------------------------------------------------------------------------------------------------


def of_grid(values, largest, tiny):
    """Return the shares of elements that a format loses: those that become 0, and those that become infinite."""
    size = np.abs(values)
    return ((size > 0) & (size <= tiny)).mean(), ((size >= largest) & np.isfinite(size)).mean()


def test_percentiles_and_losses_are_those_of_the_elements(monitored):
    begin, out = monitored
    model = Net().train()
    with torch.no_grad():
        model.experts[0] = torch.logspace(-12, 6, 128).view(16, 8)
        model.experts[1, 0, 0], model.experts[1, 0, 1] = 1e-39, 3.4e38
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    monitor = begin(model, optimizer, param_distribution=True)
    origin = {name: parameter.detach().double().numpy().ravel() for name, parameter in model.named_parameters()}
    train(model, optimizer, steps=1)
    monitor.close()
    run = read_monitored(out)
    for name, values in origin.items():
        found = row(run, "param_origin", name, 0)
        ordered = np.sort(values)
        for op, share in PERCENTILES.items():
            assert found[op] == pytest.approx(ordered[round(share * (len(values) - 1))], rel=1e-6), (name, op)
        for form, tiny, largest in (("fp16", 2.0**-25, 65520.0), ("bf16", 2.0**-134, 3.3961775e38)):
            expected = of_grid(values, largest, tiny)
            assert (found[f"{form}_underflow"], found[f"{form}_overflow"]) == pytest.approx(expected, abs=1e-7)
            converted = torch.tensor(values).float().to(getattr(torch, {"fp16": "half", "bf16": "bfloat16"}[form]))
            lost = (converted == 0).numpy() & (values != 0)
            assert found[f"{form}_underflow"] == pytest.approx(lost.mean(), abs=1e-7)
            assert found[f"{form}_overflow"] == pytest.approx(converted.isinf().double().mean().item(), abs=1e-7)
        assert found["fp8_overflow"] == pytest.approx((np.abs(values) > 448).mean(), abs=1e-7)
        scaled = torch.tensor(values).float() * (448 / np.float32(np.abs(values).max()))
        lost = (scaled.to(torch.float8_e4m3fn).float() == 0).numpy() & (values != 0)
        assert found["fp8_underflow"] == pytest.approx(lost.mean(), abs=1e-7)
    assert row(run, "param_origin", "experts", 0)["fp16_overflow"] > 0


def test_percentiles_of_large_tensors_are_those_of_a_sample(monitored, monkeypatch):
    monkeypatch.setattr(measures, "MOST_SORTED", 200)
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    monitor = begin(model, optimizer, param_distribution=True)
    train(model, optimizer, steps=1)
    monitor.close()
    values = model.experts.detach().double().numpy().ravel()  # 512 elements: each third
    assert row(read_monitored(out), "param_origin", "experts", 0)["p95"] == pytest.approx(
        np.sort(values[::3])[round(0.95 * 170)], rel=1e-6
    )


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.uint16, torch.float8_e4m3fn]
)
def test_tensors_of_other_dtypes_have_them_too(dtype):
    framework = PyTorchFramework()
    reducer, digest, numbers = framework.reducer(), Digest(), {}
    tensor = torch.arange(20).float().to(dtype)
    measures.Measures(framework, list(Op), 1e-8).add(tensor, digest, reducer, numbers)
    exact = np.sort(tensor.float().numpy())
    assert {column: number.item() for column, number in numbers.items()} == pytest.approx(
        {"zeros": 0.05, **{op: exact[round(share * 19)] for op, share in PERCENTILES.items()},
         **dict.fromkeys(LOSSES[4:], 0.0)}
    )  # fmt: skip


@pytest.mark.parametrize("tensor", [torch.tensor([True]), torch.zeros(0), torch.ones(3).to_sparse()])
def test_tensors_without_numbers_have_none(tensor):
    framework = PyTorchFramework()
    numbers = {}
    measures.Measures(framework, list(Op), 1e-8).add(tensor, Digest(), framework.reducer(), numbers)
    assert numbers == {}


# --- updates --------------------------------------------------------------------------------------------------------


def test_updates_are_the_differences_of_parameters(monitored):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.AdamW(model.parameters())
    states = []
    monitor = begin(model, optimizer, ur_distribution=True)
    states.append({name: parameter.detach().double().numpy().copy() for name, parameter in model.named_parameters()})
    optimizer.register_step_post_hook(
        lambda *_: states.append(
            {name: parameter.detach().double().numpy().copy() for name, parameter in model.named_parameters()}
        )
    )
    train(model, optimizer)
    monitor.close()
    run = read_monitored(out)
    for step in range(3):
        for name, before in states[step].items():
            change = states[step + 1][name] - before
            found = row(run, "update", name, step)
            assert found["norm"] == found["norm_debiased"] == pytest.approx(np.linalg.norm(change), rel=1e-5)
            ratio = np.linalg.norm(change) / np.linalg.norm(before)
            assert found["ratio"] == found["ratio_debiased"] == pytest.approx(ratio, rel=1e-5)
            assert found["unchanged"] == pytest.approx((change == 0).mean())


class Wide(nn.Module):
    """Enough elements that rounding errors average out."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = (nn.Linear(256, 256, bias=False, dtype=dtype) for _ in range(2))
        for each in (self.up, self.down):
            nn.init.normal_(each.weight, std=0.02)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


class Copying(torch.optim.AdamW):
    """Updates float32 copies of a model's parameters, and rounds these into the parameters."""

    def __init__(self, parameters, *, lr, tells):
        self.copied = [(parameter, nn.Parameter(parameter.detach().float())) for parameter in parameters]
        super().__init__([master for _, master in self.copied], lr=lr)
        self.tells = tells

    def prepare(self):
        for parameter, master in self.copied:
            master.grad = parameter.grad.float()
            if self.tells:
                self.state[parameter] = {"master_param": master}

    def copy(self):
        for parameter, master in self.copied:
            parameter.data.copy_(master.detach())


def debiased(monitored, lr, kind):
    """Train in bfloat16; return raw and debiased norm of an update, each over what the optimizer wanted."""
    begin, out = monitored
    model = Wide(torch.bfloat16).train()
    if kind == "direct":
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    else:
        optimizer = Copying(model.parameters(), lr=lr, tells=kind == "told")
        for parameter, master in optimizer.copied:  # masters are between the values that parameters can have
            unit = master.detach().abs().log2().floor().exp2() * 2.0**-7
            master.data += torch.empty_like(unit).uniform_(-0.5, 0.5) * unit
            parameter.data.copy_(master.detach())
        optimizer.register_step_post_hook(lambda own, *_: own.copy())
    wanted = []
    monitor = begin(model, optimizer, ur_distribution=True)
    torch.manual_seed(2)
    for _ in range(6):
        x = torch.randn(32, 256, dtype=torch.bfloat16)
        (model(x) - x.roll(1, 0)).float().square().mean().backward()
        if kind == "direct":
            exact = nn.Parameter(model.up.weight.detach().float())
            exact.grad = model.up.weight.grad.float()
            twin = torch.optim.AdamW([exact], lr=lr)
            state = optimizer.state.get(model.up.weight, {})
            twin.state[exact] = {name: value.float().clone() for name, value in state.items()}
            twin.step()
            wanted.append((exact.detach() - model.up.weight.detach().float()).norm().item())
            optimizer.step()
        else:
            optimizer.prepare()
            before = optimizer.copied[0][1].detach().clone()
            optimizer.step()
            wanted.append((optimizer.copied[0][1].detach() - before).norm().item())
        model.zero_grad()
    monitor.close()
    found = row(read_monitored(out), "update", "up.weight", 5)
    return found["norm"] / wanted[5], found["norm_debiased"] / wanted[5]


@pytest.mark.parametrize("lr", [3e-6, 3e-5, 2e-4, 5e-4, 3e-3])
@pytest.mark.parametrize("kind", ["direct", "copied", "told"])
def test_debiased_updates_are_what_the_optimizer_wanted_or_unknown(monitored, lr, kind):
    raw, without_rounding = debiased(monitored, lr, kind)
    if kind == "told":
        assert raw == without_rounding == pytest.approx(1, rel=1e-4)
    elif lr >= 2e-4:
        assert without_rounding == pytest.approx(1, rel=0.05)
    else:
        assert math.isnan(without_rounding)
    if lr == 3e-6 and kind != "told":  # what rounding makes of it: lost, or many times as large
        assert raw < 0.3 if kind == "direct" else raw > 6


def test_of_large_parameters_a_sample_is_kept(monitored, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(updates, "MOST_SAMPLED", 1000)
    begin, out = monitored
    model = Wide(torch.float32).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = begin(model, optimizer, ur_distribution=True)
    before = model.up.weight.detach().clone()
    model(torch.randn(32, 256)).square().mean().backward()
    optimizer.step()
    monitor.close()
    found = row(read_monitored(out), "update", "up.weight", 0)
    change = (model.up.weight.detach() - before).double().numpy().ravel()[::67]  # 66 has a factor in common with 65536
    assert found["norm"] == pytest.approx(np.linalg.norm(change) * math.sqrt(65536 / len(change)), rel=1e-5)
    assert found["norm"] == pytest.approx((model.up.weight - before).norm().item(), rel=0.1)


# --- directions and features ----------------------------------------------------------------------------------------


def test_directions_are_the_share_of_elements_with_equal_signs(monitored):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.AdamW(model.parameters())
    pairs = []

    def note(*_):
        state = optimizer.state.get(model.gate.weight)
        pairs.append((model.gate.weight.grad.clone(), None if state is None else state["exp_avg"].clone()))

    monitor = begin(model, optimizer, mg_direction=True)
    optimizer.register_step_pre_hook(note)
    train(model, optimizer)
    monitor.close()
    run = read_monitored(out)
    assert row(run, "mg_direction", "gate.weight", 0)["agreement"] == 1.0
    for step in (1, 2):
        gradient, moment = (each.double().numpy() for each in pairs[step])
        expected = (np.sum(np.sign(gradient) * np.sign(moment)) / gradient.size + 1) / 2
        assert row(run, "mg_direction", "gate.weight", step)["agreement"] == pytest.approx(expected, abs=1e-6)


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def entropy(shares):
    return -np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1)), 0).sum(-1)


def test_features_of_layers_are_those_of_their_values(monitored):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.AdamW(model.parameters())
    given = []
    hooks = [
        each.register_forward_hook(lambda _module, args, output: given.append((args, output)))
        for each in (model.attend, model.gate)
    ]
    monitor = begin(model, optimizer, steps_of_batch=2, recording_l2_features=True)
    query_weight, gate = (each.weight.detach().double().numpy().copy() for each in (model.query, model.gate))
    train(model, optimizer)
    for hook in hooks:
        hook.remove()
    monitor.close()
    run = read_monitored(out)

    largest = np.linalg.norm(query_weight, 2)
    found = row(run, "linear_hook", "query.linear", 0)
    assert found["kernel_norm"] == pytest.approx(largest, rel=1e-3)
    assert found["sr"] == pytest.approx(np.linalg.norm(query_weight) / largest, rel=1e-3)

    units = gate / np.linalg.norm(gate, axis=1, keepdims=True)
    similarity = (units @ units.T)[np.triu_indices(4, 1)].mean()
    found = row(run, "moe_router_weight_hook", "gate.router_weight", 0)
    assert found["router_weight_similarity"] == pytest.approx(similarity, rel=1e-4)

    for micro_step in (0, 1):
        (args, _), (_, logits) = given[2 * micro_step : 2 * micro_step + 2]
        query, key = (tensor.detach().double().numpy() for tensor in args[:2])
        scores = np.einsum("shd,thd->hst", query[:, 0], key[:, 0].repeat(2, 1)) / 2
        shares = softmax(np.where(np.triu(np.ones((5, 5)), 1) > 0, -np.inf, scores))
        entropies, largest_shares = entropy(shares).mean(1), shares.max(-1).mean(1)
        found = row(run, "attention_hook", "attend.attention", 0, micro_step)
        assert found["entropy"] == pytest.approx(entropies[0], rel=1e-5)
        assert found["softmax_max"] == pytest.approx(largest_shares[0], rel=1e-5)
        assert found["entropy_lowest"] == pytest.approx(entropies.min(), rel=1e-5)
        assert found["softmax_max_highest"] == pytest.approx(largest_shares.max(), rel=1e-5)
        expected = entropy(softmax(logits.detach().double().numpy())).mean()
        found = row(run, "moe_router_logit_hook", "gate.router_logit", 0, micro_step)
        assert found["per_token_expert_entropy"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("order", ["s,b,h,d", "b,s,h,d"])
def test_long_sequences_are_sampled_by_rows(order, monkeypatch):
    torch.manual_seed(0)
    query, key = torch.randn(64, 2, 4, 8), torch.randn(64, 2, 2, 8)
    if order.startswith("b"):
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    whole = layer_features.attention_columns(query, key, order)
    monkeypatch.setattr(layer_features, "_MOST_SCORES", 4 * 64 * 16)
    sampled = layer_features.attention_columns(query, key, order)
    for column, number in whole.items():
        assert sampled[column].item() != number.item()
        assert sampled[column].item() == pytest.approx(number.item(), rel=0.15)


def spectra():
    generator = np.random.default_rng(0)
    for shape in ((64, 64), (512, 512), (1024, 64), (3, 200), (1, 5)):
        yield f"normal {shape}", generator.standard_normal(shape)
    turned = [np.linalg.qr(generator.standard_normal((256, 256)))[0] for _ in range(2)]
    for name, values in {
        "flat": np.ones(256), "linear": np.linspace(1, 0, 256), "geometric": 0.98 ** np.arange(256),
        "close": np.r_[1, 0.995, 0.99, np.linspace(0.9, 0, 253)], "one above": np.r_[1.05, np.ones(255)],
        "rank 1": np.r_[1, np.zeros(255)], "rank 3": np.r_[3, 2, 1, np.zeros(253)], "tiny": np.full(256, 1e-12),
    }.items():  # fmt: skip
        yield name, (turned[0] * values) @ turned[1]
    yield "constant", np.ones((32, 16))
    yield "diagonal", np.diag(np.arange(1.0, 33.0))


@pytest.mark.parametrize(("name", "matrix"), list(spectra()), ids=lambda value: value if isinstance(value, str) else "")
def test_largest_singular_values_are_within_one_per_cent(name, matrix):
    numbers = {column: number.item() for column, number in spectrum_of(torch.tensor(matrix).float()).items()}
    found = spectral_columns(numbers)
    exact = np.linalg.norm(matrix, 2)
    assert 0.99 * exact <= found["kernel_norm"] <= (1 + 1e-5) * exact
    assert found["sr"] == pytest.approx(np.linalg.norm(matrix) / found["kernel_norm"], rel=1e-4)


def test_matrices_of_zeros_and_of_nan_have_a_spectrum_too():
    for value, expected in ((0.0, 0.0), (math.nan, math.nan)):
        numbers = {column: each.item() for column, each in spectrum_of(torch.full((4, 6), value)).items()}
        assert spectral_columns(numbers) == pytest.approx({"sr": expected, "kernel_norm": expected}, nan_ok=True)


def test_layers_that_do_not_fit_are_said(monitored, caplog):
    begin, _ = monitored
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    targets = {"linear_hook": ["drop", "query"], "attention_hook": ["gate"], "moe_router_weight_hook": ["router"]}
    monitor = begin(model, optimizer, recording_l2_features=True, l2_targets=targets)
    train(model, optimizer, steps=1)
    monitor.close()
    assert "linear_hook: module 0:drop has no matrix" in caplog.text
    assert "attention_hook: module gate is not given queries and keys of four dimensions" in caplog.text
    assert "moe_router_weight_hook: no module of the model is named" in caplog.text


# --- what is written once -------------------------------------------------------------------------------------------


def test_structure_and_callers_are_written_after_the_first_step(monitored):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = begin(model, optimizer, print_struct=True, stack_info=True)
    train(model, optimizer, steps=1)
    assert not any(module._forward_hooks for module in model.modules())
    struct = json.loads((out / "module_struct" / "rank0" / "module_struct.json").read_text())
    assert struct["0:query"] == {
        "input": {"config": "list[1]", "0": "size=(5, 3, 8), dtype=torch.float32"},
        "output": {"config": "tensor", "tensor": "size=(5, 3, 16), dtype=torch.float32"},
        "input_grad": {"config": "tuple[1]", "0": "<class 'NoneType'>"},
        "output_grad": {"config": "tuple[1]", "0": "size=(5, 3, 16), dtype=torch.float32"},
    }
    assert struct["0:attend"]["input"]["config"] == "list[3]"
    assert struct["0:attend"]["input_grad"]["2"] == "size=(5, 3, 2, 4), dtype=torch.float32"
    assert set(struct) == {"0:", "0:query", "0:key", "0:attend", "0:drop", "0:gate"}
    (path,) = out.glob("*-rank0-*/stack_info.csv")
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert [each["module_name"] for each in rows] == ["0:", "0:query", "0:key", "0:attend", "0:drop", "0:gate"]
    lines = (out / "module_struct" / "rank0" / "module_struct.json").stat().st_mtime_ns
    assert f"File {__file__}, line" in rows[1]["stack_info"]
    assert "query = self.query(x)" in rows[1]["stack_info"]
    train(model, optimizer, steps=1)
    monitor.close()
    assert (out / "module_struct" / "rank0" / "module_struct.json").stat().st_mtime_ns == lines


def test_a_structure_that_cannot_be_written_does_not_end_the_training(monitored, caplog):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = begin(model, optimizer, print_struct=True)
    out.write_text("a file where the directory should be")
    train(model, optimizer)
    monitor.close()
    assert "training goes on" in caplog.text


# --- what programs call ---------------------------------------------------------------------------------------------


def test_programs_may_ask_for_values_of_the_current_step(monitored):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = begin(model, optimizer, ops=["norm", "max"], xy_distribution=True, wg_distribution=True)
    monitor.set_wrapped_optimizer(optimizer)
    asked = []

    def ask():
        tensor = torch.tensor([3.0, 4.0])
        asked.append((monitor.generate_wgrad_metrics(), monitor.generate_xy_metrics()))
        assert monitor.adhoc_check(tensor, "loss", "parts", [0], ["norm", "p50", "max"]) == {
            "norm": 5.0, "p50": 3.0, "max": 4.0,
        }  # fmt: skip
        assert monitor.adhoc_check(tensor, "loss", "others", [1], ["norm"]) == {}
        asked.append(model.query.weight.grad.norm().item())

    train(model, optimizer, steps=1, micro_batches=1, between=ask)
    given = monitor.generate_wgrad_metrics({"mine": torch.full((4,), 2.0)})[0]
    assert given == {"0:mine:0/rank0/grad_reduced": {"norm": 4.0, "max": 2.0}}
    monitor.close()
    ((reduced, unreduced), (given, gradients)), norm = asked
    for kind, metrics in (("grad_reduced", reduced), ("grad_unreduced", unreduced)):
        assert metrics[f"0:query.weight:0/rank0/{kind}"]["norm"] == pytest.approx(norm, rel=1e-6)
    run = read_monitored(out)
    for quantity, metrics in (("actv", given), ("actv_grad", gradients)):
        assert metrics[f"0:gate.output:0/rank0/{quantity}"]["norm"] == pytest.approx(
            row(run, quantity, "gate.output", 0, 0)["norm"]
        )
    assert row(run, "adhoc", "loss.parts", 0)["p50"] == 3.0


def test_operations_and_modules_may_be_changed_while_it_trains(monitored):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = begin(model, optimizer, ops=["norm"], wg_distribution=True, step_count_per_record=3)
    train(model, optimizer, steps=1)
    monitor.ops = ["norm", "p50"]
    monitor.reload_xy(xy_distribution=True)
    train(model, optimizer, steps=1)
    monitor.reload_xy()
    train(model, optimizer, steps=1)
    monitor.close()
    assert monitor.ops == ["norm", "p50"]
    run = read_monitored(out)
    medians = [row(run, "grad_reduced", "gate.weight", step)["p50"] for step in range(3)]
    assert math.isnan(medians[0])
    assert all(map(math.isfinite, medians[1:]))
    assert set(run.frame.filter(quantity="actv")["step"]) == {1}


def test_wrong_uses_are_said(tmp_path):
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps({"wg_distribution": True}))
    monitor = TrainerMon(path)
    with pytest.raises(SessionError, match="has not been called"):
        monitor.generate_xy_metrics()
    with pytest.raises(ConfigError, match="lists no operation"):
        monitor.ops = ["median"]
    path.write_text(json.dumps({"recording_l2_features": True, "l2_targets": {"linear": ["fc1"]}}))
    with pytest.raises(ConfigError, match="'l2_targets' has 'linear'; known: linear_hook, attention_hook"):
        TrainerMon(path)


def test_a_list_of_models_has_places_of_other_ranks(monitored):
    begin, out = monitored
    models = [None, Net().train(), Net().train()]
    parameters = [parameter for model in models[1:] for parameter in model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    targets = {"1:*y": {}, "2:gate": {}}
    monitor = begin(models, optimizer, **{**EVERYTHING, "mv_distribution": False}, targets=targets)
    for model in models[1:]:
        model(torch.randn(5, 3, 8)).square().mean().backward()
    optimizer.step()
    monitor.close()
    frame = read_monitored(out).frame
    assert set(frame.filter(quantity="update").select("stage", "name").rows()) == {
        (1, "query.weight"), (1, "query.bias"), (1, "key.weight"), (1, "key.bias"), (2, "gate.weight"),
    }  # fmt: skip
    of_modules = set(frame.filter(quantity="actv").select("stage", "name").rows())
    assert of_modules == {
        (stage, f"{name}.{side}") for stage, name in ((1, "query"), (1, "key"), (2, "gate"))
        for side in ("input", "output")
    }  # fmt: skip
    assert set(frame.filter(quantity="linear_hook")["stage"]) == {1, 2}


# --- several ranks --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp2", "tp"])
def test_sharded_trainings_are_the_same_to_the_bit(kind, tmp_path):
    l2_targets = {"linear_hook": ["*"], "moe_router_weight_hook": ["*"]}
    bare, watched = (
        run_job(train_in_parallel, 2, tmp_path / str(settings is not None), kind, settings)
        for settings in (None, {"ops": OPS, **EVERYTHING, "l2_targets": l2_targets})
    )
    assert watched == bare
    for path in (tmp_path / "True" / "out").glob("*/coverage.json"):
        coverage = json.loads(path.read_text())
        for quantity in ("update", "mg_direction", "param_origin"):
            assert coverage[quantity]["expected"] == coverage[quantity]["finite"], coverage
        assert coverage["linear_hook"]["seen"] > 0
