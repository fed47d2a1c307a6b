"""Which differences of two configurations explain a located fault."""

from __future__ import annotations

import json

import pytest

from msprobe_core.config_check.differences import Difference, Section, Severity
from msprobe_core.errors import CompareError
from msprobe_core.findings import Language, noted, worded
from msprobe_core.locate.explain import LocatedFault, explains, ranked, read_located, topics_of
from msprobe_core.locate.result import Degree, FaultKind
from msprobe_core.model import Phase

LAYER = ("Module.model.layers.3.LlamaDecoderLayer.forward.0", "Module.model.LlamaModel.forward.0")
ATTENTION = ("Module.model.layers.3.self_attn.LlamaAttention.forward.0", *LAYER)


def fault(entry, parents=(), kind=FaultKind.COMPUTATION, phase=Phase.FORWARD, ranks=(), seen_at=None):
    return LocatedFault(kind=kind, entry=entry, phase=phase, parents=parents, ranks=ranks, seen_at=seen_at)


FAULTS = {
    "rope": fault(
        "Tensor.float.0.forward",
        ("Module.model.rotary_emb.LlamaRotaryEmbedding.forward.0", *LAYER[1:]),
        FaultKind.OUTSIDE,
    ),
    "rope, modules only": fault("Module.model.rotary_emb.LlamaRotaryEmbedding.forward.0", LAYER[1:]),
    "attention": fault("Functional.scaled_dot_product_attention.3.forward", ATTENTION),
    "attention, modules only": fault("Module.model.layers.3.self_attn.LlamaAttention.forward.0", LAYER),
    "a projection in attention": fault(
        "Functional.linear.9.forward", ("Module.model.layers.3.self_attn.q_proj.Linear.forward.0", *ATTENTION)
    ),
    "norm": fault(
        "Tensor.add.12.forward",
        ("Module.model.layers.3.input_layernorm.LlamaRMSNorm.forward.0", *LAYER),
        FaultKind.EPSILON,
    ),
    "dropout": fault("Functional.dropout.2.forward", LAYER, FaultKind.RANDOMNESS),
    "batch": fault("Module.model.embed_tokens.Embedding.forward.0", LAYER[1:], FaultKind.INPUT_DATA),
    "optimizer": fault("Torch._foreach_addcdiv_.0.forward", ("optimizer",), FaultKind.OPTIMIZER),
    "initial weight": fault(
        "Functional.linear.9.forward",
        ("Module.model.layers.3.self_attn.q_proj.Linear.forward.0", *ATTENTION),
        FaultKind.PARAMETER,
    ),
    "communication": fault("Distributed.all_reduce.0.forward", (), FaultKind.COMMUNICATION),
    "loss": fault("Functional.cross_entropy.0.forward", LAYER[1:]),
    "loss inside of a model": fault(
        "Module.LlamaForCausalLM.forward.0", kind=FaultKind.SCALE, seen_at="Functional.cross_entropy.0.forward"
    ),
    "loss scaling": fault("Tensor.__mul__.35.forward", kind=FaultKind.OUTSIDE),
    "backward": fault("Functional.silu.2.backward", (), FaultKind.GRADIENT, Phase.BACKWARD),
    "cast": fault("Tensor.to.2.forward", LAYER, FaultKind.PRECISION),
}


def difference(section, path, severity=Severity.ERROR, **more):
    fields = {"target": 1, "golden": 2} | more
    return Difference(section=section, path=path, severity=severity, finding=noted(path), **fields)


DIFFERENCES = {
    "rope base": difference(Section.MODEL, "rope_parameters.rope_theta"),
    "epsilon": difference(Section.MODEL, "rms_norm_eps"),
    "dropout": difference(Section.MODEL, "attention_dropout"),
    "attention": difference(Section.MODEL, "_attn_implementation"),
    "tf32": difference(Section.SWITCHES, "torch.backends.cuda.matmul.allow_tf32"),
    "lr": difference(Section.OPTIMIZER, "0.groups.1.lr"),
    "scaler": difference(Section.OPTIMIZER, "0.init_scale"),
    "seed": difference(Section.RANDOM, "torch.cpu"),
    "data": difference(Section.DATA, "args.0"),
    "algorithm": difference(Section.ENVIRONMENT, "NCCL_ALGO"),
    "smoothing": difference(Section.SETTINGS, "trainer.label_smoothing"),
    "recompute": difference(Section.SETTINGS, "megatron.recompute_granularity"),
    "bf16": difference(Section.SETTINGS, "megatron.bf16"),
    "release": difference(Section.LIBRARIES, "transformers", Severity.WARNING),
    "port": difference(Section.ENVIRONMENT, "MASTER_PORT", Severity.INFO),
}


@pytest.mark.parametrize(
    ("of", "yes"),
    [
        ("rope", {"rope base"}),
        ("rope, modules only", {"rope base"}),
        ("attention", {"attention", "tf32"}),
        ("attention, modules only", {"attention"}),
        ("a projection in attention", {"tf32"}),
        ("norm", {"epsilon"}),
        ("dropout", {"dropout", "seed"}),
        ("batch", {"data"}),
        ("optimizer", {"lr"}),
        ("initial weight", set()),
        ("communication", {"algorithm"}),
        ("loss", {"smoothing", "data"}),  # labels are data
        ("loss inside of a model", {"smoothing", "data"}),
        ("backward", {"recompute", "scaler"}),
        ("cast", {"bf16"}),
    ],
)
def test_what_explains_which_fault(of, yes):
    found = {name for name, each in DIFFERENCES.items() if explains(FAULTS[of], each).degree is Degree.YES}
    assert found == yes


@pytest.mark.parametrize("of", FAULTS)
def test_what_changes_no_result_explains_nothing(of):
    assert explains(FAULTS[of], DIFFERENCES["port"]).degree is Degree.NO


@pytest.mark.parametrize(
    ("of", "no"),
    [
        ("rope", {"lr", "algorithm", "smoothing", "epsilon"}),
        ("norm", {"lr", "rope base", "attention", "seed"}),
        ("attention", {"lr", "data", "epsilon"}),
        ("optimizer", {"rope base", "epsilon", "attention", "tf32"}),
    ],
)
def test_what_cannot_explain_a_fault(of, no):
    found = {name for name, each in DIFFERENCES.items() if explains(FAULTS[of], each).degree is Degree.NO}
    assert no <= found


def test_another_release_may_explain_everything():
    for each in FAULTS.values():
        assert explains(each, DIFFERENCES["release"]).degree is Degree.MAYBE


def test_the_scale_of_the_loss_may_explain_what_is_multiplied_outside_of_modules():
    assert explains(FAULTS["loss scaling"], DIFFERENCES["scaler"]).degree is Degree.MAYBE


def test_a_setting_of_the_located_module_explains_it_whatever_it_is():
    place = difference(Section.MODEL, "model.layers.3.input_layernorm.gain_offset")
    found = explains(FAULTS["norm"], place)
    assert (found.degree, found.closeness) == (Degree.YES, 2)
    assert found.finding.text == ("explains it: it is a setting of model.layers.3.input_layernorm, where the fault is")
    assert "model.layers.3.input_layernorm 的设置" in worded(found.finding, Language.CHINESE)


def test_a_setting_of_a_module_around_it_may():
    found = explains(FAULTS["a projection in attention"], difference(Section.MODEL, "model.layers.3.self_attn.gate"))
    assert found.degree is Degree.MAYBE


def test_a_setting_of_another_module_does_not():
    """What the located call was given is right, so no earlier module is wrong, and later ones do not matter."""
    found = explains(FAULTS["norm"], difference(Section.MODEL, "model.layers.4.input_layernorm.eps"))
    assert found.degree is Degree.NO
    assert "another module" in found.finding.text


def test_a_setting_of_a_module_inside_the_located_one_is_not_its_own():
    found = explains(FAULTS["attention"], difference(Section.MODEL, "model.layers.3.self_attn.q_proj.in_features"))
    assert found.degree is not Degree.YES


def test_one_difference_in_many_layers_is_in_the_located_one_too():
    everywhere = difference(Section.MODEL, "model.layers.0.input_layernorm.variance_epsilon", count=32)
    assert explains(FAULTS["norm"], everywhere).degree is Degree.YES
    elsewhere = difference(Section.MODEL, "model.layers.0.post_attention_layernorm.gain", count=32)
    assert explains(FAULTS["norm"], elsewhere).degree is not Degree.YES


def test_the_number_of_a_model_may_come_first():
    found = explains(FAULTS["norm"], difference(Section.PARAMETERS, "1.model.layers.3.input_layernorm.weight.dtype"))
    assert found.degree is Degree.YES


def test_a_difference_of_one_rank_hardly_explains_a_fault_of_another():
    at_three = difference(Section.MODEL, "rms_norm_eps", ranks=[3])
    norm = FAULTS["norm"]
    assert explains(norm, at_three).degree is Degree.YES
    on_five = fault(norm.entry, norm.parents, norm.kind, ranks=(5,))
    assert explains(on_five, at_three).degree is Degree.MAYBE
    assert explains(fault(norm.entry, norm.parents, norm.kind, ranks=(3,)), at_three).degree is Degree.YES


def test_what_explains_the_fault_comes_first():
    mixed = [DIFFERENCES[name] for name in ("port", "lr", "release", "epsilon")]
    order = [each.difference.path for each in ranked(FAULTS["norm"], mixed)]
    assert order == ["rms_norm_eps", "transformers", "0.groups.1.lr", "MASTER_PORT"]
    without = ranked(None, mixed)
    assert [each.difference.path for each in without] == [
        "0.groups.1.lr",
        "rms_norm_eps",
        "transformers",
        "MASTER_PORT",
    ]
    assert all(each.explanation is None for each in without)


def test_topics_of_enclosing_modules_are_kept_apart():
    own, around = topics_of(FAULTS["a projection in attention"])
    assert "matmul" in own
    assert "attention" in around


@pytest.mark.parametrize("section", Section)
def test_every_section_has_a_cause(section):
    for each in FAULTS.values():
        found = explains(each, difference(section, "something.never.seen"))
        for language in Language:
            assert worded(found.finding, language)


# --- locate.json ------------------------------------------------------------------------------------------------------


def written(tmp_path, **changes):
    suspect = {
        "entry": "Functional.dropout.2.forward",
        "kind": "random numbers",
        "phase": "forward",
        "parents": list(LAYER),
        "ranks": [1],
        "module": "model.layers.3",
    }
    path = tmp_path / "locate.json"
    path.write_text(json.dumps({"version": 1, "verdict": "fault", "suspects": [suspect]} | changes))
    return path


def test_the_first_suspect_is_read(tmp_path):
    found = read_located(written(tmp_path))
    assert found == LocatedFault(
        kind=FaultKind.RANDOMNESS,
        entry="Functional.dropout.2.forward",
        phase=Phase.FORWARD,
        parents=LAYER,
        ranks=(1,),
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "of version 2"),
        ({"suspects": []}, "has found no fault"),
        ({"suspects": 3}, "not what msprobe locate writes"),
        ({"suspects": [{"entry": "a", "kind": "bad luck"}]}, "not what msprobe locate writes"),
    ],
)
def test_other_files_are_refused(tmp_path, changes, said):
    with pytest.raises(CompareError, match=said):
        read_located(written(tmp_path, **changes))


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(CompareError, match="cannot be read"):
        read_located(tmp_path / "locate.json")


@pytest.mark.parametrize("around", ["module", "_orig_mod", "base_model.model"])
def test_a_setting_of_a_module_inside_a_wrapper_explains_a_fault_there(around):
    inside = fault(
        "Functional.layer_norm.1.forward",
        (f"Module.{around}.layers.1.norm.LayerNorm.forward.0", f"Module.{around}.Net.forward.0"),
        FaultKind.EPSILON,
    )
    assert explains(inside, difference(Section.MODEL, "layers.1.norm.eps")).degree is Degree.YES
    assert explains(inside, difference(Section.MODEL, "layers.2.norm.eps")).degree is Degree.NO
