"""Dumps of two frameworks, compared through the map that a plugin of each offers."""

from types import SimpleNamespace

import pytest
from dumps import api, tensor, write_dump
from programs import align_dumps, lone_in, pairs_in

from msprobe_core.compare import compare_dumps
from msprobe_core.compare.mapping import ApiRule, Matching
from msprobe_core.compare.mapping_files import read_matching
from msprobe_core.compare.pairing_codes import PairingCode
from msprobe_core.findings import worded
from msprobe_core.hookspecs import hookimpl
from msprobe_core.plugins import Plugin, registry
from msprobe_core.protocols.trainers import ApiMap

RENAMES = {
    "Functional.bidense": "Functional.bilinear",
    "Functional.dense": "Functional.linear",
    "Functional.equal": "Torch.eq",
    "Functional.swapaxes": "Torch.transpose",
    "Tensor.asnumpy": "Tensor.numpy",
    "Tensor.cauchy": "Tensor.cauchy_",
    "Tensor.equal": "Tensor.eq",
    "Tensor.fill_diagonal": "Tensor.fill_diagonal_",
    "Tensor.gather_elements": "Tensor.gather",
    "Tensor.swapaxes": "Tensor.transpose",
}
STAND_IN = ApiMap(
    name="standin",
    apis=RENAMES,
    prefixes={"Mint": "Torch", "MintFunctional": "Functional", "MintDistributed": "Distributed", "Cell": "Module"},
    module_types={"Dense": "Linear"},
    parameters={"LayerNorm": {"gamma": "weight", "beta": "bias"}},
    arguments={"Tensor.gather_elements": {"1": "2", "2": "1", "axis": "dim"}},
)


@pytest.fixture(autouse=True)
def patch():
    """A plugin as one of another framework has it; it is gone after the test."""

    @hookimpl
    def msprobe_register_api_maps():
        return [STAND_IN]

    plugins = registry()
    if "pytorch" not in plugins.api_maps():
        own = hookimpl(lambda: [ApiMap(name="pytorch")], specname="msprobe_register_api_maps")
        plugins.add(Plugin("own", None, "tests"), lambda: SimpleNamespace(msprobe_register_api_maps=own))
    plugins.add(
        Plugin("standin", None, "tests"), lambda: SimpleNamespace(msprobe_register_api_maps=msprobe_register_api_maps)
    )
    yield
    for name in ("standin", "own"):
        if plugins.manager.get_plugin(name) is not None:
            plugins.manager.unregister(name=name)
        plugins._plugins.pop(name, None)


def theirs(values=1.0):
    fields = {"dtype": "Float32", "type": "mindspore.Tensor"}
    own = tensor(values, **fields)
    del own["requires_grad"]
    return own


def ours(values=1.0):
    return tensor(values)


def dumps(tmp_path, target, golden, frameworks=("standin", "pytorch")):
    return [
        write_dump(tmp_path / name, data, framework=framework)
        for name, data, framework in zip("tg", (target, golden), frameworks, strict=True)
    ]


@pytest.mark.parametrize("turned", [False, True], ids=["theirs against ours", "ours against theirs"])
@pytest.mark.parametrize("own", [*RENAMES, "Mint.cos", "MintFunctional.relu", "MintDistributed.all_reduce", "Tensor.x"])
def test_names_of_apis(tmp_path, own, turned):
    other = {"Mint.cos": "Torch.cos", "MintFunctional.relu": "Functional.relu", "Tensor.x": "Tensor.x"} | RENAMES
    other["MintDistributed.all_reduce"] = "Distributed.all_reduce"
    sides = [
        {f"{own}.0.forward": api(theirs(), output=theirs()), f"{own}.0.backward": {"input": [theirs()]}},
        {f"{other[own]}.0.forward": api(ours(), output=ours()), f"{other[own]}.0.backward": {"input": [ours()]}},
    ]
    frameworks = ("standin", "pytorch")
    if turned:
        sides, frameworks = sides[::-1], frameworks[::-1]
    alignment = align_dumps(*dumps(tmp_path, *sides, frameworks))
    assert pairs_in(alignment) == dict(zip(*sides, strict=True))
    (note,) = alignment.notes
    assert worded(note).startswith(
        f"names of {frameworks[0]} and {frameworks[1]} are translated by the maps of their plugins: 1 "
    )


def network(make, prefix, dense, names, linear):
    """Return the dump of a small network, with the names of one framework."""
    weight, bias = names
    x = make([1.0, -2.0])
    return {
        f"{linear}.0.forward": api(x, x, output=x),
        f"{prefix}.net.fc.{dense}.forward.0": api(x, output=x) | {"parameters": {"weight": x, "bias": x}},
        f"{prefix}.net.norm.LayerNorm.forward.0": api(x, output=x) | {"parameters": {weight: x, bias: x}},
        f"{prefix}.net.norm.LayerNorm.parameters_grad.0": {weight: [x], bias: [x]},
        f"{prefix}.net.fc.{dense}.backward.0": {"input": [x], "output": [x]},
        f"{linear}.0.backward": {"input": [x], "output": [x, x]},
    }


def test_a_network_agrees_in_every_row(tmp_path):
    target = network(theirs, "Cell", "Dense", ("gamma", "beta"), "Functional.dense")
    golden = network(ours, "Module", "Linear", ("weight", "bias"), "Functional.linear")
    paths = dumps(tmp_path, target, golden)
    (unit,) = compare_dumps(*paths).units
    assert unit.agrees
    assert unit.counts["pass"] == unit.num_rows == 18
    assert unit.counts["warning"] == 0  # another framework's spelling of a dtype is no difference
    assert len(unit.notes) == 1  # that names are translated
    alignment = align_dumps(*paths)
    assert dict(alignment.rows.select("name_target", "name_golden").rows())[
        "Cell.net.norm.LayerNorm.parameters_grad.0.gamma"
    ] == "Module.net.norm.LayerNorm.parameters_grad.0.weight"  # fmt: skip


def test_arguments_in_another_order(tmp_path):
    x, index, axis = theirs(1.0), theirs(2.0), {"type": "int", "value": 0}
    target = {"Tensor.gather_elements.0.forward": api(x, index, axis, output=x)}
    target["Tensor.gather_elements.0.backward"] = {"input": [x], "output": [x, index, None]}
    golden = {"Tensor.gather.0.forward": api(ours(1.0), axis, ours(2.0), output=ours())}
    golden["Tensor.gather.0.backward"] = {"input": [ours()], "output": [ours(1.0), None, ours(2.0)]}
    rows = align_dumps(*dumps(tmp_path, target, golden)).rows
    own, other = "Tensor.gather_elements.0.", "Tensor.gather.0."
    assert dict(rows.filter(role="input", phase="forward").select("name_target", "name_golden").rows()) == {
        f"{own}forward.input.{i}": f"{other}forward.input.{j}" for i, j in ((0, 0), (1, 2), (2, 1))
    }
    assert dict(rows.filter(role="output", phase="backward").select("name_target", "name_golden").rows()) == {
        f"{own}backward.output.{i}": f"{other}backward.output.{j}" for i, j in ((0, 0), (1, 2), (2, 1))
    }


def test_extra_calls_of_one_framework(tmp_path):
    """Numbers of two frameworks need not fit, even where one has calls that became the other's name."""
    target = {f"{name}.forward": api(theirs(), output=theirs()) for name in ("Mint.add.0", "Torch.add.0", "Mint.exp.0")}
    golden = {f"{name}.forward": api(ours(), output=ours()) for name in ("Torch.add.0", "Torch.add.1", "Torch.mul.0")}
    alignment = align_dumps(*dumps(tmp_path, target, golden))
    assert pairs_in(alignment) == {
        "Mint.add.0.forward": "Torch.add.0.forward",
        "Torch.add.0.forward": "Torch.add.1.forward",
    }
    assert lone_in(alignment, "target") == ["Mint.exp.0.forward"]
    assert lone_in(alignment, "golden") == ["Torch.mul.0.forward"]


def test_the_users_names_come_first(tmp_path):
    target = {"Functional.dense.0.forward": api(theirs(), output=theirs())}
    golden = {"NPU.my_linear.0.forward": api(ours(), output=ours())}
    rules = [ApiRule("Functional.dense", "NPU.my_linear", "names.yaml, line 1")]
    alignment = align_dumps(*dumps(tmp_path, target, golden), Matching(apis=rules))
    assert pairs_in(alignment) == {"Functional.dense.0.forward": "NPU.my_linear.0.forward"}


def test_an_unknown_framework_is_reported(tmp_path):
    dump = {"Torch.add.0.forward": api(ours(), output=ours())}
    alignment = align_dumps(*dumps(tmp_path, dump, dump, ("mindtorch", "pytorch")))
    assert pairs_in(alignment) == {"Torch.add.0.forward": "Torch.add.0.forward"}
    (note,) = alignment.notes
    assert (note.code, note.fields) == (PairingCode.NO_MAP, {"framework": "mindtorch"})


def test_the_plugins_maps_on_request(tmp_path):
    """With -am and no file, also within one framework: what the map takes for one API is one."""
    target = {"Tensor.equal.0.forward": api(theirs(), output=theirs())}
    golden = {"Tensor.eq.0.forward": api(theirs(), output=theirs())}
    paths = dumps(tmp_path, target, golden, ("standin", "standin"))
    assert pairs_in(align_dumps(*paths, read_matching(api_mapping=True))) == dict(zip(target, golden, strict=True))
    assert pairs_in(align_dumps(*paths)) == {}
