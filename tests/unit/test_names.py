"""The grammar of entry names: parse and format are each other's inverse."""

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe_core import names
from msprobe_core.errors import EntryNameError
from msprobe_core.model import Phase, Role, Site, SiteKind

words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
parts = st.from_regex(r"[A-Za-z0-9_]{1,8}", fullmatch=True)
indices = st.integers(0, 10**6)
module_sites = st.builds(
    Site,
    kind=st.just(SiteKind.MODULE),
    prefix=st.sampled_from(["Module", "Cell"]),
    path=st.lists(parts, max_size=6).map(".".join),
    type_name=words,
    phase=st.sampled_from([Phase.FORWARD, Phase.BACKWARD, Phase.PARAMETERS_GRAD]),  # a saved value has no site
    index=indices,
)
later_passes = st.integers(1, 99)
api_sites = st.builds(
    Site,
    kind=st.just(SiteKind.API),
    prefix=st.sampled_from(sorted(names.API_PREFIXES)) | words.filter(lambda word: word not in names.MODULE_PREFIXES),
    path=st.lists(parts, min_size=1, max_size=2).map(".".join),
    type_name=st.just(""),
    phase=st.sampled_from([Phase.FORWARD, Phase.BACKWARD]),
    index=indices,
)


@given(module_sites | api_sites)
def test_every_site_survives_its_name(site):
    assert names.parse_entry(names.format_entry(site)) == site


@given(module_sites | api_sites, later_passes)
def test_a_later_pass_survives_its_name_and_is_of_the_same_call(site, backward_pass):
    later = msgspec.structs.replace(site, phase=Phase.BACKWARD, backward_pass=backward_pass)
    name = names.format_entry(later)
    assert names.parse_entry(name) == later
    assert names.is_backward(name)
    forward = msgspec.structs.replace(site, phase=Phase.FORWARD)
    assert names.forward_of(name) == names.format_entry(forward)
    assert names.stem_of(name) == names.stem_of(names.format_entry(forward))
    # What takes names apart by the place of a part alone, as other tools do, finds phase and number.
    parts = name.split(".")
    assert {parts[-1], parts[-2]} == {"backward", str(site.index)}


@pytest.mark.parametrize(
    "name",
    ["Functional.linear-pass0.0.backward", "Functional.linear-pass01.0.backward", "Functional.linear-pass.0.backward",
     "Functional.-pass1.0.backward", "Functional.linear-pass1.0.forward", "Module.a.A-pass1.forward.0",
     "Module.a.A-pass1.parameters_grad.0", "Module.a-pass1.A.backward.0"],
)  # fmt: skip
def test_what_only_looks_like_a_later_pass_is_a_name(name):
    site = names.parse_entry(name)
    assert site.backward_pass == 0
    assert names.format_entry(site) == name


@given(module_sites | api_sites, st.integers(0, 3))
def test_columns_are_taken_apart_as_names_are(site, backward_pass):
    site = msgspec.structs.replace(site, backward_pass=backward_pass if site.phase is Phase.BACKWARD else 0)
    name = names.format_entry(site)
    pattern = names.MODULE_CALL if site.kind is SiteKind.MODULE else names.API_CALL
    found = pl.Series([name])
    assert found.str.extract(pattern, 1).to_list() == [names.stem_of(name)]
    assert found.str.extract(pattern, 2).to_list() == [str(site.index)]


@given(st.text(max_size=40) | st.lists(parts | st.sampled_from(["forward", "backward", "0", "07", ""])).map(".".join))
def test_what_parses_formats_back(text):
    try:
        site = names.parse_entry(text)
    except EntryNameError:
        return
    assert names.format_entry(site) == text


@pytest.mark.parametrize(
    ("name", "kind", "prefix", "path", "type_name", "phase", "index"),
    [
        ("Functional.linear.3.backward", SiteKind.API, "Functional", "linear", "", Phase.BACKWARD, 3),
        ("Tensor.__add__.7.forward", SiteKind.API, "Tensor", "__add__", "", Phase.FORWARD, 7),
        ("Primitive.matmul.MatMul.0.forward", SiteKind.API, "Primitive", "matmul.MatMul", "", Phase.FORWARD, 0),
        ("Distributed.all_reduce.0.forward", SiteKind.API, "Distributed", "all_reduce", "", Phase.FORWARD, 0),
        ("Module.layers.0.mlp.MLP.forward.0", SiteKind.MODULE, "Module", "layers.0.mlp", "MLP", Phase.FORWARD, 0),
        ("Module.LlamaForCausalLM.forward.2", SiteKind.MODULE, "Module", "", "LlamaForCausalLM", Phase.FORWARD, 2),
        ("Module.1.0.Linear.forward.0", SiteKind.MODULE, "Module", "1.0", "Linear", Phase.FORWARD, 0),
        ("Cell.fc.Dense.backward.1", SiteKind.MODULE, "Cell", "fc", "Dense", Phase.BACKWARD, 1),
        ("Module.head.Linear.parameters_grad.0", SiteKind.MODULE, "Module", "head", "Linear", Phase.PARAMETERS_GRAD, 0),
    ],
)
def test_names_of_the_grammar(name, kind, prefix, path, type_name, phase, index):
    site = names.parse_entry(name)
    assert (site.kind, site.prefix, site.path, site.type_name) == (kind, prefix, path, type_name)
    assert (site.phase, site.index) == (phase, index)
    assert names.format_entry(site) == name


@pytest.mark.parametrize(
    "text",
    ["", "Functional", "Functional.linear.forward", "Functional.linear.x.forward", "Functional.linear.0.sideways",
     "Functional.linear.00.forward", "Functional..0.forward", "Module.forward.0", "Module.a.B.0.forward",
     "Module.a.B.forward.-1", "Functional.linear.٣.forward", "Module..forward.0", ".linear.0.forward"],
)  # fmt: skip
def test_other_strings_are_refused_with_an_example(text):
    with pytest.raises(EntryNameError, match=r"expected for example 'Functional\.linear\.0\.forward'"):
        names.parse_entry(text)


def test_rows_and_files():
    entry = "Torch.cat.0.forward"
    assert names.row_name(entry, Role.INPUT, "0.1") == "Torch.cat.0.forward.input.0.1"
    assert names.row_name(entry, Role.OUTPUT, "0") == "Torch.cat.0.forward.output.0"
    gradients = "Module.head.Linear.parameters_grad.0"
    assert names.row_name(gradients, Role.PARAMETERS_GRAD, "weight") == "Module.head.Linear.parameters_grad.0.weight"
    module = "Module.a.A.forward.0"
    assert names.row_name(module, Role.PARAMETERS, "bias") == "Module.a.A.forward.0.parameters.bias"
    assert names.tensor_file_stem(module, "kwargs", "mask") == "Module.a.A.forward.0.kwargs.mask"
    assert names.tensor_file_stem(gradients, "", "bias") == "Module.head.Linear.parameters_grad.0.bias"
    assert names.row_of_file("Module.a.A.forward.0.kwargs.mask.pt") == "Module.a.A.forward.0.kwargs.mask"


def test_related_entries():
    assert names.forward_of("Functional.linear.3.backward") == "Functional.linear.3.forward"
    assert names.forward_of("Module.a.A.backward.1") == "Module.a.A.forward.1"
    assert names.forward_of("optimizer") is None
    assert names.backward_of_parameters("Module.a.A.parameters_grad.1") == "Module.a.A.backward.1"
    assert names.backward_of_parameters("Module.a.A.forward.1") is None
    assert names.backward_of_parameters("clip_grad") is None


def test_saved_values_have_names_of_their_own():
    assert names.saved_entry("x", 3) == "x.3.debug"
    assert names.is_saved("a.b.0.debug")
    assert not names.is_saved("Functional.debug.0.forward")
    assert [names.path_within(path) for path in ("0", "0.k", "0.k.1")] == ["", "k", "k.1"]
    assert names.tensor_file_stem("x.0.debug", "", "") == "x.0.debug"
