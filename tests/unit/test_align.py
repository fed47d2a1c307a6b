"""Calls of one dump are paired with those of the other."""

import random
import time

import pytest
from dumps import api, tensor, write_dump
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import Op, align_dumps, backward_of, lone_in, names_of, pairs_in, record, with_value

from msprobe_core.compare import compare_dumps
from msprobe_core.compare.mapping import Matching
from msprobe_core.compare.pairing_codes import PairingCode

values = iter(range(10**9))


def op(stem, inside=None, **fields):
    """Return a call whose value no other has: the next power of 1.1, so that all differ clearly."""
    return Op(stem, 1.1 ** (next(values) % 4000 - 2000), inside, **fields)


def layers(num_layers=3, *, path="layers", micro_steps=1):
    """Return a program of layers, each a module with calls in it, in a root module; children before parents."""
    program = []
    for _ in range(micro_steps):
        root = op("Module.Net")
        program.append(op("Torch.randn"))
        for i in range(num_layers):
            layer = op(f"Module.{path}.{i}.Block", root)
            norm = op(f"Module.{path}.{i}.norm.Norm", layer)
            program += [op("Tensor.mul", norm), op("Tensor.mul", norm), norm]
            program += [op("Functional.linear", layer, has_backward=True), op("Tensor.mul", layer), layer]
        program += [op("Tensor.mul", root), root]
    return program


def check_pairs(alignment, target, golden):
    """Each call that both programs have is paired with itself, and nothing else with anything."""
    own, other = names_of(target), names_of(golden)
    expected = {own[call]: other[call] for call in target if call in other}
    expected |= {backward_of(own[c]): backward_of(other[c]) for c in target if c in other and c.has_backward}
    assert pairs_in(alignment) == expected
    for side, names, others in (("target", own, other), ("golden", other, own)):
        lone = [name for call, name in names.items() if call not in others]
        lone += [backward_of(name) for call, name in names.items() if call not in others and call.has_backward]
        assert sorted(lone_in(alignment, side)) == sorted(lone)


def test_the_same_calls_are_paired_by_name(tmp_path):
    program = layers()
    alignment = align_dumps(record(tmp_path / "t", program), record(tmp_path / "g", program))
    check_pairs(alignment, program, program)
    assert not alignment.notes
    assert alignment.rows["entry"].to_list() == alignment.rows["entry_golden"].to_list()


@pytest.mark.parametrize("nesting", [True, False], ids=["nested", "flat"])
@pytest.mark.parametrize("side", ["target", "golden"])
def test_one_extra_call_shifts_nothing(tmp_path, side, nesting):
    golden = layers()
    place = golden.index(next(call for call in golden if call.stem == "Module.layers.1.norm.Norm"))
    extra = op("Tensor.mul", golden[place])
    target = [*golden[:place], extra, *golden[place:]]
    if side == "golden":
        target, golden = golden, target
    alignment = align_dumps(
        record(tmp_path / "t", target, nesting=nesting), record(tmp_path / "g", golden, nesting=nesting)
    )
    check_pairs(alignment, target, golden)
    note = alignment.notes[0]
    assert (note.code, note.fields["count"]) == (PairingCode.BY_SEQUENCE, 5)


SAME = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@SAME
@given(st.randoms(use_true_random=False), st.booleans(), st.integers(1, 2), st.sampled_from(["target", "golden"]))
def test_extra_calls_anywhere(tmp_path_factory, chance, nesting, micro_steps, side):
    """Whatever calls one side has more, also like their neighbours: all others are paired with themselves."""
    golden = layers(micro_steps=micro_steps)
    target = list(golden)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(target) - 1)
        stem = chance.choice(["Tensor.mul", "Functional.linear", "Tensor.exp"])
        target.insert(place, op(stem, target[place].inside, has_backward=chance.random() < 0.5))
    if side == "golden":
        target, golden = golden, target
    directory = tmp_path_factory.mktemp("dumps")
    own = record(directory / "t", target, nesting=nesting)
    check_pairs(align_dumps(own, record(directory / "g", golden, nesting=nesting)), target, golden)


@pytest.mark.slow
@SAME
@given(st.randoms(use_true_random=False), st.integers(1, 2))
def test_both_sides_lack_calls(tmp_path_factory, chance, micro_steps):
    """Each side has calls that the other lacks, of different APIs, so that there is one truth."""
    common = layers(micro_steps=micro_steps)
    target, golden = list(common), list(common)
    for program, stem in ((target, "Tensor.mul"), (golden, "Functional.linear")):
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(program) - 1)
            program.insert(place, op(stem, program[place].inside))
    directory = tmp_path_factory.mktemp("dumps")
    alignment = align_dumps(record(directory / "t", target), record(directory / "g", golden))
    check_pairs(alignment, target, golden)


def test_only_one_side_has_a_micro_step_more(tmp_path):
    golden = layers(micro_steps=2)
    target = golden[: len(golden) // 2]
    alignment = align_dumps(record(tmp_path / "t", target), record(tmp_path / "g", golden))
    check_pairs(alignment, target, golden)


def test_calls_of_other_modules_are_no_partners(tmp_path):
    """As many calls of each API on both sides, and yet not the same: the nesting tells."""
    common = layers(2)
    first, last = (next(call for call in common if call.stem == f"Module.layers.{i}.norm.Norm") for i in (0, 1))
    target, golden = list(common), list(common)
    target.insert(target.index(first), op("Tensor.mul", first))
    golden.insert(golden.index(last), op("Tensor.mul", last))
    alignment = align_dumps(record(tmp_path / "t", target), record(tmp_path / "g", golden))
    check_pairs(alignment, target, golden)


def test_shapes_tell_that_numbers_are_wrong(tmp_path):
    sizes = [(2, 4), (4, 8), (8, 16), (16, 2)]
    linears = [op("Functional.linear", shape=shape) for shape in sizes]
    target, golden = linears[:3], linears[1:]
    alignment = align_dumps(record(tmp_path / "t", target), record(tmp_path / "g", golden))
    check_pairs(alignment, target, golden)


@pytest.mark.parametrize("nesting", [True, False], ids=["nested", "flat"])
def test_experts_that_get_other_numbers_of_tokens_are_themselves(tmp_path, nesting):
    """Shapes depend on the data: one expert's are, by chance, those of the next in the other run."""
    programs = {"t": [], "g": []}
    for i, tokens in enumerate([(5, 3), (3, 4), (4, 2), (2, 5)]):
        value = op("").value
        for side, num_tokens in zip("tg", tokens, strict=True):
            module = op(f"Module.experts.{i}.Expert")
            linear = Op("Functional.linear", value, module if nesting else None, shape=(num_tokens, 2))
            programs[side] += [linear, module] if nesting else [linear]
    alignment = align_dumps(*(record(tmp_path / s, program, nesting=nesting) for s, program in programs.items()))
    assert all(a == b for a, b in pairs_in(alignment).items())
    assert set(alignment.rows["match"]) == {"both"}


def test_calls_whose_arguments_changed_are_known_by_the_shapes_of_their_results(tmp_path):
    target = {
        "Tensor.mul.0.forward": api(tensor([[1.0]] * 9), 2.0, output=tensor([[2.0]] * 9)),
        "Tensor.mul.1.forward": api(tensor([1.0, 2.0]), 3.0, output=tensor([3.0, 6.0])),
    }
    golden = {"Tensor.mul.0.forward": api(tensor([1.0, 2.0]), tensor(3.0), output=tensor([3.0, 6.0]))}
    alignment = align_dumps(write_dump(tmp_path / "t", target), write_dump(tmp_path / "g", golden))
    assert pairs_in(alignment) == {"Tensor.mul.1.forward": "Tensor.mul.0.forward"}
    assert lone_in(alignment, "target") == ["Tensor.mul.0.forward"]


def test_calls_stay_paired_when_the_batch_size_differs(tmp_path):
    golden = layers()
    target = [with_value(call, call.value) for call in golden]
    own = record(tmp_path / "t", target)
    content = own.read_text().replace('"shape": [2]', '"shape": [4]')
    own.write_text(content)
    alignment = align_dumps(own, record(tmp_path / "g", golden))
    assert all(a == b for a, b in pairs_in(alignment).items())
    assert set(alignment.rows["match"]) == {"both"}


def test_modules_that_run_in_another_order_are_themselves(tmp_path):
    def program(order):
        root = op("Module.Net")
        branches = {i: [] for i in order}
        for i in branches:
            branch = op(f"Module.branches.{i}.Branch", root)
            branches[i] = [op("Tensor.mul", branch), op("Tensor.add", branch), branch]
        return root, branches

    root, branches = program([0, 1, 2])
    golden = [*branches[0], *branches[1], *branches[2], root]
    target = [*branches[2], *branches[0], *branches[1], op("Tensor.exp", root), root]
    alignment = align_dumps(record(tmp_path / "t", target), record(tmp_path / "g", golden))
    check_pairs(alignment, target, golden)


def test_two_calls_that_change_places_are_themselves(tmp_path):
    a, b, c, d = op("Tensor.mul"), op("Tensor.add"), op("Tensor.exp"), op("Tensor.exp")
    golden, target = [a, b, c], [d, b, a, c]
    alignment = align_dumps(record(tmp_path / "t", target), record(tmp_path / "g", golden))
    check_pairs(alignment, target, golden)


def test_a_class_of_another_name_is_the_same_module(tmp_path):
    golden = layers(2)
    target = [with_value(call, call.value) for call in golden]
    for directory, program, name in (("t", target, "LlamaNorm"), ("g", golden, "Norm")):
        path = record(tmp_path / directory, program)
        for file in (path, path.parent / "construct.json"):
            file.write_text(file.read_text().replace(".Norm.", f".{name}."))
    alignment = align_dumps(tmp_path / "t" / "dump.json", tmp_path / "g" / "dump.json")
    assert set(alignment.rows["match"]) == {"both"}
    (note,) = alignment.notes
    first = {"target": "Module.layers.0.norm.LlamaNorm", "golden": "Module.layers.0.norm.Norm"}
    assert (note.code, note.fields["count"]) == (PairingCode.OTHER_CLASSES, 2)
    assert note.fields["first"].fields == first


def test_two_classes_under_one_path_are_two_modules(tmp_path):
    golden = [op("Module.head.Old"), op("Module.head.New"), op("Tensor.mul")]
    target = [golden[1], golden[2], op("Tensor.mul")]
    alignment = align_dumps(record(tmp_path / "t", target), record(tmp_path / "g", golden))
    check_pairs(alignment, target, golden)


def test_gradients_of_parameters_are_paired_by_their_own_number(tmp_path):
    gradient = {"weight": [tensor([1.0])]}
    golden = {"Module.a.Linear.forward.0": api(tensor(), output=tensor()), "Module.a.Linear.parameters_grad": gradient}
    extra = {"Tensor.mul.0.forward": api(tensor(), output=tensor())}
    target = extra | {"Module.a.Linear.forward.0": golden["Module.a.Linear.forward.0"]}
    target |= {"Module.a.Linear.parameters_grad.0": gradient, "Module.a.Linear.parameters_grad.1": gradient}
    alignment = align_dumps(write_dump(tmp_path / "t", target), write_dump(tmp_path / "g", golden))
    assert pairs_in(alignment)["Module.a.Linear.parameters_grad.0"] == "Module.a.Linear.parameters_grad"
    assert lone_in(alignment, "target") == ["Tensor.mul.0.forward", "Module.a.Linear.parameters_grad.1"]


def test_what_only_the_golden_side_has_does_not_mix_with_the_targets(tmp_path):
    """A golden call without partner has the name of a call of the target that has another partner."""
    a, b, c = op("Tensor.mul", shape=(3,)), op("Tensor.mul"), op("Tensor.mul")
    alignment = align_dumps(record(tmp_path / "t", [b, c]), record(tmp_path / "g", [a, b, c]))
    assert lone_in(alignment, "golden") == ["Tensor.mul.0.forward"]
    result = compare_dumps(tmp_path / "t" / "dump.json", tmp_path / "g" / "dump.json")
    (unit,) = result.units
    assert unit.fault is None
    assert (unit.lone_call.entry, unit.lone_call.only_on) == ("Tensor.mul.0.forward", "golden")
    assert [row for row, _ in unit.lone_call.findings] == [
        f"Tensor.mul.0.forward.{part}.0" for part in ("input", "output")
    ]
    counts = {"pass": 4, "warning": 0, "error": 0, "unmatched": 2, "only target": 0, "only golden": 2}
    assert unit.counts == counts | {"unrecorded": 0}


def test_stack_and_place_of_a_call_that_only_the_golden_side_has(tmp_path):
    module = op("Module.head.Head")
    a, b = op("Tensor.mul", module, shape=(3,)), op("Tensor.mul", module)
    record(tmp_path / "t", [b, module])
    golden = record(tmp_path / "g", [a, b, module])
    (golden.parent / "stack.json").write_text('{"0": [["Tensor.mul.0.forward"], ["File x.py, line 3"]]}')
    (unit,) = compare_dumps(tmp_path / "t" / "dump.json", golden).units
    assert unit.lone_call.parent == "Module.head.Head.forward.0"
    assert unit.lone_call.stack == ["File x.py, line 3"]


def test_rows_of_one_side_stand_where_they_ran(tmp_path):
    golden = layers(2)
    extra, missing = op("Tensor.exp"), golden[5]
    target = [extra, *[call for call in golden if call is not missing]]
    alignment = align_dumps(record(tmp_path / "t", target), record(tmp_path / "g", golden))
    forward = alignment.rows.filter(phase="forward")
    shown = forward.select("entry", "entry_golden", "match").unique(maintain_order=True).rows()
    own, other = names_of(target), names_of(golden)
    expected = [(own[extra], None, "only target")]
    expected += [
        (own[call], other[call], "both") if call is not missing else (None, other[call], "only golden")
        for call in golden
    ]
    assert [(e if m != "only golden" else None, g, m) for e, g, m in shown] == expected


def test_recomputed_calls_are_no_partners_of_others(tmp_path):
    """Under other tools a recomputed call is inside a backward."""
    root = op("Module.Net")
    layer = op("Module.layer.Block", root)
    calls = [op("Tensor.mul", layer), op("Tensor.mul", layer), layer, op("Tensor.mul", root), root]
    golden = record(tmp_path / "g", calls)
    target = record(tmp_path / "t", calls)
    again = {"Tensor.mul.3.forward": 1.0, "Tensor.mul.4.forward": 2.0, "Module.layer.Block.forward.1": 3.0}
    import json

    dump, construct = json.loads(target.read_text()), json.loads((target.parent / "construct.json").read_text())
    dump["data"] |= {name: api(tensor(value), output=tensor(value)) for name, value in again.items()}
    construct |= dict.fromkeys(list(again)[:2], "Module.layer.Block.forward.1")
    construct["Module.layer.Block.forward.1"] = "Module.layer.Block.backward.0"
    construct["Module.layer.Block.backward.0"] = "Module.Net.backward.0"
    target.write_text(json.dumps(dump))
    (target.parent / "construct.json").write_text(json.dumps(construct))
    alignment = align_dumps(target, golden)
    assert lone_in(alignment, "target") == list(again)
    assert all(a == b for a, b in pairs_in(alignment).items())


def test_fuzzy_pairs_what_runs_in_another_order(tmp_path):
    a, b, c = (op("Tensor.mul", shape=(n,)) for n in (2, 3, 4))
    extra = op("Tensor.exp")
    target, golden = [a, b, c, extra], [c, a, b]
    paths = record(tmp_path / "t", target), record(tmp_path / "g", golden)
    check_pairs(align_dumps(*paths, Matching(is_fuzzy=True)), target, golden)
    assert lone_in(align_dumps(*paths), "golden") == ["Tensor.mul.0.forward"]


@pytest.mark.parametrize("seed", range(5))
def test_fuzzy_in_any_order_at_all(tmp_path, seed):
    chance = random.Random(seed)
    golden = [op(f"Tensor.f{i % 5}", shape=(i // 5,)) for i in range(40)]
    target = [*golden, op("Tensor.exp")]
    chance.shuffle(target)
    paths = record(tmp_path / "t", target, nesting=False), record(tmp_path / "g", golden, nesting=False)
    check_pairs(align_dumps(*paths, Matching(is_fuzzy=True)), target, golden)


def test_fuzzy_wants_the_same_structure(tmp_path):
    mul = {"Tensor.mul.0.forward": api(tensor([1.0]), output=tensor([1.0]))}
    other = {"Tensor.exp.0.forward": api(tensor([1.0]), output=tensor([1.0]))}
    target = mul | other
    golden = other | {"Tensor.mul.0.forward": api(tensor([1.0]), [tensor([1.0])], output=tensor([1.0]))}
    alignment = align_dumps(
        write_dump(tmp_path / "t", target), write_dump(tmp_path / "g", golden), Matching(is_fuzzy=True)
    )
    assert set(pairs_in(alignment)) == {"Tensor.exp.0.forward", "Tensor.mul.0.forward"}


@pytest.mark.slow
def test_time_grows_with_the_size_of_a_step_and_not_with_its_square(tmp_path):
    times = []
    for size in (2_500, 20_000):
        chance = random.Random(0)
        golden = [op(f"Tensor.f{chance.randrange(20)}") for _ in range(size)]
        target = list(golden)
        for place in (size - 5, size // 2 - 1, 3):
            target.insert(place, op(target[place].stem))
            del target[place // 2]
        place = tmp_path / str(size)
        paths = record(place / "t", target, nesting=False), record(place / "g", golden, nesting=False)
        began = time.process_time()
        alignment = align_dumps(*paths)
        times.append(time.process_time() - began)
        check_pairs(alignment, target, golden)
    assert times[1] < 24 * times[0], times  # eight times the size; its square would take 64 times as long
