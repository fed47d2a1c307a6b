"""Formulas written for one call have the bits of the whole formula, and no more code than that call needs."""

import pytest
import torch
from msprobe.pytorch._formula_specialised import formula_for, same_results, specialised_formula
from msprobe.pytorch._formula_values import UnknownError
from msprobe.pytorch._fused_attention import npu_fusion_attention
from msprobe.pytorch._optimizer_formulas import fused_adam, fused_adamw
from msprobe.pytorch._script_formula import whole_formula
from replaying import call_of


def attention(**options):
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 6, 32) for _ in range(3))
    return call_of("NPU.npu_fusion_attention", [query, key, value, 4, "BSH"], options)


def test_what_the_arguments_decide_is_not_in_the_code():
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    found = specialised_formula(attention(atten_mask=mask, sparse_mode=3), npu_fusion_attention)
    assert found.parameters == ["query", "key", "value"]
    assert not any(each in found.source for each in ("sparse_mode", "layout", "pse", "TND", "class "))
    assert found.source.count("\n") <= 13
    assert "triu" not in specialised_formula(attention(), npu_fusion_attention).source
    own = specialised_formula(attention(atten_mask=torch.zeros(6, 6, dtype=torch.bool)), npu_fusion_attention)
    assert own.parameters == ["query", "key", "value", "atten_mask"]


def test_code_with_other_bits_is_not_taken():
    call = attention()
    found = specialised_formula(call, npu_fusion_attention)
    assert same_results(call, npu_fusion_attention, found) is not None

    def other(query, key, value, *rest, **options):
        first, *others = npu_fusion_attention(query, key, value, *rest, **options)
        return first.nextafter(first + 1), *others

    assert same_results(call, other, found) is None


def tensors(*shapes):
    return [torch.rand(shape) for shape in shapes]


def step_of_adam(**more):
    lists = [tensors((3, 2), (4,)) for _ in range(4)]
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False}
    steps = [torch.tensor(2.0), torch.tensor(2.0)]
    return call_of("Torch._fused_adamw_", [*lists, [], steps], options | {"maximize": False} | more)


def test_loops_over_tensors_stay_loops():
    found = formula_for(step_of_adam(), fused_adamw)
    assert found.parameters is not None
    assert found.source.count("for ") == 3
    assert found.source.count("\n") <= 11 < whole_formula(fused_adam).source.count("\n") - 10


def test_names_of_a_dump_are_no_code():
    call = step_of_adam(**{"x): print(1) #": 1.0})
    with pytest.raises(UnknownError):
        specialised_formula(call, fused_adamw)
    assert formula_for(call, fused_adamw).parameters is None
