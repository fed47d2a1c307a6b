"""`seed_all` takes chance out, everywhere and no more than it says, and puts it back."""

import contextlib
import copy
import pickle
import random
import threading

import numpy as np
import pytest
import torch
from msprobe.pytorch import PrecisionDebugger, seed_all
from msprobe.pytorch._apis import ApiTable
from recorded import Recorded
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.functional import alpha_dropout, scaled_dot_product_attention
from torch.nn.functional import dropout as drop
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from msprobe_core.config import RiskLevel

_held = {"dropout": torch.dropout, "attention": F.scaled_dot_product_attention}  # no module's namespace


@pytest.fixture(autouse=True)
def restored():
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    seed_all().restore()
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


def ones(*shape):
    return torch.ones(*shape, dtype=torch.float64, requires_grad=True)


def attend(function, **kwargs):
    torch.manual_seed(3)
    q, k, v = torch.randn(3, 2, 4, 8, 16).unbind()
    return function(q, k, v, **kwargs)


def attend_in_full(**kwargs):
    torch.manual_seed(3)
    q, w, b = torch.randn(6, 2, 8), torch.randn(24, 8), torch.zeros(24)
    out = torch.eye(8), torch.zeros(8)
    return F.multi_head_attention_forward(q, q, q, 8, 2, w, b, None, None, False, kwargs.pop("p"), *out, **kwargs)[0]


X, WIDE = torch.arange(1.0, 25.0).view(4, 6), torch.ones(2, 3, 8)

DROPOUTS = {
    "F.dropout": lambda p: F.dropout(X, p),
    "F.dropout by keywords": lambda p: F.dropout(input=X, p=p, training=True),
    "F.dropout by its default": lambda p: F.dropout(X) if p else X,
    "F.dropout in place": lambda p: F.dropout(X.clone(), p, inplace=True),
    "F.dropout1d": lambda p: F.dropout1d(WIDE, p),
    "F.dropout2d": lambda p: F.dropout2d(WIDE.view(2, 3, 2, 4), p),
    "F.dropout3d": lambda p: F.dropout3d(WIDE.view(2, 3, 2, 2, 2), p),
    "F.alpha_dropout": lambda p: F.alpha_dropout(X, p, training=True),
    "F.feature_alpha_dropout": lambda p: F.feature_alpha_dropout(WIDE, p, training=True),
    "F by name": lambda p: drop(X, p) + alpha_dropout(X, p, True),
    "torch.dropout": lambda p: torch.dropout(X, p, True),
    "torch.dropout held": lambda p: _held["dropout"](X, p, True),
    "torch.dropout_": lambda p: torch.dropout_(X.clone(), p, train=True),
    "torch.alpha_dropout": lambda p: torch.alpha_dropout(X, p, True),
    "torch.feature_dropout": lambda p: torch.feature_dropout(WIDE, p, True),
    "torch._VF": lambda p: torch._VF.dropout(X, p, True),
    "torch.ops": lambda p: torch.ops.aten.dropout(X, p, True),
    "nn.Dropout": lambda p: nn.Dropout(p)(X),
    "nn.Dropout in place": lambda p: nn.Dropout(p, inplace=True)(X.clone()),
    "nn.Dropout1d": lambda p: nn.Dropout1d(p)(WIDE),
    "nn.Dropout2d": lambda p: nn.Dropout2d(p)(WIDE.view(2, 3, 2, 4)),
    "nn.AlphaDropout": lambda p: nn.AlphaDropout(p)(X),
    "nn.FeatureAlphaDropout": lambda p: nn.FeatureAlphaDropout(p)(WIDE),
    "scripted": lambda p: torch.jit.script(nn.Dropout(p))(X),
    "attention": lambda p: attend(F.scaled_dot_product_attention, dropout_p=p),
    "attention by position": lambda p: attend(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, None, p)),
    "attention by name": lambda p: attend(scaled_dot_product_attention, dropout_p=p, is_causal=True),
    "attention held": lambda p: attend(_held["attention"], dropout_p=p),
    "multi-head attention": lambda p: attend_in_full(p=p),
    "multi-head attention without weights": lambda p: attend_in_full(p=p, need_weights=False),
    "vmap": lambda p: torch.func.vmap(lambda x: F.dropout(x, p), randomness="different")(X),
    "no grad": lambda p: torch.no_grad()(F.dropout)(X, p),
    "inference mode": lambda p: torch.inference_mode()(F.dropout)(X, p) * 1,
    "autocast": lambda p: torch.autocast("cpu", torch.bfloat16)(attend)(F.scaled_dot_product_attention, dropout_p=p),
}


@pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning")
@pytest.mark.parametrize("name", DROPOUTS)
def test_no_dropout_drops(name):
    call = DROPOUTS[name]
    expected = call(0.0)
    torch.manual_seed(1)
    assert not torch.equal(call(0.5), expected)  # there is something to take out
    with seed_all(rm_dropout=True):
        before = torch.get_rng_state()
        found = call(0.5)
        assert torch.equal(found, expected)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        if "attention" not in name and name != "autocast":  # which seed for their data
            assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(call(0.5), expected)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("is_packed", [False, True])
def test_recurrent_layers_drop_nothing_between_their_layers(kind, is_packed):
    torch.manual_seed(0)
    layer, x = kind(4, 8, num_layers=3, dropout=0.9), torch.randn(5, 2, 4)

    def run():
        if is_packed:
            return layer(nn.utils.rnn.pack_padded_sequence(x, [5, 3]))[0].data
        return layer(x)[0]

    expected = copy.deepcopy(layer)
    expected.dropout = 0.0
    assert not torch.equal(run(), run())
    with seed_all(rm_dropout=True):
        layer_, layer = layer, expected
        right = run()
        layer = layer_
        assert torch.equal(run(), right)
    assert not torch.equal(run(), right)


def test_gradients_are_those_without_dropout():
    x = ones(4, 6)
    with seed_all(rm_dropout=True):
        (drop(x, 0.5) * 3).sum().backward()
        y = F.dropout(x * 2, 0.5, inplace=True)
        assert y.requires_grad
    assert torch.equal(x.grad, torch.full_like(x, 3.0))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_backward_computes_again_drops_nothing_either(use_reentrant):
    x = ones(4, 6)
    with seed_all(rm_dropout=True):
        y = checkpoint(lambda x: F.dropout(x * x, 0.5) * 3, x, use_reentrant=use_reentrant, preserve_rng_state=False)
        y.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 6.0))


def test_other_threads_and_workers_drop_nothing_either():
    found = []
    with seed_all(rm_dropout=True):
        thread = threading.Thread(target=lambda: found.append(drop(X, 0.5)))
        thread.start()
        thread.join()
        loader = torch.utils.data.DataLoader(
            [X[i] for i in range(4)], num_workers=1, collate_fn=lambda rows: F.dropout(torch.stack(rows), 0.5)
        )
        found.append(torch.cat(list(loader)))
    assert all(torch.equal(each, X) for each in found)


def test_what_is_no_probability_is_still_an_error():
    with seed_all(rm_dropout=True):
        with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
            F.dropout(X, 1.5)
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            torch.dropout(X, -0.5, True)


def test_evaluation_is_left_as_it_is():
    with seed_all(rm_dropout=True):
        assert F.dropout(X, 0.5, training=False) is X


class Mode(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_modes_of_the_user_see_what_they_saw():
    with seed_all(rm_dropout=True), Mode() as mode:
        assert torch.equal(F.dropout(X, 0.5), X)
    assert mode.seen[:1] == [F.dropout]


@pytest.mark.parametrize("ends", ["restore", "block", "next call"])
def test_every_way_to_put_dropout_back(ends):
    seeding = seed_all(rm_dropout=True)
    if ends == "restore":
        seeding.restore()
        seeding.restore()
    elif ends == "block":
        with seeding:
            pass
    else:
        second = seed_all(rm_dropout=True)
        seeding.restore()  # is over already, and takes nothing from the second
        assert torch.equal(F.dropout(X, 0.5), X)
        second = seed_all()
        assert second is not seeding
    assert not torch.equal(F.dropout(X, 0.5), X)


def test_nothing_of_pytorch_is_replaced_to_take_dropout_out():
    def state():
        functions = F.dropout, torch.dropout, F.scaled_dot_product_attention, torch._VF.lstm
        return functions, torch._C._len_torch_function_stack()

    before = state()
    with seed_all(rm_dropout=True):
        assert state() == before
        copied = pickle.loads(pickle.dumps(nn.Dropout(0.5)))
        assert copied.p == 0.5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_functions_are_let_pass_and_said(caplog):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: F.dropout(x, 0.5) + 1, backend="aot_eager", fullgraph=True)
    with seed_all(rm_dropout=True):
        assert not torch.equal(compiled(X), X + 1)  # what is compiled may be kept on disk: it must not depend on us
        assert "seed_all(rm_dropout=True) does not reach into what torch.compile compiles" in caplog.text
        assert torch.equal(F.dropout(X, 0.5), X)
    assert not torch.equal(compiled(X), X + 1)


def test_the_record_shows_what_ran(tmp_path, close_debugger):
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", risk_level="ALL")
    lstm = nn.LSTM(4, 4, num_layers=2, dropout=0.5)
    with seed_all(rm_dropout=True), debugger.start():
        F.dropout(X, 0.25)
        torch.dropout(X, 0.25, True)
        attend(F.scaled_dot_product_attention, dropout_p=0.25)
        lstm(torch.ones(1, 1, 4))
    data = Recorded(tmp_path).data
    record = data["Functional.dropout.0.forward"]
    assert record["input_kwargs"]["p"]["value"] == 0.0
    assert {key: record["output"][0][key] for key in ("Max", "Min")} == {"Max": 24.0, "Min": 1.0}
    assert data["Torch.dropout.0.forward"]["input_args"][1]["value"] == 0.0
    assert data["Functional.scaled_dot_product_attention.0.forward"]["input_kwargs"]["dropout_p"]["value"] == 0.0
    (recurrent,) = (record for entry, record in data.items() if ".lstm." in entry and "forward" in entry)
    assert recurrent["input_args"][5]["value"] == 0.0


def test_recording_changes_nothing_of_a_run_without_dropout(tmp_path, close_debugger):
    def losses(block):
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.3, batch_first=True)
        x, found = torch.randn(2, 8, 16), []
        with block:
            for _ in range(2):
                loss = model(x).square().mean()
                loss.backward()
                found += [loss.item(), *(p.grad.sum().item() for p in model.parameters())]
        return found

    with seed_all(rm_dropout=True):
        expected = losses(contextlib.nullcontext())
        assert losses(PrecisionDebugger(dump_path=tmp_path, level="L1").start()) == expected


# --- is_enhanced ------------------------------------------------------------------------------------------------

DRAWS = {
    "random.random": lambda: random.random(),
    "random.randint": lambda: random.randint(0, 10**9),
    "random.gauss": lambda: random.gauss(0, 1),
    "random.shuffle": lambda: (x := list(range(50)), random.shuffle(x), tuple(x))[2],
    "random.choices": lambda: tuple(random.choices(range(1000), k=5)),
    "np.random.rand": lambda: np.random.rand(3).tobytes(),
    "np.random.permutation": lambda: np.random.permutation(50).tobytes(),
    "np.random.standard_normal": lambda: np.random.standard_normal(3).tobytes(),
    "np.random.default_rng": lambda rng=[]: (rng or rng.append(np.random.default_rng(5)) or rng)[0].normal(),
    "np.random.default_rng()": lambda: np.random.default_rng().integers(0, 2**60),
    "torch.rand": lambda: torch.rand(3).numpy().tobytes(),
    "torch.randperm": lambda: torch.randperm(50).numpy().tobytes(),
    "torch.normal": lambda: torch.normal(0.0, 1.0, (3,)).numpy().tobytes(),
    "torch.bernoulli": lambda: torch.bernoulli(torch.full((60,), 0.5)).numpy().tobytes(),
    "torch.multinomial": lambda: torch.multinomial(torch.ones(500), 5).numpy().tobytes(),
    "Tensor.uniform_": lambda: torch.empty(3).uniform_().numpy().tobytes(),
    "Tensor.random_": lambda: torch.empty(3).random_().numpy().tobytes(),
    "F.dropout": lambda: F.dropout(torch.ones(60)).numpy().tobytes(),
    "F.dropout by name": lambda: drop(torch.ones(60), 0.5).numpy().tobytes(),
    "F.alpha_dropout": lambda: F.alpha_dropout(torch.ones(60), 0.5, True).numpy().tobytes(),
    "F.rrelu": lambda: F.rrelu(-torch.ones(60), training=True).numpy().tobytes(),
    "F.gumbel_softmax": lambda: F.gumbel_softmax(torch.ones(60)).numpy().tobytes(),
    "attention": lambda: attend(F.scaled_dot_product_attention, dropout_p=0.5).numpy().tobytes(),
    "nn.init": lambda: nn.init.kaiming_uniform_(torch.empty(3, 3)).numpy().tobytes(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_each_draw_is_the_same_and_no_longer_when_it_is_over(name):
    draw = DRAWS[name]
    with seed_all(7, is_enhanced=True):
        first = draw()
        assert draw() == first
        random._inst.random()  # drawn without the module's functions
        torch.default_generator.seed()
        assert draw() == first
    with seed_all(7, is_enhanced=True):
        if name != "np.random.default_rng":  # one generator over all of the test
            assert draw() == first
    if name not in {"np.random.default_rng", "attention"}:  # seeds itself
        assert len({draw() for _ in range(4)}) > 1


def test_functions_imported_by_name_draw_the_same_too():
    from random import randint

    globals()["_randint"] = randint
    with seed_all(is_enhanced=True):
        assert _randint(0, 10**9) == _randint(0, 10**9)  # noqa: F821
    assert globals().pop("_randint") is random.randint


def test_different_calls_still_differ():
    with seed_all(is_enhanced=True):
        assert random.randint(0, 10**9) != random.randint(0, 10**8)
        one, other = np.random.default_rng(1), np.random.default_rng(2)
        assert one.random() != other.random()


def test_a_generator_stays_one():
    with seed_all(is_enhanced=True):
        rng = np.random.default_rng(1)
        assert isinstance(rng, np.random.Generator)
        assert np.random.default_rng(rng) is rng
        assert type(pickle.loads(pickle.dumps(rng))) is np.random.Generator
        held = rng.random()
    assert len({rng.random() for _ in range(3)}) == 3
    assert held == np.random.default_rng(1).random()
    assert type(np.random.default_rng(1)) is np.random.Generator


def test_every_function_is_back_in_its_place():
    def state():
        return (
            dict(vars(random)), dict(vars(np.random)), dict(vars(torch)), dict(vars(torch.Tensor)), dict(vars(F)),
            dict(globals()),
        )  # fmt: skip

    before = state()
    seeding = seed_all(is_enhanced=True)
    assert state() != before
    assert pickle.loads(pickle.dumps(torch.rand)) is torch.rand
    assert torch.rand.__name__ == "rand"
    held = torch.rand
    text = pickle.dumps(np.random.rand)
    assert b"msprobe" not in text
    seeding.restore()
    assert state() == before
    assert not torch.equal(held(3), held(3))


def test_functions_are_known_by_their_names_also_where_patches_were_met_first():
    with seed_all(is_enhanced=True):
        apis = ApiTable(RiskLevel.ALL)
        assert apis.find(torch.Tensor.uniform_)[:2] == ("Tensor", "uniform_")
    assert apis.find(torch.Tensor.uniform_)[:2] == ("Tensor", "uniform_")
    assert apis.find(torch.rand)[:2] == ("Torch", "rand")
    assert apis.find(torch.normal)[:2] == ("Torch", "normal")


def test_an_exception_passes_and_the_state_is_kept():
    with seed_all(is_enhanced=True):
        first = random.random()
        with pytest.raises(ValueError, match="empty range"):
            random.randint(1, 0)
        assert random.random() == first


def test_enhanced_runs_are_recorded_under_their_names(tmp_path, close_debugger):
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", risk_level="ALL")
    with seed_all(is_enhanced=True), debugger.start():
        torch.empty(3).uniform_()
        torch.rand(3)
        F.dropout(X, 0.5)
    names = [entry for entry in Recorded(tmp_path).data if not entry.startswith("Torch.empty")]
    assert names == ["Tensor.uniform_.0.forward", "Torch.rand.0.forward", "Functional.dropout.0.forward"]
    debugger.close()
    with PrecisionDebugger(dump_path=tmp_path / "after", level="L1", risk_level="ALL").start():
        torch.empty(3).uniform_()
    assert "Tensor.uniform_.0.forward" in Recorded(tmp_path / "after").data


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_functions_go_their_own_way():
    torch._dynamo.reset()
    compiled = torch.compile(lambda: torch.rand(3) + 1, backend="eager", fullgraph=True)
    with seed_all(is_enhanced=True):
        assert compiled().shape == (3,)
    assert compiled().shape == (3,)
