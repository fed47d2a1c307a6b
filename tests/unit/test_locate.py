"""Finding the first fault of two runs: which call, of which kind, in which order."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from dumps import tensor, write_dump
from wording import worded_samples

from msprobe_core.cli.locate import locate as command
from msprobe_core.findings import Finding, NoteCode
from msprobe_core.judge.origins import Source
from msprobe_core.locate import FaultKind, LocateVerdict, locate
from msprobe_core.locate.explain_codes import ExplainCode
from msprobe_core.locate.kinds import reason_of
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.locate.result import CheckState, Precondition, Strength
from msprobe_core.store.convert import Format, convert

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 8))
WEIGHTS = [RNG.standard_normal((8, 8)) / 3 for _ in range(4)]


class Run:
    """A chain of layers, each a module around two calls, recorded forward and backward."""

    def __init__(self, **faults):
        self.faults = faults
        self.data = {}
        self.parents = {}

    def call(self, entry, inputs, output, parent=None, *, kwargs=None, parameters=None):
        record = {"input_args": inputs, "input_kwargs": kwargs or {}, "output": [tensor(output)]}
        if parameters:
            record["parameters"] = parameters
        self.data[entry] = record
        self.parents[entry] = parent

    def forward(self):
        faults, value = self.faults, np.asarray(self.faults.get("data", X))
        begin = value
        for i, weight in enumerate(WEIGHTS):
            layer = f"Module.layers.{i}.Layer.forward.0"
            weight = faults.get(f"weight{i}", weight)
            given = value
            made = value @ weight * faults.get(f"linear{i}", 1.0)
            self.call(f"Functional.linear.{i}.forward", [tensor(value), tensor(weight)], made, layer)
            made = made * faults.get(f"between{i}", 1.0)
            slope = faults.get(f"slope{i}", 0.01)
            value = np.where(made > 0, made, slope * made)
            number = {"type": "float", "value": slope}
            self.call(f"Functional.leaky_relu.{i}.forward", [tensor(made), number], value, layer)
            if f"extra{i}" in faults:
                scaled = value * faults[f"extra{i}"]
                self.call(f"Torch.mul.{i}.forward", [tensor(value)], scaled, layer)
                value = scaled
            if i == 1 and "mask" in faults:
                value = self.masked(value, layer, shape=faults["mask"])
            if i == 1 and "branch" in faults:
                value = self.with_branch(value, layer, is_scaled=faults["branch"] == "scaled")
            if i == 1 and "doubled" in faults:
                value = self.doubled(value, layer, inside=faults["doubled"] == "inside")
            value = value * faults.get(f"layer{i}", 1.0)
            self.call(layer, [tensor(given)], value, "Module.Model.forward.0", parameters={"weight": tensor(weight)})
        self.call("Module.Model.forward.0", [tensor(begin)], value)
        return self

    def masked(self, value, layer, *, shape):
        """Give a module a mask of a shape, which another call makes if it is small."""
        inner = f"{layer.removesuffix('.Layer.forward.0')}.attention.Attention.forward.0"
        mask = np.full(shape, -3.0)
        if mask.size == 1:
            self.call("Torch.triu.0.forward", [tensor(np.zeros(shape))], mask, "Module.Model.forward.0")
        self.call("Torch.sub.0.forward", [tensor(value), tensor(-3.0)], value, inner)
        self.call(inner, [tensor(value), tensor(mask)], value, layer)
        return value

    def with_branch(self, value, layer, *, is_scaled):
        """Add the result of a module that is a millionth of a value to it, scaled by one more call or not."""
        inner = f"{layer.removesuffix('.Layer.forward.0')}.branch.Branch.forward.0"
        small = 1e-6 * np.tanh(value)
        self.call("Torch.tanh.1.forward", [tensor(value)], small, inner)
        if is_scaled:
            self.call("Torch.multiply.1.forward", [tensor(small)], 1.5 * small, inner)
            small = 1.5 * small
        self.call(inner, [tensor(value)], small, layer)
        self.call("Torch.add.1.forward", [tensor(value), tensor(small)], value + small, layer)
        return value + small

    def doubled(self, value, layer, *, inside):
        """Double a value by a call inside a module of the layer, or by another call after it."""
        inner = f"{layer.removesuffix('.Layer.forward.0')}.inner.Inner.forward.0"
        self.call("Functional.relu6.1.forward", [tensor(value)], value, inner)
        if inside:
            self.call("Torch.multiply.1.forward", [tensor(value)], 2 * value, inner)
        self.call(inner, [tensor(value)], 2 * value if inside else value, layer)
        if not inside:
            self.call("Torch.mul.1.forward", [tensor(value)], 2 * value, layer)
        return 2 * value

    def backward(self):
        gradient = np.ones((4, 8))
        for i in reversed(range(len(WEIGHTS))):
            layer = f"Module.layers.{i}.Layer"
            given = gradient
            gradient = gradient @ WEIGHTS[i].T * self.faults.get(f"back{i}", 1.0)
            name = f"Functional.linear.{i}.backward"
            self.data[name] = {"input": [tensor(given)], "output": [tensor(gradient)]}
            self.parents[name] = f"{layer}.backward.0"
            passed = {"input": [tensor(given)], "output": [tensor(gradient)]}
            self.data[f"{layer}.backward.0"] = passed
            self.parents[f"{layer}.backward.0"] = None
            if f"detached{i}" not in self.faults:
                of_weight = X.T @ given * self.faults.get(f"grad{i}", 1.0)
                self.data[f"{layer}.parameters_grad.0"] = {"weight": [tensor(of_weight)]}
        return self

    def write(self, place):
        write_dump(place, self.data, parents=self.parents)
        return place


@pytest.fixture
def golden(tmp_path):
    return Run().forward().backward().write(tmp_path / "golden")


def found(tmp_path, golden, **faults):
    target = Run(**faults).forward().backward().write(tmp_path / "target")
    return locate(target, golden)


def test_a_call_moved_between_modules_is_no_suspect_beside_a_fault(tmp_path):
    golden = Run(doubled="after").forward().backward().write(tmp_path / "golden")
    result = found(tmp_path, golden, doubled="inside", linear3=1.01)
    assert [suspect.entry for suspect in result.suspects] == ["Functional.linear.3.forward"]


def test_a_call_whose_result_a_module_takes_in_another_form_is_no_suspect(tmp_path):
    golden = Run(mask=(1, 1)).forward().backward().write(tmp_path / "golden")
    assert found(tmp_path / "healthy", golden, mask=(3, 3)).verdict is LocateVerdict.AGREE
    result = found(tmp_path / "faulty", golden, mask=(3, 3), layer1=1.5)
    assert [suspect.entry for suspect in result.suspects] == ["Module.layers.1.Layer.forward.0"]


def test_a_call_whose_error_is_lost_in_a_larger_value_is_a_suspect(tmp_path):
    """The layer around it agrees, as it would of any error in its small branch."""
    golden = Run(branch="plain").forward().backward().write(tmp_path / "golden")
    result = found(tmp_path, golden, branch="scaled", linear3=1.01)
    assert [suspect.entry for suspect in result.suspects] == ["Torch.multiply.1.forward", "Functional.linear.3.forward"]


def test_a_call_of_one_side_is_a_suspect_if_no_module_makes_it_good(tmp_path):
    golden = Run(doubled="after").forward().backward().write(tmp_path / "golden")
    result = found(tmp_path, golden, doubled="inside", layer1=1.5, linear3=1.01)
    assert result.suspects[0].entry == "Torch.multiply.1.forward"


@pytest.mark.parametrize(
    ("recorded", "shown"), [(None, 2), ({"sequence": 3}, 0), ({"sequence": 3, "micro_step": 1}, 1)]
)
@pytest.mark.parametrize("is_arrow", [False, True])
def test_the_micro_step_is_the_recorded_one(tmp_path, recorded, shown, is_arrow):
    """Calls of modules need not be micro-steps; dumps of other tools have nothing else."""
    sides = []
    for name, faults in (("target", {"linear1": 1.5}), ("golden", {})):
        run = Run(**faults).forward()
        text = json.dumps([run.data, run.parents]).replace(".forward.0", ".forward.2")
        run.data, run.parents = json.loads(text)
        for record in run.data.values():
            record |= {"execution": recorded} if recorded else {}
        place = run.write(tmp_path / name)
        if is_arrow:
            if recorded is None:
                pytest.skip("other tools write no such files")
            (tmp_path / "arrow").mkdir(exist_ok=True)
            convert(place, tmp_path / "arrow" / name, to=Format.ARROW)
            place = tmp_path / "arrow" / name
        sides.append(place)
    (suspect,) = locate(*sides).suspects
    assert (suspect.entry, suspect.micro_step) == ("Functional.linear.1.forward", shown)


def test_equal_runs_agree(tmp_path, golden):
    result = found(tmp_path, golden)
    assert result.verdict is LocateVerdict.AGREE
    assert not result.suspects
    assert result.num_flagged == 0
    assert result.num_nodes == len(Run().forward().backward().data)


@pytest.mark.parametrize(
    ("faults", "entry", "module", "kind"),
    [
        ({"linear1": 1.5}, "Functional.linear.1.forward", "layers.1", FaultKind.SCALE),
        ({"linear3": 1.01}, "Functional.linear.3.forward", "layers.3", FaultKind.SCALE),
        ({"slope2": 0.3}, "Functional.leaky_relu.2.forward", "layers.2", FaultKind.ARGUMENT),
        ({"extra1": 1.2}, "Torch.mul.1.forward", "layers.1", FaultKind.EXTRA_CALL),
        ({"layer2": 1.2}, "Module.layers.2.Layer.forward.0", "layers.2", FaultKind.SCALE),
        ({"between1": 1.2}, "Module.layers.1.Layer.forward.0", "layers.1", FaultKind.COMPUTATION),
        ({"weight2": WEIGHTS[2] * 1.3}, "Module.layers.2.Layer.forward.0", "layers.2", FaultKind.PARAMETER),
        ({"back1": 1.1}, "Functional.linear.1.backward", "layers.1", FaultKind.GRADIENT),
        ({"grad2": 2.0}, "Module.layers.2.Layer.parameters_grad.0", "layers.2", FaultKind.GRADIENT),
        ({"detached2": 1}, "Module.layers.2.Layer.parameters_grad.0", "layers.2", FaultKind.GRADIENT),
        ({"data": X + 1.0}, "Functional.linear.0.forward", "layers.0", FaultKind.OUTSIDE),
    ],
)
def test_a_fault_is_named_first(tmp_path, golden, faults, entry, module, kind):
    result = found(tmp_path, golden, **faults)
    assert result.verdict is LocateVerdict.FAULT
    first = result.suspects[0]
    assert (first.entry, first.module) == (entry, module)
    assert first.kind is kind or (kind is FaultKind.COMPUTATION and first.kind is FaultKind.SCALE)


def test_what_follows_from_a_fault_is_not_suspected(tmp_path, golden):
    result = found(tmp_path, golden, linear1=1.5)
    assert [suspect.entry for suspect in result.suspects] == ["Functional.linear.1.forward"]
    assert result.num_flagged > 5


def test_a_factor_is_reported(tmp_path, golden):
    first = found(tmp_path, golden, linear2=1.25).suspects[0]
    assert first.kind is FaultKind.SCALE
    assert first.reason.code is LocateCode.FACTOR
    assert first.reason.fields["factor"] == pytest.approx(1.25)
    assert first.strength is Strength.STRONG
    assert first.parents == ["Module.layers.2.Layer.forward.0", "Module.Model.forward.0"]


def test_a_weight_that_is_hardly_another_is_still_wrong_at_the_start(tmp_path, golden):
    weight = WEIGHTS[2].copy()
    weight[0, 0] += 1e-4
    result = found(tmp_path, golden, weight2=weight)
    assert result.suspects[0].kind is FaultKind.PARAMETER
    assert result.suspects[0].entry == "Module.layers.2.Layer.forward.0"
    check = next(check for check in result.checks if check.name is Precondition.WEIGHTS)
    assert check.state is CheckState.DIFFERS
    assert check.detail.code is LocateCode.CHECK_WEIGHTS
    assert check.detail.fields["found"].code is LocateCode.TALLY_WRONG
    assert check.detail.fields["found"].fields == {
        "wrong": 1, "different": 1, "total": 4, "first": "Module.layers.2.Layer.forward.0.parameters.weight",
    }  # fmt: skip


def test_a_weight_that_is_another_after_a_step_was_updated_wrongly(tmp_path):
    for side, faults in (("golden", {}), ("target", {"weight1": WEIGHTS[1] * 1.2})):
        Run().forward().backward().write(tmp_path / side / "step0" / "rank0")
        Run(**faults).forward().backward().write(tmp_path / side / "step1" / "rank0")
    result = locate(tmp_path / "target", tmp_path / "golden")
    first = result.suspects[0]
    assert (first.step, first.kind, first.entry) == (1, FaultKind.OPTIMIZER, "Module.layers.1.Layer.forward.0")
    assert first.reason.code is LocateCode.UPDATE
    assert first.reason.fields == {"parameters": ["weight"]}


def test_the_first_step_that_is_wrong_ends_the_search(tmp_path):
    for step in range(3):
        Run().forward().write(tmp_path / "golden" / f"step{step}" / "rank0")
        faults = {"linear2": 1.5} if step else {}
        Run(**faults).forward().write(tmp_path / "target" / f"step{step}" / "rank0")
    result = locate(tmp_path / "target", tmp_path / "golden")
    assert result.suspects[0].step == 1
    assert result.examined.code is LocateCode.EXAMINED_FIRST_STEPS
    assert result.examined.fields == {"done": 2, "steps": 3, "ranks": 1}


def test_calls_of_one_side_only_are_not_faults_without_consequence(tmp_path, golden):
    target = Run(extra1=1.0).forward().backward().write(tmp_path / "target")
    result = locate(target, golden)
    assert result.verdict is LocateVerdict.AGREE
    (note,) = result.notes
    assert note.code is LocateCode.LONE_CALLS
    assert note.fields == {"count": 1, "first": "Torch.mul.1.forward"}


def test_missing_ranks_leave_it_undecided(tmp_path):
    for rank in range(2):
        Run().forward().write(tmp_path / "golden" / "step0" / f"rank{rank}")
    Run().forward().write(tmp_path / "target" / "step0" / "rank0")
    result = locate(tmp_path / "target", tmp_path / "golden")
    assert result.verdict is LocateVerdict.INSUFFICIENT
    assert any("rank1" in note.text for note in result.notes)


def test_ranks_that_show_the_same_are_one_suspect(tmp_path):
    for rank in range(3):
        Run().forward().write(tmp_path / "golden" / "step0" / f"rank{rank}")
        faults = {"linear2": 1.5} if rank else {}
        Run(**faults).forward().write(tmp_path / "target" / "step0" / f"rank{rank}")
    result = locate(tmp_path / "target", tmp_path / "golden")
    assert len(result.suspects) == 1
    assert list(result.suspects[0].ranks) == [1, 2]


@pytest.mark.parametrize("dead", [False, True], ids=["detached layer", "dead rank"])
def test_a_gradient_that_one_rank_lacks_is_named(tmp_path, dead):
    """The order over ranks is that of the target, which has no such entry."""
    for rank in range(2):
        Run().forward().backward().write(tmp_path / "golden" / "step0" / f"rank{rank}")
        run = Run(**({"detached2": 1} if rank else {})).forward()
        (run if rank and dead else run.backward()).write(tmp_path / "target" / "step0" / f"rank{rank}")
    result = locate(tmp_path / "target", tmp_path / "golden")
    assert result.verdict is LocateVerdict.FAULT
    first = result.suspects[0]
    assert (first.kind, first.only_on, list(first.ranks)) == (FaultKind.GRADIENT, "golden", [1])
    assert first.entry == ("Functional.linear.3.backward" if dead else "Module.layers.2.Layer.parameters_grad.0")


def test_values_that_the_program_saves_are_no_gradients(tmp_path):
    for side, factor in (("target", 3.0), ("golden", 1.0)):
        (tmp_path / side).mkdir()
        data = {"loss.0.debug": tensor(X * factor), "loss_grad.0.debug": tensor(X * factor + 1)}
        header = {"task": "statistics", "level": "debug", "framework": "pytorch", "dump_data_dir": None}
        (tmp_path / side / "debug.json").write_text(json.dumps(header | {"data": data}))
    first, second = locate(tmp_path / "target", tmp_path / "golden").suspects
    assert (first.entry, first.kind) == ("loss.0.debug", FaultKind.SCALE)
    assert first.reason.code is LocateCode.SAVED_VALUE
    assert first.reason.fields["made"].code is LocateCode.MADE_BEYOND
    assert (second.entry, second.kind) == ("loss_grad.0.debug", FaultKind.GRADIENT)
    assert second.reason.code is LocateCode.SAVED_VALUE


def test_nothing_is_0_times_what_rounding_explains():
    """Integers that rounding may have turned have an error only where they are used."""
    node = {
        "entry": "Torch.argmax.0.forward", "phase": "forward", "is_lost": False, "is_added_up": False,
        "parameter_excess": 0.0, "parts_missing": False, "output_excess": 0.0, "output_score": 0.0,
        "inputs_equal": True, "input_score": 0.0, "arguments_differ": False, "argument_gap": 0.0,
    }  # fmt: skip
    source = Source(node, seen_at=node | {"entry": "Functional.embedding.0.forward"})
    reason = reason_of(source, FaultKind.COMPUTATION, pl.DataFrame())
    assert reason.code is LocateCode.COMPUTATION
    assert [reason.fields[each].code for each in ("given", "made")] == [
        LocateCode.GIVEN_EQUAL, LocateCode.MADE_WITHIN,
    ]  # fmt: skip


# --- the command ------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], standalone_mode=False)


def test_the_command_names_the_fault_and_writes_a_file(tmp_path, golden):
    target = Run(linear2=1.25).forward().backward().write(tmp_path / "target")
    done = run(target, golden, "-o", tmp_path / "out")
    assert done.return_value == 1
    lines = done.output.splitlines()
    assert lines[-1].startswith("FAULT: scale at Functional.linear.2.forward in Module.layers.2.Layer")
    content = json.loads((tmp_path / "out" / "locate.json").read_text())
    assert content["verdict"] == "fault"
    first = content["suspects"][0]
    assert (first["entry"], first["module"], first["kind"]) == ("Functional.linear.2.forward", "layers.2", "scale")
    assert first["evidence"][0]["row"] == "Functional.linear.2.forward.output.0"
    assert first["phase"] == "forward"
    assert first["reason_finding"]["code"] == "locate.factor"
    assert first["reason_finding"]["fields"]["given"]["code"] == "locate.given.equal"
    assert '"list":["Module.layers.2.Layer"]' in first["command"]


def test_the_command_says_that_runs_agree(tmp_path, golden):
    target = Run().forward().backward().write(tmp_path / "target")
    done = run(target, golden, "-o", tmp_path / "out")
    assert done.return_value == 0
    assert done.output.splitlines()[-1].startswith("AGREE: ")
    assert json.loads((tmp_path / "out" / "locate.json").read_text())["suspects"] == []


# --- wording ----------------------------------------------------------------------------------------------------

EQUAL, BEYOND = Finding(LocateCode.GIVEN_EQUAL), Finding(LocateCode.MADE_BEYOND, fields={"score": 12.3})
TALLY = {"total": 1200, "different": 3, "wrong": 2, "first": "Torch.mul.0.forward.output.0"}
COUNTED = {"found": Finding(LocateCode.TALLY_WRONG, fields=TALLY)}
PARTS = {"given": EQUAL, "made": BEYOND}
THETA = Finding(LocateCode.CONFIGURED, fields={"path": "config.rope_theta", "target": "500000", "golden": "10000"})
EXPLAINED = Finding(ExplainCode.YES, fields={"why": Finding(ExplainCode.ROPE)})
ORDER = Finding(NoteCode.TEXT, fields={"text": "the same samples in another order"})
CHECK = {"command": "msprobe config_check -c golden target"}
SAMPLES = {
    LocateCode.NO_MANIFEST: {"side": "golden"},
    LocateCode.UNREADABLE_MANIFEST: {"why": "manifest.json: is no manifest"},
    LocateCode.CONFIGURATIONS_AGREE: {"count": 0, "compared": 1234, "ranks": 8},
    LocateCode.CONFIGURATIONS_DIFFER: {"count": 2, "compared": 1234, "ranks": 1, "first": "config.rope_theta"},
    LocateCode.SOME_CONFIGURATIONS: {"found": THETA, "all": 512},
    LocateCode.CONFIGURED: THETA.fields,
    LocateCode.RANDOM_STATE: {"name": "python"},
    LocateCode.CONFIGURED_ON_ONE: {"path": "NCCL_ALGO", "value": "Ring", "side": "target"},
    LocateCode.CONFIGURED_IN_PLACES: {"what": THETA, "count": 32},
    LocateCode.CONFIGURED_ON_RANKS: {"what": THETA, "ranks": [3]},
    LocateCode.CONFIGURED_AND_EXPLAINED: {"what": THETA, "explanation": EXPLAINED},
    LocateCode.CONFIGURED_DIFFERENTLY: {"what": THETA},
    LocateCode.NEXT_DATA_DIFFERS: CHECK | {"found": ORDER},
    LocateCode.NEXT_SEED_DIFFERS: {"found": ORDER},
    LocateCode.NEXT_SEED_EQUAL: CHECK,
    LocateCode.NEXT_COMPARE_CHECKPOINTS: CHECK,
    LocateCode.NEXT_CONFIGURE: {"what": THETA},
    LocateCode.SAMPLES_CUT: {"where": "step1/rank0", "count": 8},
    LocateCode.SAMPLES_JOINED: {"where": "step1/rank0", "count": 8},
    LocateCode.SAMPLES_OTHER: {"where": "step1/rank0", "common": 3, "count": 8},
    LocateCode.LONE_CALL: {"only_on": "target"},
    LocateCode.LOST_GRADIENT: {"only_on": "golden"},
    LocateCode.CHANGED_AFTERWARDS: {"seen_at": "Torch.mul.0.forward"},
    LocateCode.CHANGED_BY_CALL: {"seen_at": "Jit.Adam.0.forward", "call": "Functional.clip_by_global_norm.0.forward"},
    LocateCode.NOT_CHANGED_AFTERWARDS: {"seen_at": "Tensor.lerp_.0.forward"},
    LocateCode.GRADIENT_ADDED_UP: {"side": "target"},
    LocateCode.PARAMETER: {"parameters": ["weight", "bias"]},
    LocateCode.UPDATE: {"parameters": ["weight"]},
    LocateCode.ALL_UPDATES: {"parameters": ["weight"], "factor": 1.10012},
    LocateCode.SAVED_VALUE: {"made": BEYOND},
    LocateCode.GRADIENT: PARTS,
    LocateCode.GRADIENT_OF_PARAMETERS: PARTS,
    LocateCode.GRADIENT_OF_STEP: PARTS,
    LocateCode.ARGUMENT: PARTS,
    LocateCode.FACTOR: PARTS | {"factor": 1.250049},
    LocateCode.COMPUTATION: PARTS,
    LocateCode.REPLICAS: {"divergence": "weight: rank 1 differs from rank 0"},
    LocateCode.GIVEN_ROUNDED: {"score": 0.4},
    LocateCode.MADE_LOCAL: {"score": 4.0},
    LocateCode.MADE_GROWING: {"score": 0.5},
    LocateCode.MADE_BEYOND: {"score": 3e7},
    LocateCode.CHECK_WEIGHTS: COUNTED,
    LocateCode.CHECK_DATA: COUNTED,
    LocateCode.CHECK_RANDOM: COUNTED,
    LocateCode.CHECK_DECISIONS: COUNTED,
    LocateCode.TALLY_WRONG: TALLY,
    LocateCode.TALLY_ROUNDED: TALLY,
    LocateCode.TALLY_EQUAL: TALLY,
    LocateCode.DECIDED_OTHERWISE: TALLY,
    LocateCode.AT_UNKNOWN_RATE: TALLY,
    LocateCode.NOISE_MEASURED: {"profile": "golden/calibration/noise.json"},
    LocateCode.EXAMINED_STEP: {"ranks": 1},
    LocateCode.EXAMINED_ALL_STEPS: {"done": 3, "steps": 3, "ranks": 8},
    LocateCode.EXAMINED_FIRST_STEPS: {"done": 2, "steps": 3, "ranks": 1},
    LocateCode.RANK_FAILED: {"rank": "rank1", "why": "there was not enough memory; give fewer --workers"},
    LocateCode.NOT_CONFIRMED: {"entry": "Torch.mul.0.forward", "why": "the dumps are of two frameworks"},
    LocateCode.LONE_CALLS: {"count": 1234, "first": "Torch.mul.1.forward"},
    LocateCode.OTHER_WAYS: {"count": 2, "first": "Functional.pad.0.forward"},
    LocateCode.NEXT_RUN: {"command": "msprobe locate target golden --confirm"},
    LocateCode.NEXT_RECORD_AND_COMPARE: {"config": "{}"},
    LocateCode.NEXT_RECORD_AND_CONFIRM: {"config": "{}"},
    LocateCode.NEXT_ZOOM: {"config": "{}", "command": "msprobe control config.json set level=mix"},
}
WHY = {"why": Finding(ExplainCode.ROPE)}
EXPLANATIONS = {
    ExplainCode.YES: WHY,
    ExplainCode.MAYBE: WHY,
    ExplainCode.NO: WHY,
    ExplainCode.ELSEWHERE: {"place": "model.layers.4.input_layernorm.eps"},
    ExplainCode.AT: {"module": "model.layers.4.input_layernorm"},
    ExplainCode.AROUND: {"module": "model.layers.4"},
    ExplainCode.OTHER_RANKS: {"ranks": [3]},
}


def test_wording(tmp_path, golden, wording_snapshot):
    said = []
    for name, faults in (("equal", {}), ("a factor", {"linear2": 1.25}), ("an extra call", {"extra1": 1.2})):
        target = Run(**faults).forward().backward().write(tmp_path / name)
        output = run(target, golden, "-o", tmp_path / "out").output
        said.append(f"--- {name}\n{output.replace(str(tmp_path), '')}")
    explanations = worded_samples(ExplainCode, EXPLANATIONS)
    wording_snapshot.check("locate", *said, worded_samples(LocateCode, SAMPLES), explanations)
