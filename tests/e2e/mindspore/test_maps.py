"""The maps of names against the two frameworks that are installed: every entry is there on both sides."""

import inspect
import os
from pathlib import Path

import pytest

os.environ.setdefault("GLOG_v", "3")
ms = pytest.importorskip("mindspore")
torch = pytest.importorskip("torch")

import mindspore.communication.comm_func as comm_func  # noqa: E402
import mindspore.mint.distributed as mint_distributed  # noqa: E402
import msprobe.mindspore  # noqa: E402
import msprobe.pytorch  # noqa: E402
import yaml  # noqa: E402
from mindspore import mint, nn, ops  # noqa: E402
from packaging.version import Version  # noqa: E402

from msprobe_core.compare.canonical_names import Words, operation_of  # noqa: E402
from msprobe_core.compare.map_files import SPREAD, load_api_map, load_apis, load_parameters  # noqa: E402

SINCE_2_10 = {"Mint.addr_", "Mint.conv_tbc", "Mint.vdot"}
OWN = Path(msprobe.mindspore.__file__).parent / "maps"
CANONICAL = Path(msprobe.pytorch.__file__).parent / "maps"
APIS = load_apis(OWN / "apis.yaml")
PARAMETERS = load_parameters(OWN / "arguments.yaml")
MODULES = yaml.safe_load((OWN / "modules.yaml").read_text())
LEFT_OUT = yaml.safe_load((OWN / "left_out.yaml").read_text())
PLACES = {
    "Functional": ops,
    "Mint": mint,
    "MintFunctional": mint.nn.functional,
    "Tensor": ms.Tensor,
    "Primitive": ops,
    "Distributed": comm_func,
    "MintDistributed": mint_distributed,
}


def own_api(name):
    prefix, _, base = name.partition(".")
    for sub in ("linalg", "special"):
        if prefix == "Mint" and base.startswith(f"{sub}_"):
            return getattr(getattr(mint, sub), base.removeprefix(f"{sub}_"), None)
    places = [PLACES[prefix], *([ops.communication, ops] if prefix == "Distributed" else []), ops.auto_generate]
    return next((member for place in places if (member := getattr(place, base, None)) is not None), None)


def canonical_api(name):
    prefix, _, base = name.partition(".")
    places = {
        "Aten": torch.ops.aten,
        "Functional": torch.nn.functional,
        "Tensor": torch.Tensor,
        "Torch": torch,
        "Distributed": torch.distributed,
    }
    for sub in ("linalg", "fft", "special"):
        if prefix == "Torch" and base.startswith(f"{sub}_"):
            found = getattr(getattr(torch, sub), base.removeprefix(f"{sub}_"), None)
            if found is not None:
                return found
    return getattr(places[prefix], base, None) if prefix in places else None


def test_every_api_is_there_on_both_sides():
    missing = {name for name in APIS if not callable(own_api(name))}
    assert missing == (SINCE_2_10 if Version(ms.__version__) < Version("2.10") else set())
    elsewhere = {name: mapped.to for name, mapped in APIS.items() if not callable(canonical_api(mapped.to))}
    assert {name for name in elsewhere if not APIS[name].ascend} == set()
    # Nothing is said to be on Ascend that can be looked up here.
    assert {name for name, mapped in APIS.items() if mapped.ascend} == set(elsewhere)
    assert all(to.startswith("NPU.npu_") for to in elsewhere.values())


def public(place):
    for name in dir(place):
        member = getattr(place, name, None)
        if not name.startswith("_") and callable(member) and not inspect.isclass(member):
            yield name


def is_in_torch(name):
    found = [getattr(place, name, None) for place in (torch, torch.nn.functional, torch.Tensor)]
    return any(callable(member) and not inspect.isclass(member) and not inspect.ismodule(member) for member in found)


def test_what_has_the_same_name_is_mapped_or_left_out_for_a_reason():
    """Counts are those of MindSpore 2.10 and PyTorch 2.13; other releases have other functions."""
    counts = {}
    for prefix in ("Functional", "Mint", "MintFunctional", "Tensor"):
        same = {name for name in public(PLACES[prefix]) if is_in_torch(name)}
        left_out = set(LEFT_OUT.get(prefix, ()))
        mapped = {name for name in same if f"{prefix}.{name}" in APIS}
        assert same - mapped - left_out == set()
        assert not mapped & left_out
        counts[prefix] = len(mapped), len(left_out & same)
    for prefix, own in LEFT_OUT.items():
        assert all(len(reason) > 10 and callable(own_api(f"{prefix}.{name}")) for name, reason in own.items())
    if ms.__version__.startswith("2.10.") and torch.__version__.startswith("2.13."):
        assert counts == {"Functional": (402, 15), "Mint": (213, 2), "MintFunctional": (70, 0), "Tensor": (310, 29)}


def signature(function):
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    kinds = [parameter.kind for parameter in found]
    return None if kinds == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD] else found


def names_in(text):
    return [part.partition("=")[0] for part in text.removeprefix("*").split("|")]


def test_parameters_are_those_of_the_functions():
    """As far as they have signatures; those of compiled methods are in their descriptions only."""
    checked = 0
    for name, listed in PARAMETERS.items():
        assert name in APIS, name
        found = None if inspect.isclass(own_api(name)) else signature(own_api(name))
        if found is None:
            continue
        positional = [p.name for p in found if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        keywords = {p.name for p in found if p.kind is inspect.Parameter.KEYWORD_ONLY}
        given = [names_in(text) for text in listed]
        assert all(own in names for own, names in zip(positional, given, strict=False)), (name, positional, listed)
        assert len(given) >= len(positional) or name.startswith("Distributed."), (name, positional, listed)
        assert {other for names in given[len(positional) :] for other in names} <= keywords, (name, keywords, listed)
        checked += 1
    assert checked > 500


def test_places_are_those_of_the_canonical_function():
    """An argument that has a position there has a name there, or is at the position that it has here."""
    ours, theirs = load_api_map("mindspore", OWN), load_api_map("pytorch", CANONICAL)
    words = Words(theirs, is_foreign=True)
    unknown = []
    for name, places in ours.arguments.items():
        positions = {place for own, place in places.items() if place.isdecimal() and not own.isdecimal()}
        known = words.arguments(APIS[name].to)
        for position in positions - {"0", places.get(SPREAD)}:
            if known is None or position not in known.values():
                unknown.append((name, APIS[name].to, position))
    assert unknown == []


def test_pytorchs_own_names_are_there():
    theirs = load_api_map("pytorch", CANONICAL)
    for name, first in theirs.apis.items():
        for operation in (name, first):
            spelled = [f"{prefix}.{operation}" for prefix in ("Torch", "Functional", "Tensor")]
            assert any(map(canonical_api, [operation] if "." in operation else spelled)), operation
        assert first == name or first not in theirs.apis, (name, first)
    for name, listed in load_parameters(CANONICAL / "arguments.yaml").items():
        if name.startswith("NPU."):  # of a package that is there on Ascend only
            continue
        spelled = [name] if "." in name else [f"{prefix}.{name}" for prefix in ("Functional", "Torch", "Tensor")]
        spelled += [f"{prefix}.{name}_" for prefix in ("Tensor", "Torch")]
        found = next(function for each in spelled if (function := canonical_api(each)) is not None)
        parameters = signature(found)
        if parameters is not None and not name.startswith("Torch."):
            own = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
            assert all(
                p.startswith("_") or p == "out" or p in names_in(text) for p, text in zip(own, listed, strict=False)
            ), name


def test_spellings_of_one_operation():
    assert {operation_of(name) for name in ("Torch.add", "Tensor.add_", "Tensor.__add__", "Tensor.__iadd__")} == {"add"}
    words = Words(load_api_map("pytorch", CANONICAL), is_foreign=True)
    own = Words(load_api_map("mindspore", OWN), is_foreign=True)
    assert words.api("Tensor.view") == own.api("Tensor.reshape") == own.api("Mint.reshape") == "reshape"
    assert words.api("Tensor.transpose") == own.api("Tensor.swapaxes") == own.api("Functional.swapaxes") == "transpose"
    assert own.api("Primitive.matmul.MatMul") == words.api("Tensor.__matmul__") == "matmul"
    assert words.api("Tensor.unfold") != words.api("Functional.unfold") == own.api("MintFunctional.unfold")
    for name in dir(ms.Tensor):
        if name.startswith("__") and hasattr(torch.Tensor, name):
            assert own.api(f"Tensor.{name}") == words.api(f"Tensor.{name}"), name


def test_classes_of_modules():
    here = {name for place in (nn, mint.nn) for name in dir(place)}
    there = set(dir(torch.nn)) | set(dir(torch.optim))
    missing = {name for name in MODULES["types"] if name not in here and not _is_internal(name)}
    assert missing == set()
    assert {name for name in MODULES["types"].values() if name not in there} == set()


def _is_internal(name):
    """Whether a class is one of those that mindspore.mint.nn hands out under another name."""
    return any(getattr(mint.nn, other).__name__ == name for other in dir(mint.nn) if not other.startswith("_") and
               inspect.isclass(getattr(mint.nn, other)))  # fmt: skip


MAKE = {
    "Dense": (lambda: nn.Dense(3, 4), lambda: torch.nn.Linear(3, 4)),
    "Embedding": (lambda: nn.Embedding(5, 3), lambda: torch.nn.Embedding(5, 3)),
    "EmbeddingLookup": (lambda: nn.EmbeddingLookup(5, 3), lambda: torch.nn.Embedding(5, 3)),
    "LayerNorm": (lambda: nn.LayerNorm((4,)), lambda: torch.nn.LayerNorm(4)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), lambda: torch.nn.GroupNorm(2, 4)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), lambda: torch.nn.BatchNorm1d(3)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), lambda: torch.nn.BatchNorm2d(3)),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(3), lambda: torch.nn.SyncBatchNorm(3)),
    "InstanceNorm2d": (
        lambda: nn.InstanceNorm2d(3),
        lambda: torch.nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
    ),
    "Conv1d": (lambda: nn.Conv1d(2, 3, 3, has_bias=True), lambda: torch.nn.Conv1d(2, 3, 3)),
    "Conv1dTranspose": (lambda: nn.Conv1dTranspose(2, 3, 3, has_bias=True), lambda: torch.nn.ConvTranspose1d(2, 3, 3)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 3, has_bias=True), lambda: torch.nn.Conv2d(2, 3, 3)),
    "Conv2dTranspose": (lambda: nn.Conv2dTranspose(2, 3, 3, has_bias=True), lambda: torch.nn.ConvTranspose2d(2, 3, 3)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 3, has_bias=True), lambda: torch.nn.Conv3d(2, 3, 3)),
    "BiDense": (lambda: nn.BiDense(3, 4, 5), lambda: torch.nn.Bilinear(3, 4, 5)),
    "PReLU": (lambda: nn.PReLU(), lambda: torch.nn.PReLU()),
    "LSTM": (lambda: nn.LSTM(3, 4), lambda: torch.nn.LSTM(3, 4)),
    "GRUCell": (lambda: nn.GRUCell(3, 4), lambda: torch.nn.GRUCell(3, 4)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), lambda: torch.nn.MultiheadAttention(4, 2)),
    "mint Linear": (lambda: mint.nn.Linear(3, 4), lambda: torch.nn.Linear(3, 4)),
    "mint Embedding": (lambda: mint.nn.Embedding(5, 3), lambda: torch.nn.Embedding(5, 3)),
    "mint LayerNorm": (lambda: mint.nn.LayerNorm((4,)), lambda: torch.nn.LayerNorm(4)),
    "mint BatchNorm2d": (lambda: mint.nn.BatchNorm2d(3), lambda: torch.nn.BatchNorm2d(3)),
    "mint Conv1d": (lambda: mint.nn.Conv1d(2, 3, 3), lambda: torch.nn.Conv1d(2, 3, 3)),
    "mint PReLU": (lambda: mint.nn.PReLU(), lambda: torch.nn.PReLU()),
}


@pytest.mark.parametrize("kind", MAKE)
def test_parameters_of_modules(kind):
    """Names and shapes are those of PyTorch, but for what the map says of them; buffers are said to be some."""
    make, make_theirs = MAKE[kind]
    cell, module = make(), make_theirs()
    ours = load_api_map("mindspore", OWN)
    type_name = type(cell).__name__
    canonical = {}
    for attributes in [cell._params, {p.name: p for p in cell._params.values() if p is not None}]:
        for name, parameter in attributes.items():
            if parameter is not None:
                own = ours.parameters.get(type_name, {}).get(name) or ours.parameters[""].get(name, name)
                shape = [size for size in parameter.shape if size != 1] if _has_units(ours, type_name, own) else None
                canonical[own] = tuple(shape or parameter.shape)
    buffers = {name: canonical.pop(name) for name in ours.buffers if name in canonical}
    theirs = {name: tuple(parameter.shape) for name, parameter in module.named_parameters(recurse=False)}
    assert canonical == theirs
    assert buffers == {name: tuple(tensor.shape) for name, tensor in module.named_buffers() if name in buffers}
    assert ours.module_types.get(type_name, type_name) == type(module).__name__ or type_name.startswith("_")


def _has_units(words, type_name, parameter):
    return parameter in words.unit_dimensions.get(type_name, ())
