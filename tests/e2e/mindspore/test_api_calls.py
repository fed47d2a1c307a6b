"""Level L1 in MindSpore's dynamic graph: all ways to call an API, and to run it backward."""

import copy
import threading

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from mindspore import Tensor, mint, nn, ops  # noqa: E402
from mindspore.mint import matmul as mint_matmul_bound_before  # noqa: E402
from mindspore.ops import relu as relu_bound_before  # noqa: E402
from mindspore_programs import is_equal, record, stems  # noqa: E402
from recorded import leaves  # noqa: E402


@pytest.fixture
def x():
    return Tensor(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, 3, weight_init="ones", bias_init="ones")
        self.scale = ops.Mul()

    def construct(self, x):
        return ops.tanh(self.scale(self.dense(x), x))


NET = ["Primitive.matmul.MatMul", "Primitive.bias_add.BiasAdd", "Primitive.scale.Mul", "Functional.tanh"]


# --- ways to call ---------------------------------------------------------------------------------------------------


def test_functions_that_were_imported_by_name_count_too(tmp_path, x):
    dump = record(tmp_path, lambda: (relu_bound_before(x), mint_matmul_bound_before(x, x.permute(1, 0))))
    # A function of both is one object: nothing shows which of the two modules it was imported from.
    assert stems(dump) == ["Functional.relu", "Tensor.permute", "Functional.matmul"]
    assert relu_bound_before is ops.relu


def test_one_function_in_two_namespaces_is_called_what_the_call_says(tmp_path, x):
    assert ops.matmul is mint.matmul
    dump = record(tmp_path, lambda: (ops.matmul(x.T, x), mint.matmul(x.T, x)))
    assert [stem for stem in stems(dump) if "matmul" in stem] == ["Functional.matmul", "Mint.matmul"]


def test_arguments_are_recorded_wherever_they_are(tmp_path, x):
    dump = record(tmp_path, lambda: (ops.relu(input=x), ops.cat(tensors=(x, x), axis=1), ops.split(x, 1)))
    assert dump.data["Functional.relu.0.forward"]["input_kwargs"]["input"]["shape"] == [2, 3]
    cat = dump.data["Functional.cat.0.forward"]
    assert [len(cat["input_args"]), len(cat["input_kwargs"]["tensors"])] == [0, 2]
    assert cat["input_kwargs"]["axis"] == {"type": "int", "value": 1}
    assert len(dump.data["Functional.split.0.forward"]["output"]) == 2


def test_operators_are_methods(tmp_path, x):
    def compute():
        return x + 1, 1 - x, x @ x.T, -x, x > 0, x[0, 1:], abs(x), x**2, x // 2, x % 2, ~(x > 0)

    expected = [
        "__add__", "__rsub__", "permute", "__matmul__", "__neg__", "__gt__", "__getitem__", "__abs__", "__pow__",
        "__floordiv__", "__mod__", "__gt__", "__invert__",
    ]  # fmt: skip
    assert stems(record(tmp_path, compute)) == [f"Tensor.{name}" for name in expected]


def test_what_hands_values_to_python_is_no_api(tmp_path, x):
    dump = record(tmp_path, lambda: (x.asnumpy(), x.shape, x.dtype, len(x), float(x[0, 0].item()), str(x), x.ndim))
    assert stems(dump) == ["Tensor.__getitem__"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [(1.5, "float32"), ([], "float32"), ([1.5], "bfloat16"), ([1 + 2j], "complex64"), ([True], "bool"), ([3], "int64")],
    ids=["0-d", "empty", "bfloat16", "complex", "bool", "int64"],
)
def test_tensors_of_every_kind(tmp_path, values, dtype):
    tensor = Tensor(np.array(values), getattr(ms, dtype + "_" * (dtype == "bool")))
    dump = record(tmp_path, lambda: ops.reshape(tensor, (1, -1)), task="tensor")
    (value,) = leaves(dump.data["Functional.reshape.0.forward"]["output"]).values()
    assert value["shape"] == [1, tensor.size]
    assert (
        dump.tensor(value).tobytes() == tensor.astype(ms.float32).asnumpy().tobytes() if dtype == "bfloat16" else True
    )


def test_sparse_tensors_are_recorded_without_values(tmp_path):
    index = Tensor([[0, 1], [1, 2]], ms.int32)
    sparse = ms.COOTensor(index, Tensor([-1.0, 2.0], ms.float32), (3, 4))
    dump = record(tmp_path, lambda: ops.coo_abs(sparse))
    for value in (dump.data["Functional.coo_abs.0.forward"][part][0] for part in ("input_args", "output")):
        assert value["type"] == "mindspore.COOTensor"
        assert (value["shape"], value["Max"]) == ([3, 4], None)


def test_inputs_are_those_before_a_call_that_writes_to_them(tmp_path):
    y = Tensor(np.ones(3, np.float32))

    def write():
        y[0] = 5
        y.copy_(Tensor(np.zeros(3, np.float32)))

    dump = record(tmp_path, write)
    entries = [dump.data[f"Tensor.{name}.0.forward"] for name in ("__setitem__", "copy_")]
    assert [entry["input_args"][0]["Max"] for entry in entries] == [1.0, 5.0]
    assert [entry["output"][0]["Max"] for entry in entries] == [5.0, 0.0]


def test_exceptions_pass_and_the_next_call_is_recorded(tmp_path, x):
    def fail():
        for _ in range(2):
            with pytest.raises(RuntimeError):
                ops.matmul(x, x)
            with pytest.raises(ValueError, match="hape"):
                x.reshape(5)
        ops.relu(x)

    dump = record(tmp_path, fail)
    assert stems(dump) == [
        "Functional.matmul",
        "Tensor.reshape",
        "Functional.matmul",
        "Tensor.reshape",
        "Functional.relu",
    ]
    assert "output" not in dump.data["Functional.matmul.1.forward"]
    assert dump.data["Functional.relu.0.forward"]["output"][0]["Max"] == 1.0


def test_calls_of_other_threads_are_recorded(tmp_path, x):
    def compute():
        thread = threading.Thread(target=lambda: ops.relu(x))
        thread.start()
        thread.join()
        return ops.relu(x)

    assert stems(record(tmp_path, compute)) == ["Functional.relu"] * 2


def test_a_generator_that_is_left_in_the_middle(tmp_path, x):
    def parts():
        yield ops.relu(x)
        yield ops.abs(x)

    def compute():
        kept.append(parts())
        return next(kept[0]), ops.exp(x)

    kept = []
    assert stems(record(tmp_path, compute)) == ["Functional.relu", "Functional.exp"]
    next(kept[0])


@pytest.mark.parametrize(
    ("risk_level", "expected"),
    [
        ("CORE", ["Functional.matmul", "Primitive.matmul.MatMul"]),
        ("FOCUS", ["Functional.matmul", *NET]),
        ("ALL", ["Tensor.reshape", "Functional.matmul", *NET]),
    ],
)
def test_risk_levels(tmp_path, x, risk_level, expected):
    net = Net()
    dump = record(tmp_path, lambda: (ops.matmul(x.reshape(3, 2), x), net(x)), model=net, risk_level=risk_level)
    assert stems(dump) == expected


class Toolbox:
    @staticmethod
    def twice(x):
        return ops.relu(x) * 2


def test_custom_apis_have_gradients_and_hide_what_they_call(tmp_path, x):
    dump = record(
        tmp_path,
        lambda: ms.grad(lambda x: (Toolbox.twice(ops.exp(x)) * 3).sum())(x),
        prepare=lambda debugger: debugger.register_custom_api(Toolbox, "twice", "Mine"),
    )
    assert stems(dump) == ["Functional.exp", "Mine.twice", "Tensor.__mul__", "Tensor.sum"]
    backward = dump.data["Mine.twice.0.backward"]
    assert [backward["input"][0]["Max"], backward["output"][0]["Max"]] == [3.0, 6.0]


# --- randomness -----------------------------------------------------------------------------------------------------


def test_dropout_stays_what_it_is_and_draws_the_same_numbers(tmp_path, x):
    def draw():
        ms.set_seed(3)
        dropped = ops.dropout(x, 0.5), nn.Dropout(p=0.5).set_train()(x)
        return [value.asnumpy() for value in (*dropped, ops.randn(4))]

    bare, drawn = draw(), []
    record(tmp_path, lambda: drawn.append(draw()))
    assert is_equal(drawn[0], bare)
    assert is_equal(draw(), bare)
    assert (bare[0] == 0).any()


# --- ways to run backward -------------------------------------------------------------------------------------------


def loss_of(x):
    return (ops.relu(x) * x).sum()


WAYS = {
    "grad": lambda x: ms.grad(loss_of)(x),
    "value_and_grad": lambda x: ms.value_and_grad(loss_of)(x),
    "GradOperation": lambda x: ops.GradOperation()(loss_of)(x),
    "vjp": lambda x: ms.vjp(loss_of, x)[1](Tensor(1.0, ms.float32)),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_take_gradients(tmp_path, x, way):
    dump = record(tmp_path, lambda: WAYS[way](x))
    expected = ["Functional.relu", "Tensor.__mul__", "Tensor.sum"]
    assert stems(dump) == expected
    assert stems(dump, "backward") == expected[::-1]
    assert x.hooks() == []


def test_no_gradients_are_expected_where_no_graph_is_built(tmp_path, x):
    dump = record(tmp_path, lambda: loss_of(x), level="L1")
    assert stems(dump, "backward") == []


def test_arguments_that_take_no_gradient_have_none(tmp_path, x):
    mask = x > 0

    def loss(x):
        return ops.where(mask, x, ops.stop_gradient(x)).sum()

    backward = record(tmp_path, lambda: ms.grad(loss)(x)).data["Functional.where.0.backward"]
    assert [value and value["shape"] for value in backward["output"]] == [None, [2, 3]]


def test_an_index_that_was_computed_from_the_same_tensor(tmp_path, x):
    """The walk through the call's nodes must not leave it by the index, and find the tensor again beyond it."""

    def loss(x):
        ones = x - ops.stop_gradient(x) + 1
        index = ones.astype(ms.int32)
        return ops.gather_d(x, 1, index).sum() + (ones * 5).sum()

    dump = record(tmp_path, lambda: ms.grad(loss)(x), task="tensor")
    (value,) = leaves(dump.data["Functional.gather_d.0.backward"]["output"]).values()
    assert dump.tensor(value).tolist() == [[0, 3, 0]] * 2


def test_one_step_of_training_with_an_optimizer(tmp_path, x):
    def weights_after(run):
        net = Net()
        loss = nn.WithLossCell(net, nn.MSELoss())
        step = nn.TrainOneStepCell(loss, nn.Momentum(net.trainable_params(), 0.1, 0.9)).set_train()
        run(net, lambda: step(x, x))
        return [parameter.asnumpy().copy() for parameter in net.get_parameters()]

    dumps = []
    bare = weights_after(lambda _, step: step())
    probed = weights_after(lambda net, step: dumps.append(record(tmp_path, step, model=net, level="mix")))
    assert is_equal(probed, bare)
    assert [stem for stem in stems(dumps[0]) if stem in NET] == NET
    assert [stem for stem in stems(dumps[0], "backward") if stem in NET] == NET[::-1]


@pytest.mark.parametrize("kind", [nn.AdamWeightDecay, ms.experimental.optim.SGD], ids=["compiled", "not compiled"])
def test_calls_in_an_optimizer_belong_to_it(tmp_path, kind):
    net = Net()
    optimizer = kind(net.trainable_params(), 0.1)
    gradients = tuple(ops.ones_like(parameter) for parameter in net.trainable_params())
    dump = record(tmp_path, lambda: optimizer(gradients), model=net, level="mix")
    parents = dump.json("construct.json")
    assert parents.pop("optimizer") is None
    assert parents
    assert set(parents.values()) == {"optimizer"}
    assert (kind is nn.AdamWeightDecay) == ("Jit.AdamWeightDecay" in stems(dump))


def test_a_model_that_trains_itself(tmp_path):
    net = Net()
    data = {"data": np.ones((4, 3), np.float32), "label": np.ones((4, 3), np.float32)}
    dataset = ms.dataset.NumpySlicesDataset(data, shuffle=False).batch(2)
    model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    dump = record(tmp_path, lambda: model.train(1, dataset, dataset_sink_mode=False), model=net)
    assert [stem for stem in stems(dump) if stem in NET] == NET * 2
    assert [stem for stem in stems(dump, "backward") if stem in NET] == NET[::-1] * 2


def test_what_is_computed_again_in_backward_is_marked(tmp_path, x):
    net = Net()
    dump = record(tmp_path, lambda: ms.grad(lambda x: ms.recompute(net, x))(x), model=net)
    assert stems(dump) == NET * 2
    marked = [entry for entry, content in dump.data.items() if content.get("execution", {}).get("recompute")]
    assert marked == [entry for entry in dump.data if entry.endswith(".1.forward")]
    assert stems(dump, "backward") == NET[::-1]


# --- primitives -----------------------------------------------------------------------------------------------------


def test_a_cell_can_be_copied_saved_and_compiled_while_its_primitives_are_recorded(tmp_path, x, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = Net()
    bare = net(x).asnumpy()
    kept = []

    @ms.jit
    def compiled(x):
        return net(x)

    def work():
        kept.append(copy.deepcopy(net))
        ms.save_checkpoint(net, str(tmp_path / "net.ckpt"))
        return [value.asnumpy() for value in (net(x), kept[0](x), copy.deepcopy(net.scale)(x, x), compiled(x))]

    dump = record(tmp_path, lambda: kept.append(work()), model=net)
    assert stems(dump) == [*NET, "Functional.tanh", "Jit.compiled"]
    assert is_equal([*kept[1][:2], kept[1][3]], [bare] * 3)
    assert is_equal([kept[0](x).asnumpy(), compiled(x).asnumpy()], [bare] * 2)
    assert type(net.scale) is ops.Mul
    assert net.scale.__dict__.keys() == ops.Mul().set_prim_instance_name("scale").__dict__.keys()


def test_primitives_among_the_functions(tmp_path, x):
    dump = record(tmp_path, lambda: (ops.tensor_add(x, x), ops.reduce_sum(x, 0), ops.Mul()(x, x)))
    assert stems(dump) == ["Functional.tensor_add", "Functional.reduce_sum"]
