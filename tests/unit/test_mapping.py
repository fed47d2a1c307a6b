"""Mapping files, and the calls that they pair."""

import pytest
from dumps import api, tensor, write_dump
from programs import align_dumps, lone_in, pairs_in

from msprobe_core.compare.mapping import ApiRule, Matching, Rule
from msprobe_core.compare.mapping_files import read_matching
from msprobe_core.compare.pairing_codes import PairingCode
from msprobe_core.errors import ConfigError
from msprobe_core.findings import Finding

X = tensor([1.0, -2.0])


def call(*inputs, output=X, **kwargs):
    return api(*(inputs or (X,)), output=output, **kwargs)


@pytest.fixture
def align(tmp_path):
    """Align two dumps with a file of names: ``(target, golden, option=text)``."""

    def align(target, golden, *, frameworks=("pytorch", "pytorch"), parents=(None, None), **options):
        sides = [
            write_dump(tmp_path / name, data, framework=framework, parents=nesting)
            for name, data, framework, nesting in zip("tg", (target, golden), frameworks, parents, strict=True)
        ]
        for name, text in options.items():
            if isinstance(text, str):
                (tmp_path / f"{name}.yaml").write_text(text)
                options[name] = tmp_path / f"{name}.yaml"
        return align_dumps(*sides, read_matching(**options))

    return align


def row_pairs(alignment):
    return dict(alignment.rows.filter(match="both").select("name_target", "name_golden").rows())


# --- rows -------------------------------------------------------------------------------------------------------


def test_rows_that_the_user_pairs(align):
    """The example of published tutorials: row names on both sides."""
    target = {"Functional.flash_attention_score.4.forward": call(), "Tensor.mul.0.forward": call()}
    golden = {"NPU.npu_fusion_attention.4.forward": call(), "Tensor.mul.0.forward": call()}
    alignment = align(
        target, golden,
        data_mapping="Functional.flash_attention_score.4.forward.input.0: NPU.npu_fusion_attention.4.forward.input.0\n",
    )  # fmt: skip
    assert row_pairs(alignment) == {
        "Functional.flash_attention_score.4.forward.input.0": "NPU.npu_fusion_attention.4.forward.input.0",
        "Tensor.mul.0.forward.input.0": "Tensor.mul.0.forward.input.0",
        "Tensor.mul.0.forward.output.0": "Tensor.mul.0.forward.output.0",
    }
    assert lone_in(alignment, "target") == ["Functional.flash_attention_score.4.forward"]
    assert lone_in(alignment, "golden") == ["NPU.npu_fusion_attention.4.forward"]
    assert not alignment.notes


def test_a_golden_row_is_taken_from_the_row_that_had_it(align):
    dump = {f"Tensor.mul.{i}.forward": call() for i in range(3)}
    alignment = align(dump, dump, data_mapping="Tensor.mul.2.forward.input.0: Tensor.mul.1.forward.input.0")
    pairs = row_pairs(alignment)
    assert pairs["Tensor.mul.2.forward.input.0"] == "Tensor.mul.1.forward.input.0"
    assert "Tensor.mul.1.forward.input.0" not in pairs
    golden = alignment.rows["name_golden"].drop_nulls()
    assert golden.is_unique().all()
    assert set(golden) == {f"Tensor.mul.{i}.forward.{part}.0" for i in range(3) for part in ("input", "output")}


def test_a_golden_row_that_is_wanted_twice_is_said(align):
    dump = {f"Tensor.mul.{i}.forward": call() for i in range(3)}
    lines = [f"Tensor.mul.{i}.forward.input.0: Tensor.mul.1.forward.input.0" for i in (0, 2)]
    alignment = align(dump, dump, data_mapping="\n".join(lines))
    assert row_pairs(alignment)["Tensor.mul.0.forward.input.0"] == "Tensor.mul.1.forward.input.0"
    assert row_pairs(alignment)["Tensor.mul.2.forward.input.0"] == "Tensor.mul.1.forward.input.0"
    (note,) = alignment.notes
    fields = {"count": 1, "first": "Tensor.mul.1.forward.input.0"}
    assert note == Finding(PairingCode.ROW_PAIRED_TWICE, fields=fields)


def test_a_row_mapped_to_nothing_has_no_partner(align):
    dump = {f"Tensor.mul.{i}.forward": call() for i in range(2)}
    alignment = align(dump, dump, data_mapping="Tensor.mul.1.forward.input.0: null\nTensor.mul.0.forward.output.0: ~\n")
    assert row_pairs(alignment) == {
        f"Tensor.mul.{i}.forward.{part}.0": f"Tensor.mul.{i}.forward.{part}.0"
        for i, part in ((0, "input"), (1, "output"))
    }
    assert len(alignment.rows.filter(match="only golden")) == 2
    assert not alignment.notes


def test_rows_that_are_in_no_dump_are_said(align):
    dump = {"Tensor.mul.0.forward": call()}
    lines = "Tensor.mul.7.forward.input.0: Tensor.mul.0.forward.input.0\nTensor.mul.0.forward.input.0: a.0.debug\n"
    alignment = align(dump, dump, data_mapping=lines)
    (note,) = alignment.notes
    counts = {"wanted": "a row of each dump", "count": 2, "total": 2, "first": "'Tensor.mul.7.forward.input.0'"}
    assert note.code is PairingCode.NAMES_UNUSED
    assert {name: note.fields[name] for name in counts} == counts
    assert note.fields["where"].endswith("data_mapping.yaml, line 1")
    assert len(row_pairs(alignment)) == 2


# --- modules ----------------------------------------------------------------------------------------------------

CELLS = {"Cell.x.fc1.Dense.forward.0": call(), "Cell.x.fc1.Dense.backward.0": {"input": [X], "output": [X]}}
MODULES = {"Module.x.fc1.Linear.forward.0": call(), "Module.x.fc1.Linear.backward.0": {"input": [X], "output": [X]}}


@pytest.mark.parametrize("mapping", [True, "fc1.Dense: fc1.Linear", "Cell.x.fc1.Dense: Module.x.fc1.Linear"])
def test_cells_are_modules(align, mapping):
    alignment = align(CELLS, MODULES, cell_mapping=mapping, frameworks=("mindspore", "pytorch"))
    assert pairs_in(alignment) == dict(zip(CELLS, MODULES, strict=True))
    assert set(alignment.rows["match"]) == {"both"}


@pytest.mark.parametrize(
    ("mapping", "own", "other"),
    [
        ("attn.Attn: attention.Attention", "a.attn.Attn", "a.attention.Attention"),
        ("attn.Attn: b.Attention\na.attn.Attn: c.Attention", "a.attn.Attn", "c.Attention"),  # the exact name first
        ("n.A: m.A\na.n: a.q", "a.n.A", "a.m.A"),  # then the first that fits
        ("c.Dense: no.No\nfc.Dense: x.Linear", "a.fc.Dense", "a.x.Linear"),  # whole parts of names before others
        ("a.b.C: a.d.C", "b.C", "b.C"),
        ("Dense: Linear", "head.MyDense", "head.MyLinear"),
    ],
)
def test_which_rule_for_modules_counts(align, mapping, own, other):
    target = {f"Module.{own}.forward.0": call(), "Module.z.Z.forward.0": call()}
    golden = {f"Module.{other}.forward.0": call(), "Module.z.Z.forward.0": call()}
    alignment = align(target, golden, cell_mapping=mapping)
    assert pairs_in(alignment) == dict(zip(target, golden, strict=True))


@pytest.mark.parametrize("options", [{"cell_mapping": "fc: fc"}, {"cell_mapping": True}, {"api_mapping": True}])
def test_a_dump_against_itself_with_a_mapping_that_does_nothing(align, options):
    """Gradients run backwards: their numbers are those of their forward calls, and no others."""
    dump = {f"Tensor.mul.{i}.forward": call(tensor([float(i)])) for i in range(4)}
    dump |= {f"Module.fc.Linear.forward.{i}": call(tensor([float(i)])) for i in range(3)}
    dump |= {f"Module.fc.Linear.backward.{i}": {"input": [X], "output": [X]} for i in (2, 1, 0)}
    dump |= {f"Tensor.mul.{i}.backward": {"input": [X], "output": [X]} for i in (3, 2, 1, 0)}
    dump["Module.fc.Linear.parameters_grad.0"] = {"weight": [X]}
    alignment = align(dump, dump, **options)
    assert pairs_in(alignment) == {entry: entry for entry in dump}
    assert set(alignment.rows["match"]) == {"both"}


def test_a_rule_that_fits_nothing_is_said(align):
    alignment = align(CELLS, MODULES, cell_mapping="fc1.Dense: fc1.Linear\n\nfc9.Dense: fc9.Linear")
    (note,) = alignment.notes
    counts = {"wanted": "anything in the target", "count": 1, "total": 2, "first": "'fc9.Dense'"}
    assert {name: note.fields[name] for name in counts} == counts
    assert note.fields["where"].endswith("cell_mapping.yaml, line 3")


# --- APIs -------------------------------------------------------------------------------------------------------

LIST = """
- ms_api: Functional.flash_attention_score
  pt_api: NPU.npu_fusion_attention
  ms_args: [0, 1, head]
  pt_args: [2, 0, head_num]
  ms_output: [0]
  pt_output: [1]
"""
NESTED = """
Functional.flash_attention_score:
  pt_api: NPU.npu_fusion_attention
  ms_args: [0, 1, head]
  pt_args: [2, 0, head_num]
  ms_outputs: [0]
  pt_outputs: [1]
"""
FORMS = {"list": LIST, "one object": LIST.replace("- ", "  ", 1), "nested": NESTED}


@pytest.mark.parametrize("form", FORMS)
def test_arguments_and_results_in_another_order(align, form):
    target = {"Functional.flash_attention_score.0.forward": call(X, X, X, head={"type": "int", "value": 2})}
    golden = {"NPU.npu_fusion_attention.0.forward": call(X, X, X, head_num={"type": "int", "value": 2})}
    golden["NPU.npu_fusion_attention.0.forward"]["output"] = [X, X]
    target["Functional.flash_attention_score.0.backward"] = {"input": [X], "output": [X, X, X]}
    golden["NPU.npu_fusion_attention.0.backward"] = {"input": [X, X], "output": [X, X, X]}
    alignment = align(target, golden, api_mapping=FORMS[form])
    own, other = "Functional.flash_attention_score.0.", "NPU.npu_fusion_attention.0."
    assert row_pairs(alignment) == {
        f"{own}forward.input.0": f"{other}forward.input.2",
        f"{own}forward.input.1": f"{other}forward.input.0",
        f"{own}forward.input.head": f"{other}forward.input.head_num",
        f"{own}forward.output.0": f"{other}forward.output.1",
        f"{own}backward.input.0": f"{other}backward.input.1",
        f"{own}backward.output.0": f"{other}backward.output.2",
        f"{own}backward.output.1": f"{other}backward.output.0",
    }
    lone = alignment.rows.filter(match="only target")["name_target"].to_list()
    assert lone == [f"{own}forward.input.2", f"{own}backward.output.2"]


def test_flat_names_of_apis(align):
    """Calls are renumbered if two names of the target map to one golden name."""
    target = {
        "Functional.dense.0.forward": call(),
        "Functional.linear.0.forward": call(),
        "Functional.dense.1.forward": call(),
    }
    golden = {f"Functional.linear.{i}.forward": call() for i in range(3)}
    alignment = align(target, golden, api_mapping="Functional.dense: Functional.linear")
    assert pairs_in(alignment) == dict(zip(target, golden, strict=True))


def test_a_file_that_was_made_for_the_other_direction(align):
    target, golden = {"Torch.eq.0.forward": call()}, {"Functional.equal.0.forward": call()}
    alignment = align(target, golden, api_mapping="Functional.equal: Torch.eq")
    assert pairs_in(alignment) == {"Torch.eq.0.forward": "Functional.equal.0.forward"}
    assert alignment.notes[0].code is PairingCode.TURNED


# --- layers -----------------------------------------------------------------------------------------------------

LAYERS = """
TopLayer: {network_with_loss: module}
VocabParallelEmbedding: {logical_or: __or__, reduce_from_mp_region.all_reduce: all_reduce}
ParallelTransformerLayer: {attention: self_attention}
ParallelAttention: {flash_attention_score: core_attention_flash.npu_fusion_attention}
FusedRMSNorm: {RmsNorm: npu_rms_norm}
"""


def nested(calls):
    """Return a dump and its nesting, of lines ``entry < parent``."""
    names = [line.split(" < ") for line in calls.strip().splitlines()]
    return {name.strip(): call() for name, *_ in names}, {name.strip(): (p[0] if p else None) for name, *p in names}


TARGET = nested("""
Mint.logical_or.0.forward < Cell.network_with_loss.embed.VocabParallelEmbedding.forward.0
Mint.cos.0.forward < Cell.network_with_loss.embed.VocabParallelEmbedding.forward.0
MintDistributed.all_reduce.0.forward < Cell.network_with_loss.embed.reduce_from_mp_region.Reduce.forward.0
Cell.network_with_loss.embed.reduce_from_mp_region.Reduce.forward.0 < Cell.network_with_loss.embed.VocabParallelEmbedding.forward.0
Cell.network_with_loss.embed.VocabParallelEmbedding.forward.0 < Cell.network_with_loss.Net.forward.0
Primitive.norm.RmsNorm.0.forward < Cell.network_with_loss.layers.0.norm.FusedRMSNorm.forward.0
Cell.network_with_loss.layers.0.norm.FusedRMSNorm.forward.0 < Cell.network_with_loss.layers.0.ParallelTransformerLayer.forward.0
Mint.cos.1.forward < Cell.network_with_loss.layers.0.attention.ParallelAttention.forward.0
Functional.flash_attention_score.0.forward < Cell.network_with_loss.layers.0.attention.ParallelAttention.forward.0
Cell.network_with_loss.layers.0.attention.ParallelAttention.forward.0 < Cell.network_with_loss.layers.0.ParallelTransformerLayer.forward.0
Tensor.__add__.0.forward < Cell.network_with_loss.layers.0.ParallelTransformerLayer.forward.0
Cell.network_with_loss.layers.0.ParallelTransformerLayer.forward.0 < Cell.network_with_loss.Net.forward.0
Cell.network_with_loss.Net.forward.0
""")  # noqa: E501
GOLDEN = nested("""
Tensor.__or__.0.forward < Module.module.embed.Embedding.forward.0
Torch.cos.0.forward < Module.module.embed.Embedding.forward.0
Distributed.all_reduce.0.forward < Module.module.embed.Embedding.forward.0
Module.module.embed.Embedding.forward.0 < Module.module.Model.forward.0
NPU.npu_rms_norm.0.forward < Module.module.layers.0.norm.RMSNorm.forward.0
Module.module.layers.0.norm.RMSNorm.forward.0 < Module.module.layers.0.Layer.forward.0
Torch.cos.1.forward < Module.module.layers.0.self_attention.Attention.forward.0
NPU.npu_fusion_attention.0.forward < Module.module.layers.0.self_attention.core_attention_flash.Flash.forward.0
Module.module.layers.0.self_attention.core_attention_flash.Flash.forward.0 < Module.module.layers.0.self_attention.Attention.forward.0
Module.module.layers.0.self_attention.Attention.forward.0 < Module.module.layers.0.Layer.forward.0
Torch.mul.0.forward < Module.module.layers.0.Layer.forward.0
Module.module.layers.0.Layer.forward.0 < Module.module.Model.forward.0
Module.module.Model.forward.0
""")  # noqa: E501


def test_layers(align):
    alignment = align(
        TARGET[0], GOLDEN[0], parents=(TARGET[1], GOLDEN[1]), layer_mapping=LAYERS, frameworks=("mindspore", "pytorch")
    )
    pairs = pairs_in(alignment)
    assert {
        "Mint.logical_or.0.forward": "Tensor.__or__.0.forward",
        "Mint.cos.0.forward": "Torch.cos.0.forward",
        "MintDistributed.all_reduce.0.forward": "Distributed.all_reduce.0.forward",
        "Primitive.norm.RmsNorm.0.forward": "NPU.npu_rms_norm.0.forward",
        "Mint.cos.1.forward": "Torch.cos.1.forward",
        "Functional.flash_attention_score.0.forward": "NPU.npu_fusion_attention.0.forward",
        "Cell.network_with_loss.layers.0.attention.ParallelAttention.forward.0":
            "Module.module.layers.0.self_attention.Attention.forward.0",
    }.items() <= pairs.items()  # fmt: skip
    assert lone_in(alignment, "target") == [
        "Cell.network_with_loss.embed.reduce_from_mp_region.Reduce.forward.0", "Tensor.__add__.0.forward",
    ]  # fmt: skip
    assert lone_in(alignment, "golden") == [
        "Module.module.layers.0.self_attention.core_attention_flash.Flash.forward.0", "Torch.mul.0.forward",
    ]  # fmt: skip


def number(value):
    return {"type": type(value).__name__, "value": value}


MASK = tensor([1.0, 0.0, 1.0])
ATTENTION = {
    "by keyword": (
        call(X, X, X, head_num=number(2), attn_mask=MASK, scalar_value=number(0.5), pre_tokens=number(9),
             next_tokens=number(0), input_layout=number("BSH")),
        call(X, X, X, number(2), number("BSH"), pse=None, padding_mask=None, atten_mask=MASK, scale=number(0.5),
             pre_tockens=number(9), next_tockens=number(0)),
    ),
    "by place": (
        call(X, X, X, number(2), None, None, None, MASK, scalar_value=number(0.5), input_layout=number("BSH")),
        call(X, X, X, number(2), number("BSH"), None, None, MASK, number(0.5)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("style", ATTENTION)
def test_arguments_of_attention_with_a_mask(align, style):
    own, other = "Functional.flash_attention_score.0.forward", "NPU.npu_fusion_attention.0.forward"
    sides = [dict(TARGET[0]), dict(GOLDEN[0])]
    for side, entry, record in zip(sides, (own, other), ATTENTION[style], strict=True):
        side[entry] = record
    alignment = align(*sides, parents=(TARGET[1], GOLDEN[1]), layer_mapping=LAYERS, frameworks=("mindspore", "pytorch"))
    pairs = {
        target.removeprefix(f"{own}."): golden.removeprefix(f"{other}.")
        for target, golden in row_pairs(alignment).items()
        if target.startswith(own)
    }
    expected = {f"input.{i}": f"input.{i}" for i in range(3)} | {"output.0": "output.0"}
    if style == "by keyword":
        expected |= {
            "input.head_num": "input.3", "input.input_layout": "input.4", "input.attn_mask": "input.atten_mask",
            "input.scalar_value": "input.scale", "input.pre_tokens": "input.pre_tockens",
            "input.next_tokens": "input.next_tockens",
        }  # fmt: skip
    else:
        expected |= {"input.3": "input.3", "input.input_layout": "input.4", "input.4": "input.5", "input.6": "input.6",
                     "input.7": "input.7", "input.scalar_value": "input.8"}  # fmt: skip
    assert pairs == expected
    rows = alignment.rows.filter(entry=own)
    assert rows.filter(match="only target").height == (0 if style == "by keyword" else 1)  # drop_mask


def test_the_longest_child_path_counts(align):
    target = nested("Module.a.b.B.forward.0 < Module.Net.forward.0\nModule.a.A.forward.0 < Module.Net.forward.0")
    golden = nested("Module.q.B.forward.0 < Module.Net.forward.0\nModule.p.A.forward.0 < Module.Net.forward.0")
    alignment = align(target[0], golden[0], parents=(target[1], golden[1]), layer_mapping="TopLayer: {a: p, a.b: q}")
    assert pairs_in(alignment) == dict(zip(target[0], golden[0], strict=True))


def test_layers_of_one_framework_without_a_file(align):
    """The same API under another prefix, in the same layer, is the same call."""
    target = nested("Torch.relu.0.forward < Module.fc.F.forward.0\nModule.fc.F.forward.0")
    golden = nested("Functional.relu.0.forward < Module.fc.F.forward.0\nModule.fc.F.forward.0")
    alignment = align(target[0], golden[0], parents=(target[1], golden[1]), layer_mapping=True)
    assert pairs_in(alignment) == dict(zip(target[0], golden[0], strict=True))


def test_layers_need_the_nesting(align):
    notes = align({"Torch.relu.0.forward": call()}, {"Functional.relu.0.forward": call()}, layer_mapping=True).notes
    assert [note.code for note in notes] == [PairingCode.NO_NESTING] * 2


# --- files ------------------------------------------------------------------------------------------------------

ROW = "Tensor.a.0.forward.input.0"
WRONG = {
    "not YAML": ("data_mapping", "a: [", "line 1: is not YAML"),
    "empty": ("data_mapping", "", "is empty; expected are row names"),
    "a list": ("cell_mapping", "[a, b]", "line 1: is a list; expected are modules as path and class"),
    "text": ("api_mapping", "hello", "line 1: is text; expected are APIs"),
    "no row": ("data_mapping", f"{ROW}: {ROW}\nfc: fc", "line 2: 'fc' is no row; expected are row names"),
    "a key twice": ("data_mapping", f"{ROW}: {ROW}\n{ROW}: {ROW}", f"line 2: '{ROW}' stands there already, in line 1"),
    "no name": ("cell_mapping", "a.B:", "line 1: a name is expected after the colon, and it is empty"),
    "an object": ("cell_mapping", "a.B: {c: d}", "line 1: a name is expected after the colon, and it is an object"),
    "a key that is a list": ("cell_mapping", "? [a]\n: b", "line 1: a name is expected before the colon"),
    "no API": ("api_mapping", "linear: Torch.mm", "line 1: 'linear' is no API"),
    "a call": ("api_mapping", "Torch.mm.0.forward: Torch.mm", "without the call's number"),
    "a number": ("api_mapping", "Torch.mm.0: Torch.mm", "without the call's number"),
    "an unknown field": ("api_mapping", "- ms_api: A.b\n  py_api: A.c", "line 2: there is no 'py_api'; known are"),
    "a missing field": ("api_mapping", "- ms_api: A.b", "line 1: lacks 'pt_api'"),
    "lists that differ": (
        "api_mapping", "- {ms_api: A.b, pt_api: A.c, ms_args: [0], pt_args: [0, 1]}", "are paired in order",
    ),
    "one list": ("api_mapping", "- {ms_api: A.b, pt_api: A.c, ms_args: [0]}", "both are needed"),
    "an element twice": (
        "api_mapping", "- {ms_api: A.b, pt_api: A.c, ms_args: [0, 0], pt_args: [0, 1]}", "has an element twice",
    ),
    "no list": ("api_mapping", "- {ms_api: A.b, pt_api: A.c, ms_args: 0, pt_args: 0}", "line 1: a list is expected"),
    "an API twice": ("api_mapping", "- {ms_api: A.b, pt_api: A.c}\n- {ms_api: A.b, pt_api: A.d}", "'A.b' stands"),
    "layers without children": ("layer_mapping", "Attention: core", "line 1: is text; expected are classes of layers"),
    "children that are no names": ("layer_mapping", "A: {b: [c]}", "line 1: a name is expected after the colon"),
    "anchors that go round": ("layer_mapping", "A: &a {b: *a}", "line 1: is not YAML (an alias stands within what"),
    "bytes": ("data_mapping", b"\xff\xfe\x00", "is not UTF-8 text"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_is_wrong(tmp_path, case):
    option, content, message = WRONG[case]
    path = tmp_path / "names.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as raised:
        read_matching(**{option: path})
    assert str(raised.value).startswith(str(path))
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["missing.yaml", "", "a\0b"])
def test_a_file_that_cannot_be_read(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_matching(data_mapping=tmp_path / name)


def test_what_the_options_ask_for(tmp_path):
    assert read_matching() == Matching()
    assert read_matching(cell_mapping=True, api_mapping="", layer_mapping=True) == Matching(
        cells=(), apis=(), layers={}
    )
    path = tmp_path / "names.yaml"
    path.write_text("A.b: A.c")
    assert read_matching(api_mapping=str(path)).apis == [ApiRule("A.b", "A.c", f"{path}, line 1")]
    assert read_matching(cell_mapping=path, is_fuzzy=True) == Matching(
        is_fuzzy=True, cells=[Rule("A.b", "A.c", f"{path}, line 1")]
    )
