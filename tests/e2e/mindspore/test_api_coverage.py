"""How much of MindSpore is recorded: every function and method that could be called is called once, and counted."""

import sys
import types

import pytest

ms = pytest.importorskip("mindspore")

from every_mindspore_function import examples, holds_tensor  # noqa: E402
from mindspore import Tensor, mint, ops  # noqa: E402
from mindspore_programs import record  # noqa: E402
from msprobe.mindspore._apis import NAMESPACES, find_places, is_selected  # noqa: E402

from msprobe_core.config import RiskLevel  # noqa: E402
from msprobe_core.interception.patching import original_of  # noqa: E402

FLOOR = 800
"""Measured with MindSpore 2.10 on a CPU: 829 of 1,267 could be called, most others have no kernel; see the docs."""

NOT_RECORDED = {"Tensor.value"}
"""Computes nothing."""


PUBLIC = {
    "mindspore.ops",
    *(namespace.module for namespace in NAMESPACES if namespace.module.startswith("mindspore.mint")),
}


BY_CHANCE = (
    "rand", "dropout", "normal", "multinomial", "bernoulli", "shuffle", "gumbel", "uniform", "poisson", "empty",
    "laplace", "rrelu", "cauchy", "sampler", "log2", "log10", "logaddexp2", "logsigmoid", "ihfft",
)  # fmt: skip
"""Parts of names of functions whose results are random numbers, or memory that nothing was written to, or differ in
their last digits from call to call without us."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return how many functions there are, and for each example its name and the entries that its call left."""
    num_functions, found = examples()
    calls = [
        (label, make(), bare) for label, function, make in found if (bare := result_of(function, make())) is not None
    ]
    marks = types.SimpleNamespace(mark=lambda x: x)
    mark = Tensor([1.0], ms.float32)
    probed = []

    def call_all():
        for label, args, _ in calls:
            owner, name = owner_of(label)
            result = getattr(owner, name)(*args)
            assert holds_tensor(result)
            probed.append(result)
            marks.mark(mark)

    dump = record(
        tmp_path_factory.mktemp("coverage"),
        call_all,
        prepare=lambda debugger: debugger.register_custom_api(marks, "mark", "Mark"),
    )
    entries = [[]]
    for entry in dump.data:
        if entry.startswith("Mark."):
            entries.append([])
        else:
            entries[-1].append(entry)
    results = [(bare, arrays_in(value)) for (*_, bare), value in zip(calls, probed, strict=True)]
    return num_functions, list(zip([label for label, *_ in calls], entries, results, strict=False))


def result_of(function, args):
    """Return what a call computes; ``None`` of the few that refuse the very arguments they have taken before."""
    try:
        return arrays_in(function(*args))
    except RuntimeError:
        return None


def others_of(label, public_names):
    """Return the public names of what an inner name, such as `mint.softmax_ext`, stands for."""
    owner, name = owner_of(label)
    known = public_names.get(getattr(owner, name), ()) if name not in getattr(owner, "__all__", [name]) else ()
    return [[public] for public in known]


def owner_of(label):
    """Return where users look a function up, and its name there."""
    prefix, name = label.split(".")
    owners = {"Functional": ops, "Mint": mint, "MintFunctional": mint.nn.functional, "Tensor": Tensor}
    for start in ("linalg_", "special_"):
        if prefix == "Mint" and name.startswith(start):
            return getattr(mint, start[:-1]), name.removeprefix(start)
    return owners[prefix], name


def arrays_in(value):
    if isinstance(value, tuple | list):
        return [array for item in value for array in arrays_in(item)]
    return [value.asnumpy().tobytes()] if isinstance(value, Tensor) else []


def test_what_returns_a_tensor_is_recorded_under_its_name(recorded, public_names):
    num_functions, calls = recorded
    missed = sorted({label for label, left, _ in calls if not left} - NOT_RECORDED)
    counted = [label for label, left, _ in calls if left]
    print(f"{len(counted)} of {len(calls)} functions that could be called are recorded;")
    print(f"MindSpore {ms.__version__} has {num_functions}; not recorded: {missed}")
    assert missed == []
    assert len(counted) >= FLOOR
    others = {
        label: left
        for label, left, _ in calls
        if left and [e.rsplit(".", 2)[0] for e in left] not in ([label], *others_of(label, public_names))
    }
    assert others == {}


def test_what_they_compute_is_what_they_compute_without_the_probe(recorded):
    _, calls = recorded
    changed = {label for label, _, (bare, probed) in calls if bare != probed}
    assert {label for label in changed if not any(part in label for part in BY_CHANCE)} == set()


@pytest.fixture(scope="module")
def public_names():
    """Return, for each function that modules of users export, the names that it has there."""
    names = {}
    for namespace in NAMESPACES:
        module = sys.modules.get(namespace.module)
        for name in getattr(module, "__all__", ()) if namespace.module in PUBLIC else ():
            function = original_of(vars(module).get(name))
            if isinstance(function, types.FunctionType):
                names.setdefault(function, set()).add(f"{namespace.prefix}.{namespace.stem}{name}")
    return names


@pytest.mark.parametrize("risk_level", RiskLevel)
def test_functions_have_their_public_names_whoever_calls_them(public_names, risk_level):
    inner = {}
    for place in find_places(risk_level):
        function = original_of(vars(place.owner).get(place.attribute)) if place.prefix != "Tensor" else None
        of_function = public_names.get(function, ())
        attributes = {name.split(".")[1].removeprefix("linalg_").removeprefix("special_") for name in of_function}
        if attributes and place.attribute not in attributes:
            inner[f"{place.prefix}.{place.name}"] = of_function
        if attributes:
            assert any(is_selected(attribute, risk_level) for attribute in attributes), place
    assert inner == {}
    assert len(public_names) > 900


def test_views_of_mint_have_their_public_names_at_any_risk_level(tmp_path):
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])

    def call_all():
        mint.transpose(x, 0, 1), mint.select(x, 0, 1), mint.narrow(x, 0, 0, 1), mint.broadcast_to(x, (2, 2))
        ops.auto_generate.transpose_ext_view(x, 0, 1)
        mint.abs(x)

    for risk_level, views in (("ALL", ["transpose", "select", "narrow", "broadcast_to", "transpose"]), ("FOCUS", [])):
        (directory := tmp_path / risk_level).mkdir()
        dump = record(directory, call_all, risk_level=risk_level)
        assert [entry.split(".")[:2] for entry in dump.data] == [["Mint", name] for name in (*views, "abs")]
