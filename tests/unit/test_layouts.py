"""Layouts declared by a file: what a file may contain, and that tensors then have one layout and correct statistics."""

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limited import grows_linearly
from part_dumps import ArrayDump, ArraySource, part

from msprobe_core.compare.layouts.rank_groups import DeclaredRanks, plan_groups
from msprobe_core.compare.layouts.rules import Change, Side, load_layouts
from msprobe_core.compare.layouts.tensors import relaid
from msprobe_core.compare.pairing_codes import MadeAlikeCode
from msprobe_core.compare.shards import sources as shard_sources
from msprobe_core.compare.shards.assembly import Held, assemble
from msprobe_core.compare.shards.merged import merged
from msprobe_core.compare.shards.sources import Assembled, narrowed, permuted, reshaped
from msprobe_core.config.name_patterns import NamePattern
from msprobe_core.errors import CompareError, ConfigError, DumpError
from msprobe_core.model import Placement
from msprobe_core.store.layout import Unit
from msprobe_core.store.tensors import open_tensor

RNG = np.random.default_rng(7)
STATISTICS = ("max", "min", "mean", "norm")


@pytest.fixture
def load(tmp_path):
    def load(text):
        path = tmp_path / "layout.yaml"
        path.write_text(text)
        return load_layouts(path)

    return load


# --- patterns -------------------------------------------------------------------------------------------------------


@given(st.text("ab.*", max_size=8), st.text("ab.", max_size=12))
@settings(max_examples=500)
def test_a_pattern_matches_what_a_regular_expression_would(pattern, name):
    """Also what its stars stand for: the first takes as much as it can."""
    expression = "(.*)".join(re.escape(part) for part in pattern.split("*"))
    found = re.fullmatch(expression, name, re.DOTALL)
    assert NamePattern(pattern).stars_in(name) == (found.groups() if found else None)
    assert NamePattern(pattern).matches(name) == bool(found)


def test_a_pattern_takes_time_that_is_linear_in_the_name():
    """As a regular expression, five stars took 26 s for a name of 40 kB."""
    pattern = NamePattern("*a*a*a*a*a*ab")
    assert grows_linearly(lambda size: pattern.matches("a" * size), 100_000)
    assert grows_linearly(lambda size: NamePattern(f"*{'a' * size}b*").matches("a" * 2 * size), 50_000)


# --- the file -------------------------------------------------------------------------------------------------------


def test_a_whole_file_is_read(load):
    rules = load("""
tensors:
  - {match: "*.fc.Dense", values: weight, side: golden, transpose: true}
  - {match: "*", values: [input, output], side: target, permute: [1, 0, 2]}
  - {match: "*.embed", side: golden, unpad: {dim: 0, size: 11}, padding: ignored}
fused:
  - {parts: ["*.q", "*.k", "*.v"], whole: "*.qkv", side: target, groups: 2}
parallel:
  target: {tp: 2, pp: 2, order: tp-pp, first_layers: [0, 3]}
  golden: {groups: {tp: [[0, 2], [1, 3]]}}
  rows:
    - {match: "*.router", weight: replicated, output: -1, axis: tp}
""")
    assert [rule.change for rule in rules.tensors] == [Change.TRANSPOSE, Change.PERMUTE, Change.UNPAD]
    assert [rule.side for rule in rules.tensors] == [Side.GOLDEN, Side.TARGET, Side.GOLDEN]
    assert rules.tensors[2].numbers == (0, 11)
    assert not rules.tensors[2].is_zero
    assert rules.fused[0].num_groups == 2
    assert rules.ranks[Side.TARGET].place_of(3).places == (("pp", 1), ("tp", 1))
    assert rules.ranks[Side.GOLDEN].place_of(2).on("tp") == 1
    assert rules.placements[0].values["output"] == Placement("Shard", -1)
    assert load("{}").tensors == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "holds list, not an object; expected are 'tensors', 'fused' and 'parallel'"),
        ("tensor: []", "unknown field 'tensor'"),
        ("tensors: 3", "'tensors' must be a list of objects"),
        ("a: {b: 1, b: 2}", "the key 'b' stands twice"),
        ("{", "is not valid YAML"),
        ("\n\ntensors:\n  - {match: x, side: golden}", "line 4: tensors: no change given; each rule needs one of"),
        ("tensors:\n  - {match: x, side: golden, transpose: true, squeeze: 0}", "two changes given"),
        ("tensors:\n  - {match: x, side: gold, transpose: true}", "'side' is 'gold', but must say whose tensors"),
        ("tensors:\n  - {match: '', side: golden, transpose: true}", "'match' is ''"),
        ("tensors:\n  - {match: x, side: golden, permute: [0, 2]}", "must name each dimension once"),
        ("tensors:\n  - {match: x, side: golden, permute: [1, true]}", "must be whole numbers"),
        ("tensors:\n  - {match: x, side: golden, merge: [0, 2]}", "only dimensions that follow one another"),
        ("tensors:\n  - {match: x, side: golden, unpad: 3}", "must have 'dim' and 'size'"),
        ("tensors:\n  - {match: x, side: golden, squeeze: 0, padding: zero}", "with 'unpad' it may be"),
        ("tensors:\n  - {match: x, side: golden, values: 3, squeeze: 0}", "'values' is 3"),
        ("tensors:\n  - {match: x, side: golden, squeeze: 0, shape: 3}", "unknown field 'shape'"),
        ("fused:\n  - {parts: [a], whole: b, side: golden}", "a list of two modules or more"),
        ("fused:\n  - {parts: ['*.a', b], whole: c, side: golden}", "the same number of '*'"),
        ("fused:\n  - {parts: [a, b], whole: c, side: golden, groups: 0}", "must be whole numbers from 1"),
        ("parallel: 3", "'parallel' holds int"),
        ("parallel: {target: 3}", "target holds int"),
        ("parallel: {target: {tp: 0}}", "'tp' is 0"),
        ("parallel: {target: {sp: 2}}", "unknown field 'sp'; known are cp, dp, ep"),
        ("parallel: {target: {tp: 2, order: dp-pp}}", "'order' lacks 'tp'"),
        ("parallel: {target: {tp: 2, order: tp-tp}}", "it names each axis once"),
        ("parallel: {target: {groups: {tp: [[0, 1], [1, 2]]}}}", "a rank is in two groups of 'tp'"),
        ("parallel: {target: {groups: {tp: [0, 1]}}}", "must be lists of ranks"),
        ("parallel: {rows: [{match: x}]}", "no value is given"),
        ("parallel: {rows: [{match: x, weight: rows}]}", "'weight' is 'rows'"),
        ("parallel: {rows: [{match: x, weight: 0, axis: sp}]}", "'axis' is 'sp'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(load, text, message):
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert message in str(caught.value)
    assert "layout.yaml" in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a: !!python/object:os.system x", b"- " * 20000])
def test_files_of_another_kind_are_refused(tmp_path, content):
    path = tmp_path / "layout.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load_layouts(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_layouts(tmp_path)


# --- changes of one tensor ------------------------------------------------------------------------------------------

WEIGHT = "Module.net.fc.Dense.forward.0"


def dump_of(values, entry=WEIGHT, role="parameters", name="weight", **fields):
    record = {
        role: {name: part(values, data_name="w.npy", **fields)}
        if role == "parameters"
        else [part(values, data_name="w.npy", **fields)]
    }
    return ArrayDump({entry: record}, {"w.npy": np.asarray(values)})


def changed(load, rule, values, **kwargs):
    dump = relaid(dump_of(values, **kwargs), load(f"tensors:\n  - {{match: '*', side: golden, {rule}}}"), Side.GOLDEN)
    (row,) = dump.frame.iter_rows(named=True)
    return dump, row


def read(dump, row, num_elements=7):
    source = dump.open_tensor(row["file_name"])
    return np.reshape(np.concatenate(list(source.chunks(num_elements))), source.shape)


@pytest.mark.parametrize(
    ("rule", "shape", "apply", "keeps"),
    [
        ("transpose: true", (3, 4), lambda x: x.T, False),
        ("transpose: [0, 2]", (2, 3, 4), lambda x: x.transpose(2, 1, 0), False),
        ("permute: [1, 0, 2]", (5, 2, 3), lambda x: x.transpose(1, 0, 2), False),
        ("permute: [1, 0, 2]", (1, 5, 3), lambda x: x.transpose(1, 0, 2), True),
        ("merge: [0, 1]", (2, 3, 4), lambda x: x.reshape(6, 4), True),
        ("reshape: [-1, 2]", (2, 3, 4), lambda x: x.reshape(12, 2), True),
        ("squeeze: [0, -1]", (1, 3, 1), lambda x: x.reshape(3), True),
    ],
)
def test_a_tensor_gets_the_declared_layout_and_keeps_its_statistics(load, rule, shape, apply, keeps):
    values = RNG.normal(size=shape)
    dump, row = changed(load, rule, values)
    expected = apply(values)
    np.testing.assert_array_equal(read(dump, row), expected)
    assert (row["shape"], row["numel"]) == (str(list(expected.shape)), expected.size)
    assert row["norm"] == pytest.approx(np.linalg.norm(values))
    # Of a tensor in another order hash and sketch say nothing.
    assert (row["checksum"] is not None) is keeps
    assert (row["sketch"] is not None) is keeps
    assert any(note.code is MadeAlikeCode.HASHES_LOST for note in dump.notes) is not keeps
    if keeps:
        again = part(expected)
        assert row["checksum"] == again["md5"]


@pytest.mark.parametrize(
    ("rule", "shape"),
    [("permute: [1, 0, 2]", (5, 2)), ("transpose: true", (5,)), ("squeeze: 0", (5, 2)), ("reshape: [3, -1]", (5,)),
     ("merge: [1, 2]", (5, 2)), ("unpad: {dim: 0, size: 9}", (5,)), ("unpad: {dim: 3, size: 2}", (5,)),
     ("reshape: [-1, 0]", (5,))],
)  # fmt: skip
def test_a_rule_that_matches_no_tensor_changes_nothing_and_is_reported(load, rule, shape):
    values = RNG.normal(size=shape)
    dump, row = changed(load, rule, values)
    assert row["shape"] == str(list(shape))
    np.testing.assert_array_equal(dump.open_tensor("w.npy").values, values)
    note = dump.notes[0]
    assert (note.code, note.fields["match"]) == (MadeAlikeCode.RULE_UNUSED, "*")
    assert note.fields["rule"].endswith("line 2: tensors")


def test_rules_of_the_other_side_change_nothing(load):
    rules = load("tensors:\n  - {match: '*', side: target, transpose: true}")
    dump = dump_of(np.ones((2, 3)))
    assert relaid(dump, rules, Side.GOLDEN) is dump


def test_only_the_values_that_are_named_are_changed(load):
    data = {
        WEIGHT: {
            "input_args": [part(np.ones((2, 3)))],
            "parameters": {"weight": part(np.ones((2, 3)))},
            "output": [part(np.ones((2, 3)))],
        },
        "Module.net.fc.Dense.backward.0": {"input": [part(np.ones((2, 3)))], "output": [part(np.ones((2, 3)))]},
        "Module.net.fc.Dense.parameters_grad.0": {"weight": [part(np.ones((2, 3)))]},
    }

    def transposed(values):
        rules = load(f"tensors:\n  - {{match: '*.fc', side: golden, transpose: true, values: {values}}}")
        frame = relaid(ArrayDump(data), rules, Side.GOLDEN).frame
        return [
            key.removeprefix("Module.net.fc.Dense.")
            for key, shape in frame.select("key", "shape").iter_rows()
            if shape == "[3, 2]"
        ]

    assert transposed("weight") == ["forward.0.parameters.weight", "parameters_grad.0.weight"]
    # The gradients of outputs are what a backward is given.
    assert transposed("output") == ["forward.0.output.0", "backward.0.input.0"]
    assert transposed("input.0") == ["forward.0.input.0", "backward.0.output.0"]
    assert transposed("[parameters, grad_output]") == [
        "forward.0.parameters.weight",
        "backward.0.input.0",
        "parameters_grad.0.weight",
    ]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_without_its_padding_of_zeros_a_tensor_has_the_statistics_of_the_rest(tmp_path_factory, rows, padding, seed):
    path = tmp_path_factory.mktemp("l") / "layout.yaml"
    path.write_text(f"tensors:\n  - {{match: '*', side: golden, unpad: {{dim: 0, size: {rows}}}}}")
    common = np.random.default_rng(seed).normal(size=(rows, 3))
    whole = np.concatenate([common, np.zeros((padding, 3))])
    dump = relaid(dump_of(whole), load_layouts(path), Side.GOLDEN)
    (row,) = dump.frame.iter_rows(named=True)
    np.testing.assert_array_equal(read(dump, row), common)
    expected = {"max": common.max(), "min": common.min(), "mean": common.mean(), "norm": np.linalg.norm(common)}
    for name, value in expected.items():
        is_hidden = (name == "max" and value <= 0) or (name == "min" and value >= 0)
        assert row[name] is None if is_hidden else row[name] == pytest.approx(value, rel=1e-9, abs=1e-12)
    # What is zero adds nothing to a sketch, and what is left has the numbers that it had.
    np.testing.assert_allclose(
        np.frombuffer(row["sketch"], "<f4"), np.frombuffer(relaid_sketch(common), "<f4"), rtol=1e-5, atol=1e-6
    )
    assert row["checksum"] is None


def relaid_sketch(values):
    return dump_of(values).frame["sketch"][0]


def test_padding_that_is_declared_to_be_zero_and_is_not_is_an_error(load):
    values = np.ones((4, 2))
    dump, row = changed(load, "unpad: {dim: 0, size: 3}", values)
    with pytest.raises(DumpError, match="the padding beyond 3 of dimension 0 is declared to be zero and is not"):
        read(dump, row)
    dump, row = changed(load, "unpad: {dim: 0, size: 3}, padding: ignored", values)
    np.testing.assert_array_equal(read(dump, row), values[:3])
    assert [row[name] for name in STATISTICS] == [None] * 4


# --- fused modules --------------------------------------------------------------------------------------------------


def module(path, *, weight, bias, x, y, grads):
    return {
        f"Module.{path}.Linear.forward.0": {
            "input_args": [part(x)], "output": [part(y)],
            "parameters": {"weight": part(weight, data_name=f"{path}.w"), "bias": part(bias)},
        },
        f"Module.{path}.Linear.backward.0": {"input": [part(grads[0])], "output": [part(grads[1])]},
        f"Module.{path}.Linear.parameters_grad.0": {"weight": [part(grads[2])]},
    }  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2])
def test_split_projections_are_fused(load, groups):
    sizes = {"q": 8, "k": 4, "v": 4}
    x = RNG.normal(size=(3, 5))
    made = {
        name: {
            "weight": RNG.normal(size=(n, 5)), "bias": RNG.normal(size=n), "x": x, "y": RNG.normal(size=(3, n)),
            "grads": [RNG.normal(size=(3, n)), RNG.normal(size=(3, 5)), RNG.normal(size=(n, 5))],
        }
        for name, n in sizes.items()
    }  # fmt: skip

    def fuse(arrays, axis):
        pieces = [np.split(values, groups, axis) for values in arrays]
        return np.concatenate([np.concatenate(group, axis) for group in zip(*pieces, strict=True)], axis)

    whole = {
        "weight": fuse([m["weight"] for m in made.values()], 0), "bias": fuse([m["bias"] for m in made.values()], 0),
        "x": x, "y": fuse([m["y"] for m in made.values()], -1),
        "grads": [fuse([m["grads"][0] for m in made.values()], -1), sum(m["grads"][1] for m in made.values()),
                  fuse([m["grads"][2] for m in made.values()], 0)],
    }  # fmt: skip
    before = {"Module.layers.0.norm.Norm.forward.0": {"output": [part(x)]}}
    split = dict(itertools.chain(before.items(), *(module(f"layers.0.attn.{n}", **m).items() for n, m in made.items())))
    tensors = {f"layers.0.attn.{name}.w": m["weight"] for name, m in made.items()}
    golden = ArrayDump(before | module("layers.0.attn.qkv", **whole))
    rules = load(f"fused:\n  - {{parts: ['*.q', '*.k', '*.v'], whole: '*.qkv', side: target, groups: {groups}}}")
    dump = relaid(ArrayDump(split, tensors), rules, Side.TARGET, [golden])
    assert sorted(dump.frame["key"].to_list()) == sorted(golden.frame["key"].to_list())
    both = dump.frame.join(golden.frame, on="key", suffix="_golden")
    for row in both.iter_rows(named=True):
        assert row["shape"] == row["shape_golden"], row["key"]
        names = ("mean",) if row["key"].endswith("backward.0.output.0") else STATISTICS
        for name in names:
            assert row[name] == pytest.approx(row[f"{name}_golden"], rel=1e-9, abs=1e-12), (row["key"], name)
    (weight,) = dump.frame.filter(dump.frame["key"].str.ends_with("forward.0.parameters.weight")).iter_rows(named=True)
    np.testing.assert_array_equal(read(dump, weight), whole["weight"])
    assert not dump.notes


def test_parts_that_do_not_fit_together_are_explained(load):
    parts = {f"Module.{n}.Linear.forward.0": {"output": [part(np.ones((i + 1, 2)))]} for i, n in enumerate("qk")}
    golden = ArrayDump({"Module.qk.Linear.forward.0": {"output": [part(np.ones((1, 4)))]}})
    rules = load("fused:\n  - {parts: [q, k], whole: qk, side: target}")
    dump = relaid(ArrayDump(parts), rules, Side.TARGET, [golden])
    assert "their shapes are [1, 2] and [2, 2], and the axis is -1" in dump.frame["failure"][0]


@pytest.mark.parametrize(
    ("whole", "reason"),
    [("*.nothing", MadeAlikeCode.NOT_ON_OTHER_SIDE), ("*.qkv", MadeAlikeCode.NO_SUCH_MODULES)],
)
def test_a_rule_that_fuses_nothing_is_reported(load, whole, reason):
    name = "q" if whole == "*.nothing" else "other"
    data = {f"Module.layers.{n}.Linear.forward.0": {"output": [part(np.ones(2))]} for n in (name, "k")}
    rules = load(f"fused:\n  - {{parts: ['*.q', '*.k'], whole: '{whole}', side: target}}")
    dump = relaid(ArrayDump(data), rules, Side.TARGET, [ArrayDump({})])
    assert dump.notes[0].fields["why"].code is reason
    assert dump.frame.height == 2


# --- views ----------------------------------------------------------------------------------------------------------


@st.composite
def arrays(draw):
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


@settings(deadline=None, max_examples=80)
@given(arrays(), st.data())
@pytest.mark.parametrize("is_stored", [False, True])
def test_views_read_in_pieces_are_those_of_numpy(tmp_path_factory, is_stored, values, data):
    if is_stored:
        path = tmp_path_factory.mktemp("v") / "x.npy"
        np.save(path, values)
        source = open_tensor(path)
    else:
        source = ArraySource(values)
    dims = tuple(data.draw(st.permutations(range(values.ndim))))
    size = data.draw(st.integers(1, 20))
    seen = permuted(source, dims)
    expected = values.transpose(dims)
    assert_reads(seen, expected, size)
    begin = tuple(data.draw(st.integers(0, n - 1)) for n in expected.shape)
    sizes = tuple(data.draw(st.integers(0, n - b)) for n, b in zip(expected.shape, begin, strict=True))
    block = expected[tuple(slice(b, b + n) for b, n in zip(begin, sizes, strict=True))]
    assert_reads(narrowed(seen, begin, sizes), block, size)
    assert_reads(reshaped(seen, (expected.size,)), expected.reshape(-1), size)


def assert_reads(source, expected, size):
    assert source.shape == expected.shape
    chunks = list(source.chunks(size))
    assert max(chunk.size for chunk in chunks) <= size
    np.testing.assert_array_equal(np.concatenate(chunks), expected.reshape(-1))


def test_a_large_tensor_is_copied_to_a_file_to_be_read_in_another_order(monkeypatch):
    monkeypatch.setattr(shard_sources, "_SPOOL_BYTES", 64)
    values = RNG.normal(size=(9, 30, 4))
    assert_reads(permuted(ArraySource(values), (2, 0, 1)), values.transpose(2, 0, 1), 50)


def test_a_part_of_another_size_than_recorded_is_an_error():
    made = assemble((4,), [Held(0, (((0, 2),),)), Held(1, (((2, 4),),))])
    source = Assembled(made, lambda _: ArraySource(np.ones(3)), "float32")
    with pytest.raises(DumpError, match=r"a part of the shape \[2\] is stored with the shape \[3\]"):
        list(source.chunks(10))


# --- ranks ----------------------------------------------------------------------------------------------------------


def units(number, first=0):
    from pathlib import Path

    return [Unit(Path(f"/run/rank{i}"), i) for i in range(first, first + number)]


def planned(groups):
    return [(g.label, [u.rank for u in g.target], [u.rank for u in g.golden]) for g in groups]


def test_ranks_are_grouped_by_replica(load):
    rules = load("parallel: {target: {tp: 2, dp: 2, pp: 2}, golden: {dp: 2}}")
    assert planned(plan_groups(units(8), units(2), rules)) == [
        ("replica0", [0, 1, 4, 5], [0]),
        ("replica1", [2, 3, 6, 7], [1]),
    ]
    rules = load("parallel: {target: {tp: 2, dp: 2, order: dp-tp}, golden: {tp: 2}}")
    assert planned(plan_groups(units(4), units(2), rules)) == [("all ranks", [0, 2], [0, 1])]
    rules = load("parallel: {target: {groups: {tp: [[0, 3], [1, 2]], dp: [[0, 1], [3, 2]]}}}")
    assert planned(plan_groups(units(4), units(1), rules)) == [("all ranks", [0, 3], [0])]


def test_without_a_declaration_ranks_are_paired_by_number():
    assert planned(plan_groups(units(2), units(2))) == [("rank0", [0], [0]), ("rank1", [1], [1])]
    assert planned(plan_groups(units(3), units(1))) == [("all ranks", [0, 1, 2], [0])]
    with pytest.raises(CompareError, match="the target has 4 ranks and the golden run 2; say how they are arranged"):
        plan_groups(units(4), units(2))


def test_sizes_that_do_not_fit_are_reported(load):
    with pytest.raises(CompareError, match="tp 2 x pp 2 makes 4 ranks, but there are 8"):
        plan_groups(units(8), units(1), load("parallel: {target: {tp: 2, pp: 2}}"))
    with pytest.raises(CompareError, match="nothing is declared of them; add 'golden'"):
        plan_groups(units(2), units(2), load("parallel: {target: {tp: 2}}"))


def merge(load, text, by_rank, like=()):
    dumps = [ArrayDump(data, rank=rank) for rank, data in enumerate(by_rank)]
    return merged(dumps, DeclaredRanks(load(text), Side.TARGET), like)


def linear(path, weight, type_name="Linear"):
    return {f"Module.{path}.{type_name}.forward.0": {"parameters": {"weight": part(weight)}}}


def test_built_in_rules_know_layers_by_class_and_by_name(load):
    w = RNG.normal(size=(8, 6))
    cases = {
        "fc": ("ColumnParallelLinear", 0), "out": ("RowParallelLinear", 1), "attn.q_proj": ("Linear", 0),
        "mlp.down_proj": ("Linear", 1), "embed_tokens": ("Embedding", 0),
        "word_embeddings": ("VocabParallelEmbedding", 0),
    }  # fmt: skip
    by_rank = [{}, {}]
    for path, (type_name, dim) in cases.items():
        for rank in range(2):
            by_rank[rank] |= linear(f"m.{path}", np.split(w, 2, dim)[rank], type_name)
    dump = merge(load, "parallel: {target: {tp: 2}}", by_rank)
    assert dump.frame["shape"].to_list() == ["[8, 6]"] * len(cases)
    assert dump.frame["norm"].to_list() == pytest.approx([np.linalg.norm(w)] * len(cases))


def test_a_rule_of_the_file_comes_before_those_that_are_built_in(load):
    by_rank = [linear("q_proj.x", np.ones(2)) | linear("m.q_proj", np.full((4, 2), 1.0)) for _ in range(2)]
    text = "parallel: {target: {tp: 2}, rows: [{match: '*.q_proj', weight: 1}]}"
    dump = merge(load, text, by_rank)
    assert dump.frame["shape"].to_list() == ["[2]", "[4, 4]"]


def test_a_fused_weight_is_put_together_part_by_part(load):
    q, k, v = RNG.normal(size=(8, 2)), RNG.normal(size=(2, 2)), RNG.normal(size=(2, 2))
    tensors = [np.concatenate([np.split(one, 2)[rank] for one in (q, k, v)]) for rank in range(2)]
    dumps = [
        ArrayDump({"Module.qkv.Linear.forward.0": {"parameters": {"weight": part(w, data_name="w")}}}, {"w": w}, rank)
        for rank, w in enumerate(tensors)
    ]
    rules = load("parallel: {target: {tp: 2}, rows: [{match: qkv, weight: 0, ratio: [4, 1, 1]}]}")
    dump = merged(dumps, DeclaredRanks(rules, Side.TARGET))
    (row,) = dump.frame.iter_rows(named=True)
    np.testing.assert_array_equal(read(dump, row), np.concatenate([q, k, v]))


def test_the_shape_of_the_other_side_overrules_a_built_in_rule(load):
    by_rank = [linear("m.q_proj", np.full((4, 2), 1.0)) for _ in range(2)]
    like = ArrayDump(linear("m.q_proj", np.full((4, 2), 1.0)))
    assert merge(load, "parallel: {target: {tp: 2}}", by_rank, [like]).frame["shape"].to_list() == ["[4, 2]"]


@pytest.mark.parametrize(
    ("text", "numbers", "expected"),
    [
        ("{pp: 2}", ([0, 1], [0, 1, 2]), [0, 1, 2, 3, 4]),
        ("{pp: 2}", ([0, 1], [2, 3]), [0, 1, 2, 3]),  # they are numbered through already
        ("{pp: 2, first_layers: [0, 5]}", ([0, 1], [0, 1]), [0, 1, 5, 6]),
    ],
)
def test_layers_of_stages_are_numbered_through(load, text, numbers, expected):
    by_rank = [
        {k: v for n in own for k, v in linear(f"layers.{n}.fc", np.full(2, float(n))).items()} for own in numbers
    ]
    dump = merge(load, f"parallel: {{target: {text}}}", by_rank)
    assert [int(entry.split(".")[2]) for entry in dump.frame["entry"].to_list()] == expected


def test_experts_of_ranks_are_numbered_through_and_all_else_is_one(load):
    def data(rank):
        own = linear("layers.3.mlp.router", np.ones(2))
        for n in range(2):
            own |= linear(f"layers.3.mlp.experts.local_experts.{n}.fc", np.full(2, 2.0 * rank + n))
        return own

    dump = merge(load, "parallel: {target: {ep: 2}}", [data(0), data(1)])
    found = {e.split(".")[-5]: m for e, m in dump.frame.select("entry", "max").iter_rows() if "experts" in e}
    assert found == {"0": 0.0, "1": 1.0, "2": 2.0, "3": 3.0}
    assert dump.frame.height == 5
    assert not dump.notes


def test_calls_of_stages_are_counted_and_ordered_as_by_one_process(load):
    def stage(number):
        data, parents = {}, {}
        for micro in range(2):
            root = f"Module.Stage.forward.{micro}"
            data[f"Functional.linear.{micro}.forward"] = {"output": [part(np.full(2, 10.0 * micro + number))]}
            parents[f"Functional.linear.{micro}.forward"] = root
            data[root] = {"input_args": [part(np.full(2, float(number)))], "output": [part(np.full(2, 5.0 + number))]}
        for micro in range(2):
            data[f"Functional.linear.{micro}.backward"] = {"output": [part(np.full(2, -10.0 * micro - number))]}
        return ArrayDump(data, rank=number, parents=parents)

    dump = merged([stage(0), stage(1)], DeclaredRanks(load("parallel: {target: {pp: 2}}"), Side.TARGET))
    rows = dump.frame.select("key", "max").rows()
    assert rows == [
        ("Functional.linear.0.forward.output.0", 0.0),
        ("Functional.linear.1.forward.output.0", 1.0),
        ("Module.Stage.forward.0.input.0", 0.0),
        ("Module.Stage.forward.0.output.0", 6.0),
        ("Functional.linear.1.backward.output.0", -1.0),
        ("Functional.linear.0.backward.output.0", 0.0),
        ("Functional.linear.2.forward.output.0", 10.0),
        ("Functional.linear.3.forward.output.0", 11.0),
        ("Module.Stage.forward.1.input.0", 0.0),
        ("Module.Stage.forward.1.output.0", 6.0),
        ("Functional.linear.3.backward.output.0", -11.0),
        ("Functional.linear.2.backward.output.0", -10.0),
    ]
    assert dump.parents["Functional.linear.3.forward"] == "Module.Stage.forward.1"
