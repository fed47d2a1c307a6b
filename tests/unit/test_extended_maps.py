"""Maps of names: parameters that are stored in another order of dimensions, and maps that add to another's."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compare import compare_dumps
from msprobe_core.compare.map_files import load_api_map
from msprobe_core.config_check.differences import Section
from msprobe_core.config_check.manifests import compare_manifests
from msprobe_core.hookspecs import hookimpl
from msprobe_core.manifest.facts import Device, Library, Manifest, Model, Module, Parameter, RunFacts
from msprobe_core.plugins import Plugin, registry
from msprobe_core.plugins.api_maps import extended_maps
from msprobe_core.protocols.trainers import ApiMap

GOLDEN = Path(__file__).parents[1] / "data" / "frameworks" / "pytorch"
ORDERS = {"Dense": (1, 0), "Conv": (3, 2, 0, 1)}
TILTED = ApiMap(
    name="tilted",
    module_types={"Dense": "Linear", "Conv": "Conv2d"},
    parameters={"": {"kernel": "weight"}},
    permuted={type_name: {"kernel": order} for type_name, order in ORDERS.items()},
)


pytestmark = pytest.mark.skipif(
    "pytorch" not in registry().api_maps(), reason="the plugin of PyTorch has the places of its arguments"
)


@pytest.fixture(autouse=True)
def maps():
    places = registry().api_maps()["pytorch"].arguments
    hook = hookimpl(lambda: [replace(TILTED, arguments=places)], specname="msprobe_register_api_maps")
    registry().add(Plugin("tilted", None, "tests"), lambda: SimpleNamespace(msprobe_register_api_maps=hook))
    yield
    registry().manager.unregister(name="tilted")
    registry()._plugins.pop("tilted")


def stored(weight, order):
    """Return a weight's record as a framework has it whose own dimensions, in this order, are PyTorch's."""
    shape = [0] * len(order)
    for own, size in zip(order, weight["shape"], strict=True):
        shape[own] = size
    return weight | {"shape": shape}


def tilted(directory):
    """Write the golden dump as a framework would record it that keeps weights as flax does."""
    shutil.copytree(GOLDEN, directory)
    types = {"Linear": "Dense", "Conv2d": "Conv"}
    dump = json.loads((directory / "dump.json").read_text())
    for name, record in dump["data"].items():
        type_name = types.get(name.split(".")[-3])
        held = record.get("parameters", record)
        if type_name is not None and "weight" in held:
            weight = held.pop("weight")
            order = ORDERS[type_name]
            held["kernel"] = (
                [stored(each, order) for each in weight] if isinstance(weight, list) else stored(weight, order)
            )
    text = json.dumps(dump | {"framework": "tilted"})
    parents = (directory / "construct.json").read_text()
    for theirs, own in types.items():
        text, parents = (each.replace(f".{theirs}.", f".{own}.") for each in (text, parents))
    (directory / "dump.json").write_text(text)
    (directory / "construct.json").write_text(parents)
    return directory


@pytest.mark.parametrize("is_target", [True, False])
def test_a_healthy_pair_agrees_without_a_layout_file(tmp_path, is_target):
    own = tilted(tmp_path / "own")
    (unit,) = compare_dumps(*((own, GOLDEN) if is_target else (GOLDEN, own))).units
    assert unit.counts["pass"] == unit.num_rows
    assert unit.agrees
    weight = unit.rows.filter(pl.col("name_golden").str.contains("head.*parameters.(weight|kernel)"))
    assert weight.select("shape_target", "shape_golden").rows() == [("[10, 12]", "[10, 12]")]


def test_elements_are_compared_in_pytorchs_order(tmp_path):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    sides = []
    for directory, held, framework, type_name, parameter in (
        ("t", values.T, "tilted", "Dense", "kernel"),
        ("g", values, "pytorch", "Linear", "weight"),
    ):
        weight = tensor(0.5, shape=list(held.shape), data_name="weight.npy")
        entry = f"Module.head.{type_name}.forward.0"
        record = api(tensor(0.5, data_name="x.npy"), output=tensor(0.5, data_name="x.npy")) | {
            "parameters": {parameter: weight}
        }
        sides.append(write_dump(tmp_path / directory, {entry: record}, framework=framework, task="tensor", level="L0"))
        folder = tmp_path / directory / "dump_tensor_data"
        folder.mkdir()
        np.save(folder / "weight.npy", held)
        np.save(folder / "x.npy", np.float32(0.5).reshape(()))
    (unit,) = compare_dumps(*sides).units
    weight = unit.rows.filter(pl.col("name_golden").str.ends_with("weight"))
    assert weight.select("num_different", "verdict").rows() == [(0, "pass")]


def manifest(framework, type_name, name, shape):
    weight = Parameter(name=name, shape=shape, dtype="float32")
    model = Model(modules=(Module(path="head", type=type_name, parameters=(weight,)),))
    library = Library(name=framework, version="1")
    return Manifest(created="2026", run=RunFacts(framework=library, device=Device(kind="cpu"), models=(model,)))


@pytest.mark.parametrize(("shape", "num_other"), [((4, 3), 0), ((3, 4), 1)])
def test_manifests_agree_on_shapes(shape, num_other):
    own, other = manifest("tilted", "x.Dense", "kernel", shape), manifest("torch", "x.Linear", "weight", (3, 4))
    found = compare_manifests(own, other).differences
    assert sum(each.section is Section.PARAMETERS for each in found) == num_other


def test_a_map_adds_to_that_of_a_framework():
    own = ApiMap(
        name="pytorch", apis={"Tensor.view": "Tensor.reshape"}, parameters={"A": {"w": "weight"}}, buffers=["mean"]
    )
    more = ApiMap(
        name="my-operators",
        extends="pytorch",
        apis={"Mine.dense": "Functional.linear", "Tensor.view": "Tensor.wrong"},
        parameters={"A": {"w": "wrong", "b": "bias"}, "B": {"k": "weight"}},
        buffers=["mean", "var"],
    )
    found = extended_maps([more, own])
    assert list(found) == ["pytorch"]
    assert found["pytorch"].apis == {"Tensor.view": "Tensor.reshape", "Mine.dense": "Functional.linear"}
    assert found["pytorch"].parameters == {"A": {"w": "weight", "b": "bias"}, "B": {"k": "weight"}}
    assert list(found["pytorch"].buffers) == ["mean", "var"]
    assert own.apis == {"Tensor.view": "Tensor.reshape"}


def test_a_map_may_add_to_a_framework_that_has_none():
    found = extended_maps([ApiMap(name="more", extends="other", apis={"A.b": "Torch.b"})])
    assert found["other"].apis == {"A.b": "Torch.b"}


def test_the_files_of_a_map_have_orders(tmp_path):
    (tmp_path / "modules.yaml").write_text("permuted: {Dense: {kernel: [1, 0]}}\n")
    read = load_api_map("mine", tmp_path, extends="pytorch")
    assert (read.permuted, read.extends) == ({"Dense": {"kernel": (1, 0)}}, "pytorch")
