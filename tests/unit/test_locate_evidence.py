"""Evidence other than exceeded limits: other arguments, and gradients added up or changed after a call."""

import numpy as np
import pytest
from dumps import api, number, tensor, write_dump

from msprobe_core import names
from msprobe_core.calibrate import calibrate
from msprobe_core.compare import CompareOptions, compare_dumps
from msprobe_core.judge.noise import load_noise
from msprobe_core.locate import FaultKind, LocateOptions, LocateVerdict, locate
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.locate.result import Strength

SIZE, NUM_LAYERS = (16, 32), 4


def values(seed):
    return np.random.default_rng(seed).normal(size=SIZE)


# --- gradients of parameters, and what a clipping of them is given -------------------------------------------------


def backward(place, *, added_to=(), zeroed=False, changed=(), scaled=None, norm=1.0, clips=False, clones=None, **mode):
    """Write the gradients of layers and their clipping, which gets them as they are.

    ``added_to``: which are added to the same gradient, or to zeros; ``clones``: a bias is cloned; ``mode``: of tensors.
    """
    data, parents, gradients = {}, {}, []
    for i in reversed(range(NUM_LAYERS)):
        gradient = values(i) * (1.2 if i == scaled else 1.0)
        entry = f"Module.layers.{i}.Linear.backward.0"
        data[entry] = {"input": [tensor(values(10 + i))], "output": [tensor(values(20 + i))]}
        own = {"weight": [tensor(gradient * (2.0 if i in added_to and not zeroed else 1.0), **mode)]}
        if i in added_to:
            own["weight.contribution"] = [tensor(gradient, **mode)]
        if clones is not None:
            own["bias"] = [tensor(values(30 + i)[0])]
            gradients.append(own["bias"][0])
        data[f"Module.layers.{i}.Linear.parameters_grad.0"] = own
        parents |= {entry: None, f"Module.layers.{i}.Linear.parameters_grad.0": None}
        gradients.append(tensor(gradient * (1.2 if i in np.atleast_1d(changed) else 1.0)))
    if clips:  # what it is given is right, and what it returns is what the next call gets
        right = [tensor(values(i)) for i in reversed(range(NUM_LAYERS))]
        data["Torch.sum.0.forward"] = api(right, output=tensor(norm))
        data["Functional.clip.0.forward"] = {"input_args": right, "input_kwargs": {}, "output": gradients}
        parents |= {"Torch.sum.0.forward": None, "Functional.clip.0.forward": None}
    if clones:
        data["Tensor.clone.0.forward"] = api(tensor(values(32)[0]), output=tensor(values(32)[0]))
        parents["Tensor.clone.0.forward"] = None
    call = "Torch._foreach_norm.0.forward"
    data[call] = api(gradients, output=tensor(norm))
    write_dump(place, data, parents=parents | {call: names.CLIP_GRAD})
    return place


@pytest.fixture
def golden(tmp_path):
    return backward(tmp_path / "golden")


def test_an_output_that_one_side_lacks_is_strong_evidence(tmp_path):
    for side in ("target", "golden"):
        outputs = [tensor(values(1)), tensor(values(2))][: 2 if side == "golden" else 1]
        data = {"Functional.lstm.0.forward": {**api([tensor(values(0))], output=outputs[0]), "output": outputs}}
        write_dump(tmp_path / side, data)
    (first,) = locate(tmp_path / "target", tmp_path / "golden").suspects
    assert first.reason.text.endswith("is on one side only.")
    assert first.strength is Strength.STRONG


def test_a_gradient_added_on_one_side_only_is_strong_evidence(tmp_path, golden):
    # The norm is off too, which comes later, and by more than anything else.
    found = locate(backward(tmp_path / "target", added_to=range(NUM_LAYERS), norm=1.5), golden)
    first = found.suspects[0]
    assert first.entry == "Module.layers.3.Linear.parameters_grad.0"
    assert first.strength is Strength.STRONG
    assert first.reason.code is LocateCode.GRADIENT_ADDED_UP
    assert first.reason.fields == {"side": "target"}
    found = locate(golden, backward(tmp_path / "other", added_to=[1]))
    assert found.suspects[0].reason.fields == {"side": "golden"}


@pytest.mark.parametrize("checksum", [None, "5b70cd41"], ids=["statistics", "checksums"])
@pytest.mark.parametrize("side", ["target", "golden"])
def test_a_gradient_added_to_zeros_is_the_same_as_one_without_them(side, checksum, tmp_path):
    mode = {} if checksum is None else {"md5": checksum, "Max": None, "Min": None, "Mean": None, "Norm": None}
    for each in ("target", "golden"):
        backward(tmp_path / each, added_to=range(NUM_LAYERS) if each == side else (), zeroed=True, **mode)
    assert locate(tmp_path / "target", tmp_path / "golden").verdict is LocateVerdict.AGREE
    assert compare_dumps(tmp_path / "target", tmp_path / "golden").agrees


def test_both_sides_may_add_up(tmp_path):
    sides = [backward(tmp_path / side, added_to=range(NUM_LAYERS)) for side in ("target", "golden")]
    assert locate(*sides).verdict is LocateVerdict.AGREE


def test_a_gradient_changed_after_the_call_that_made_it_is_reported_for_that_call(tmp_path, golden):
    found = locate(backward(tmp_path / "target", changed=2), golden)
    first = found.suspects[0]
    assert (first.entry, first.seen_at) == (
        "Module.layers.2.Linear.parameters_grad.0", "Torch._foreach_norm.0.forward"
    )  # fmt: skip
    assert first.reason.code is LocateCode.CHANGED_AFTERWARDS
    assert first.reason.fields == {"seen_at": "Torch._foreach_norm.0.forward"}


def test_a_call_of_the_target_alone_that_changes_gradients_is_named(tmp_path, golden):
    first = locate(backward(tmp_path / "target", changed=range(NUM_LAYERS), clips=True), golden).suspects[0]
    assert first.reason.code is LocateCode.CHANGED_BY_CALL
    assert first.reason.fields == {"seen_at": "Torch._foreach_norm.0.forward", "call": "Functional.clip.0.forward"}


def test_a_call_of_the_golden_run_alone_that_changes_gradients_is_missing(tmp_path):
    golden = backward(tmp_path / "golden", changed=range(NUM_LAYERS), clips=True)
    first = locate(backward(tmp_path / "target"), golden).suspects[0]
    assert (first.entry, first.only_on, first.kind) == ("Functional.clip.0.forward", "golden", FaultKind.MISSING_CALL)
    assert first.seen_at == "Torch._foreach_norm.0.forward"


def test_a_call_of_the_target_alone_that_passes_on_another_gradient_is_not_named(tmp_path):
    golden = backward(tmp_path / "golden", clones=False)
    first = locate(backward(tmp_path / "target", changed=2, clones=True), golden).suspects[0]
    assert first.entry == "Module.layers.2.Linear.parameters_grad.0"
    assert first.reason.code is LocateCode.CHANGED_AFTERWARDS


@pytest.mark.parametrize("changed", [2, range(NUM_LAYERS)], ids=["one", "all"])
def test_a_gradient_that_only_the_golden_run_changes_is_reported_for_the_call_that_made_it(tmp_path, golden, changed):
    first, *others = locate(golden, backward(tmp_path / "reduced", changed=changed, norm=1.2)).suspects
    layer = 2 if changed == 2 else NUM_LAYERS - 1
    assert (first.entry, first.seen_at) == (
        f"Module.layers.{layer}.Linear.parameters_grad.0", "Torch._foreach_norm.0.forward"
    )  # fmt: skip
    assert first.reason.code is LocateCode.NOT_CHANGED_AFTERWARDS
    assert not others


def test_a_gradient_that_was_computed_wrong_was_not_changed_afterwards(tmp_path, golden):
    first = locate(backward(tmp_path / "target", scaled=2), golden).suspects[0]
    assert first.entry == "Module.layers.2.Linear.parameters_grad.0"
    assert first.seen_at is None
    assert first.reason.code is LocateCode.GRADIENT_OF_PARAMETERS


# --- calls that are given another argument ------------------------------------------------------------------------

NUM_CALLS = 80


def embeddings(place, seed, *, flag=None, off=None, by=1.0):
    """Write calls and their backward; errors of the repetitions vary by much, so that limits are wide."""
    data = {}
    for i in range(NUM_CALLS):
        rng = np.random.default_rng([seed, i])
        error = 1 + 1e-4 * rng.lognormal(sigma=2.0) * rng.choice([-1, 1]) if seed else 1.0
        data[f"Functional.embedding.{i}.forward"] = api(
            tensor(values(i)), output=tensor(values(100 + i)), sparse={"type": "bool", "value": i == flag}
        )
        made = values(200 + i) * error * (1 + by if i == off else 1.0)
        data[f"Functional.embedding.{i}.backward"] = {"input": [tensor(values(300 + i))], "output": [tensor(made)]}
    write_dump(place / "step0" / "rank0", data)
    return place


@pytest.fixture
def calibrated(tmp_path):
    place = tmp_path / "golden"
    for seed in range(4):
        embeddings(place / "calibration" / f"run{seed}" if seed else place, seed)
    calibrate(place)
    return place


OFF = 2e-2
"""More than any repetition, and less than the limit of so many rows."""


def look(target, golden):
    return locate(target, golden, LocateOptions(compare=CompareOptions(noise=load_noise(golden))))


def test_the_outputs_of_a_call_with_another_argument_have_their_own_limit(tmp_path, calibrated):
    found = look(embeddings(tmp_path / "target", 0, flag=3, off=3, by=OFF), calibrated)
    assert found.verdict is LocateVerdict.FAULT
    assert found.suspects[0].entry == "Functional.embedding.3.backward"
    assert found.suspects[0].score < found.suspects[0].limit


@pytest.mark.parametrize(("flag", "off"), [(None, 3), (3, None), (4, 3)], ids=["the error", "the argument", "apart"])
def test_one_of_the_two_alone_is_not_a_fault(tmp_path, calibrated, flag, off):
    found = look(embeddings(tmp_path / "target", 0, flag=flag, off=off, by=OFF), calibrated)
    assert found.verdict is LocateVerdict.AGREE


def dropped(place, probability, seed=0):
    """Write a dropout."""
    keeps = np.random.default_rng(seed).random(SIZE) >= probability
    given, made = values(0), values(0) * keeps / (1 - probability)
    argument = {"type": "float", "value": probability}
    write_dump(place, {"Functional.dropout.0.forward": api(tensor(given), p=argument, output=tensor(made))})
    return place


def test_another_probability_is_another_argument_and_not_another_seed(tmp_path):
    golden = dropped(tmp_path / "golden", 0.5)
    kinds = [
        locate(dropped(tmp_path / str(seed), p, seed), golden).suspects[0].kind for p, seed in ((0.1, 0), (0.5, 1))
    ]
    assert kinds == [FaultKind.ARGUMENT, FaultKind.RANDOMNESS]


def masked(place, *, fill=-np.inf, by=1.0, off=1.0, dtype="torch.float32"):
    """Write scores that a fill masks, and a product after them."""
    scores = values(0) * by
    kept = np.where(scores > 0, scores, fill)
    norm = {"Mean": "-Infinity", "Norm": "Infinity"} if np.isinf(fill) else {}
    data = {
        "Tensor.masked_fill.0.forward": api(
            tensor(scores, dtype=dtype),
            {"type": "float", "value": number(fill)},
            output=tensor(kept, dtype=dtype, **norm),
        ),
        "Torch.matmul.0.forward": api(tensor(values(1), dtype=dtype), output=tensor(values(2) * off, dtype=dtype)),
    }
    write_dump(place, data)
    return place


def test_the_same_infinite_argument_is_no_other_argument(tmp_path):
    found = locate(masked(tmp_path / "target", by=1 + 1e-7, off=1.2), masked(tmp_path / "golden"))
    assert [suspect.entry for suspect in found.suspects] == ["Torch.matmul.0.forward"]


def test_the_lowest_number_of_another_dtype_is_no_other_argument(tmp_path):
    bfloat16 = masked(tmp_path / "target", fill=-3.3895313892515355e38, off=1.2, dtype="torch.bfloat16")
    found = locate(bfloat16, masked(tmp_path / "golden", fill=np.finfo(np.float32).min))
    assert [suspect.entry for suspect in found.suspects] == ["Torch.matmul.0.forward"]


def test_an_infinite_argument_is_another_than_a_finite_one(tmp_path):
    found = locate(masked(tmp_path / "target", fill=-1e4), masked(tmp_path / "golden"))
    assert found.suspects[0].entry == "Tensor.masked_fill.0.forward"


# --- integers, which a decision before them may change --------------------------------------------------------------


def losses(place, labels, *, indices=(), off=1.0):
    """Write a loss that is given labels, after a maximum with or without indices."""
    data = {
        "Tensor.max.0.forward": api(tensor(values(0)), output=tensor(values(0).max())),
        "Functional.cross_entropy.0.forward": api(
            tensor(values(1)), tensor(labels, dtype="torch.int64"), output=tensor(2.0 * off)
        ),
    }
    outputs = data["Tensor.max.0.forward"].pop("output")
    if indices is not None:
        data["Tensor.max.0.forward"]["output"] = outputs + [tensor(each, dtype="torch.int64") for each in indices]
    write_dump(place, data)
    return place


def test_labels_after_a_maximum_without_indices_are_wrong_data(tmp_path):
    found = locate(losses(tmp_path / "target", [1, 2], off=1.2), losses(tmp_path / "golden", [2, 3]))
    assert (found.suspects[0].entry, found.suspects[0].kind) == (
        "Functional.cross_entropy.0.forward", FaultKind.INPUT_DATA
    )  # fmt: skip


@pytest.mark.parametrize("indices", [None, [3]], ids=["not recorded", "recorded"])
def test_labels_after_a_decision_are_not_held_against_the_loss(tmp_path, indices):
    target = losses(tmp_path / "target", [1, 2], indices=indices, off=1.2)
    found = locate(target, losses(tmp_path / "golden", [2, 3], indices=indices))
    assert found.suspects[0].kind is not FaultKind.INPUT_DATA


def test_labels_after_a_maximum_with_indices_may_be_a_decision(tmp_path):
    runs = [losses(tmp_path / name, labels, indices=[3]) for name, labels in (("target", [1, 2]), ("golden", [2, 3]))]
    assert locate(*runs).verdict is LocateVerdict.AGREE


# --- a value that is barely beyond its limit ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "factor", "verdict"),
    [([3], 1.1, LocateVerdict.AGREE), ([3], 1.3, LocateVerdict.FAULT), ([3, 4], 1.1, LocateVerdict.FAULT)],
    ids=["barely", "well", "two"],
)
def test_a_single_value_barely_beyond_its_limit_is_chance(tmp_path, calibrated, calls, factor, verdict):
    """A fault has consequences; floors come from three repetitions, and one of thousands of values is off by more."""

    def off(place, by):
        data = {}
        for i in range(NUM_CALLS):
            data[f"Functional.embedding.{i}.forward"] = api(
                tensor(values(i)), output=tensor(values(100 + i)), sparse={"type": "bool", "value": False}
            )
            made = values(200 + i) * (1 + by if i in calls else 1.0)
            given = values(300 + i) * (1 + 1e-8)  # within rounding, not equal: else the call alone made the difference
            data[f"Functional.embedding.{i}.backward"] = {"input": [tensor(given)], "output": [tensor(made)]}
        write_dump(place / "step0" / "rank0", data)
        return place

    found = look(off(tmp_path / "far", 1.0), calibrated)
    weakest = max(found.suspects, key=lambda suspect: suspect.limit / suspect.score)
    found = look(off(tmp_path / "near", factor * weakest.limit / weakest.score), calibrated)
    assert found.num_flagged == len(calls)
    assert found.verdict is verdict
