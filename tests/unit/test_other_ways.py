"""Two healthy runs that compute the same in other ways: other micro-batches, another place of the loss, shared updates.

What a step computes are its gradients: calls that differ in form alone are no fault if all of these agree.
"""

import numpy as np
import pytest
from dumps import api, tensor, write_dump

from msprobe_core import names
from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.compare.unit import CompareOptions
from msprobe_core.judge.noise import NoiseModel
from msprobe_core.locate import FaultKind, LocateOptions, LocateVerdict, locate
from msprobe_core.locate.locate_codes import LocateCode

RNG = np.random.default_rng(0)
SAMPLES = RNG.normal(size=(4, 8))
WEIGHTS = [RNG.normal(size=(8, 8)) / 3 for _ in range(3)]
TERMS = [[RNG.normal(size=(8, 8)) for _ in SAMPLES] for _ in WEIGHTS]
"""Gradient of each layer's weight by sample."""


def number(value):
    return {"type": "float", "value": value}


# --- the samples of a step in other micro-batches ------------------------------------------------------------------


def trained(place, sizes, *, off=None, by=1.0, scaled=1.0):
    """Write a step whose samples are divided into micro-batches, which each add to the gradients, and its update."""
    data, parents = {}, {}
    sums = [np.zeros((8, 8)) for _ in WEIGHTS]
    start = 0
    for number_, size in enumerate(sizes):
        own = slice(start, start + size)
        start += size
        value = SAMPLES[own]
        model = f"Module.Model.forward.{number_}"
        for i, weight in enumerate(WEIGHTS):
            layer = f"Module.layers.{i}.Layer.forward.{number_}"
            made = value @ weight
            data[f"Functional.linear.{number_ * len(WEIGHTS) + i}.forward"] = api(tensor(value), output=tensor(made))
            parents[f"Functional.linear.{number_ * len(WEIGHTS) + i}.forward"] = layer
            data[layer] = api(tensor(value), output=tensor(made)) | {"parameters": {"weight": tensor(weight)}}
            parents[layer] = model
            value = made
        data[model] = api(tensor(SAMPLES[own]), output=tensor(value))
        parents[model] = None
        loss = f"Tensor.__truediv__.{number_}.forward"
        data[loss] = api(tensor(value.sum()), number(float(len(sizes))), output=tensor(value.sum() / len(sizes)))
        for i in reversed(range(len(WEIGHTS))):
            added = sum(TERMS[i][own]) * scaled * (by if i == off else 1.0)
            sums[i] = sums[i] + added
            backward = f"Module.layers.{i}.Layer.backward.{number_}"
            data[backward] = {"input": [tensor(added)], "output": [tensor(added)]}
            parents[backward] = None
            gradient = {"weight": [tensor(sums[i])]}
            if number_:
                gradient["weight.contribution"] = [tensor(added)]
            data[f"Module.layers.{i}.Layer.parameters_grad.{number_}"] = gradient
    for i, weight in enumerate(WEIGHTS):
        call = f"Tensor.add_.{i}.forward"
        data[call] = api(tensor(weight), tensor(sums[i]), output=tensor(weight - 0.1 * sums[i]))
        parents[call] = names.OPTIMIZER
    write_dump(place, data, parents=parents)
    return place


@pytest.mark.parametrize(("own", "other"), [((2, 2), (4,)), ((1, 1, 1, 1), (4,)), ((4,), (2, 2)), ((1,) * 4, (2, 2))])
def test_gradients_added_up_over_other_micro_batches_agree(tmp_path, own, other):
    found = locate(trained(tmp_path / "target", own), trained(tmp_path / "golden", other))
    assert found.verdict is LocateVerdict.AGREE
    told = next(note for note in found.notes if note.code is CompareCode.MICRO_BATCHES)
    assert told.fields == {"target": len(own), "golden": len(other)}
    assert found.num_flagged == 0


def test_a_gradient_that_is_wrong_over_other_micro_batches_is_named(tmp_path):
    golden = trained(tmp_path / "golden", (4,))
    first = locate(trained(tmp_path / "target", (2, 2), off=1, by=1.1), golden).suspects[0]
    assert first.entry == "Module.layers.1.Layer.parameters_grad.1"
    assert first.golden_entry == "Module.layers.1.Layer.parameters_grad.0"
    assert first.reason.code is LocateCode.GRADIENT_OF_STEP
    # As without the division by the number of micro-batches.
    first = locate(trained(tmp_path / "all", (2, 2), scaled=2.0), golden).suspects[0]
    assert first.entry == "Module.layers.2.Layer.parameters_grad.1"


def test_other_samples_in_as_many_micro_batches_are_other_data(tmp_path):
    """Half of the samples is not the same step divided in another way."""
    found = locate(trained(tmp_path / "target", (1, 1)), trained(tmp_path / "golden", (4,)))
    assert found.verdict is LocateVerdict.FAULT
    assert CompareCode.MICRO_BATCHES not in {note.code for note in found.notes}


# --- the same gradients by other calls -----------------------------------------------------------------------------


def step(place, *, owns_loss=True, ids=(1, 2, 3, 4), slope=0.1, wrong=1.0, extra=None, depth=0):
    """Write a step of a model that computes its loss itself, or leaves that to the caller, and its gradients.

    ``depth`` is the number of calls before the model, each of which may have rounded.
    """
    data = {f"Functional.relu.{i}.forward": api(tensor(SAMPLES), output=tensor(SAMPLES)) for i in range(depth)}
    parents = dict.fromkeys(data)
    model = "Module.Model.forward.0"
    places = tensor(np.asarray(ids), dtype="torch.int64")
    embedded = SAMPLES * np.mean(np.asarray(ids) * np.arange(4))
    data["Functional.embedding.0.forward"] = api(places, output=tensor(embedded))
    logits = SAMPLES @ WEIGHTS[0] * (1 + 1e-2 * (slope - 0.1))
    data["Functional.leaky_relu.0.forward"] = api(tensor(SAMPLES), number(slope), output=tensor(logits))
    parents = dict.fromkeys(data, model) | parents
    if extra is not None:
        data["Torch.mul.0.forward"] = api(tensor(logits), output=tensor(logits * extra))
        parents["Torch.mul.0.forward"] = model
        logits = logits * extra
    loss = {"output": [tensor(logits), *([tensor(logits.sum())] if owns_loss else [])]}
    if owns_loss:
        data["Functional.pad.0.forward"] = api(places, output=places)
        parents["Functional.pad.0.forward"] = model
    data[model] = api(places, output=tensor(logits)) | loss
    parents[model] = None
    for i in reversed(range(len(WEIGHTS))):
        gradient = sum(TERMS[i]) * (wrong if i == 0 else 1.0)
        data[f"Module.layers.{i}.Layer.parameters_grad.0"] = {"weight": [tensor(gradient)]}
    write_dump(place, data, parents=parents)
    return place


FORMS = {"the caller's loss": {"owns_loss": False}, "other positions": {"ids": (4, 3, 2, 2)}}


@pytest.mark.parametrize("form", FORMS)
def test_calls_that_differ_in_form_are_no_fault_if_all_gradients_agree(tmp_path, form):
    golden = step(tmp_path / "golden")
    found = locate(step(tmp_path / "target", **FORMS[form]), golden)
    assert found.verdict is LocateVerdict.AGREE
    assert LocateCode.OTHER_WAYS in {note.code for note in found.notes}


@pytest.mark.parametrize("form", FORMS)
def test_they_are_if_one_gradient_differs(tmp_path, form):
    golden = step(tmp_path / "golden")
    found = locate(step(tmp_path / "target", **FORMS[form], wrong=1.1), golden)
    assert found.verdict is LocateVerdict.FAULT
    assert LocateCode.OTHER_WAYS not in {note.code for note in found.notes}


@pytest.mark.parametrize("fault", [{"slope": 10.0}, {"extra": 1.1}], ids=["an argument", "a call"])
def test_a_number_beyond_rounding_is_a_fault_though_gradients_agree(tmp_path, fault):
    """A weak fault may be lost in gradients."""
    golden = step(tmp_path / "golden")
    assert locate(step(tmp_path / "target", **fault), golden).verdict is LocateVerdict.FAULT
    both = locate(step(tmp_path / "both", **fault, owns_loss=False), golden)
    assert both.verdict is LocateVerdict.FAULT


def test_a_number_beyond_what_its_call_may_round_is_one_too(tmp_path):
    """After many calls a weak fault is within the noise, but the call was given what is bitwise equal."""
    golden = step(tmp_path / "golden", depth=300)
    target = step(tmp_path / "target", depth=300, extra=1 + 2.4e-6, owns_loss=False)
    found = locate(target, golden, LocateOptions(compare=CompareOptions(noise=NoiseModel())))
    assert found.verdict is LocateVerdict.FAULT
    assert LocateCode.OTHER_WAYS not in {note.code for note in found.notes}


# --- ranks that each update a part of the parameters ----------------------------------------------------------------

PARAMETERS = [RNG.normal(size=(8, 8)) for _ in range(6)]
GRADIENTS = [RNG.normal(size=(8, 8)) for _ in PARAMETERS]


def updated(place, parts, *, wrong=None):
    """Write ranks that update some parameters by two calls each, and send these to each other if they are not all."""
    for rank, part in enumerate(parts):
        data, parents = {}, {}
        data["Module.Model.forward.0"] = api(tensor(SAMPLES), output=tensor(SAMPLES)) | {
            "parameters": {f"weight{i}": tensor(each) for i, each in enumerate(PARAMETERS)}
        }
        data["Module.Model.parameters_grad.0"] = {f"weight{i}": [tensor(each)] for i, each in enumerate(GRADIENTS)}
        parents["Module.Model.forward.0"] = None
        for number_, i in enumerate(part):
            scaled = GRADIENTS[i] * (0.2 if i == wrong else 0.1)
            for name, inputs, made in (
                ("mul", [GRADIENTS[i]], scaled),
                ("sub_", [PARAMETERS[i], scaled], PARAMETERS[i] - scaled),
            ):
                call = f"Tensor.{name}.{number_}.forward"
                data[call] = api(*map(tensor, inputs), output=tensor(made))
                parents[call] = names.OPTIMIZER
        if len(part) < len(PARAMETERS):
            for i in range(len(PARAMETERS)):
                call = f"Distributed.broadcast.{i}.forward"
                owner = next(other for other, own in enumerate(parts) if i in own)
                made = PARAMETERS[i] - GRADIENTS[i] * (0.2 if i == wrong else 0.1)
                given = made if owner == rank else PARAMETERS[i]
                data[call] = api(tensor(given), output=tensor(made), src={"type": "int", "value": owner})
                parents[call] = None
        write_dump(place / f"rank{rank}", data, parents=parents)
    return place


WHOLE = (range(6), range(6))
SHARED = ((1, 3, 4), (0, 2, 5))


@pytest.mark.parametrize("is_target", [True, False], ids=["target", "golden"])
def test_ranks_may_share_the_updates(tmp_path, is_target):
    sides = updated(tmp_path / "shared", SHARED), updated(tmp_path / "whole", WHOLE)
    found = locate(*(sides if is_target else sides[::-1]))
    assert found.verdict is LocateVerdict.AGREE
    assert found.num_flagged == 0


def test_a_wrong_update_is_named_on_the_rank_that_makes_it(tmp_path):
    first = locate(updated(tmp_path / "shared", SHARED, wrong=4), updated(tmp_path / "whole", WHOLE)).suspects[0]
    assert (first.entry, first.golden_entry, first.ranks) == ("Tensor.mul.2.forward", "Tensor.mul.4.forward", (0,))
    assert first.kind is FaultKind.OPTIMIZER
