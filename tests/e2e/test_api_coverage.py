"""How much of PyTorch is recorded: every public function that could be called is called once, and counted."""

import types
import warnings

import pytest
import torch
from every_function import examples, holds_tensor
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch.linalg import inv
from torch.nn.functional import scaled_dot_product_attention, softmax

from msprobe_core.names import parse_entry

FLOOR = 1060
"""Measured with PyTorch 2.13 on a CPU: 1,069 of 1,347 public functions could be called; see docs/pytorch.md."""

NOT_RECORDED = {"requires_grad_", "range"}
"""Compute nothing, or are not dispatched by PyTorch, like the deprecated ``torch.range``."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return how many functions there are, and for each example its name and the entries that its call left."""
    num_functions, found = examples()
    calls = [(function, name, *make()) for function, name, make in found]
    marks = types.SimpleNamespace(mark=lambda x: x)
    mark = torch.ones(1)
    path = tmp_path_factory.mktemp("coverage")
    debugger = PrecisionDebugger(dump_path=path, level="L1", risk_level="ALL")
    try:
        debugger.register_custom_api(marks, "mark", "Mark")
        with warnings.catch_warnings(), debugger.start():
            warnings.simplefilter("ignore")
            for function, _, args, kwargs in calls:
                assert holds_tensor(function(*args, **kwargs))
                marks.mark(mark)
    finally:
        debugger.close()
    entries = [[]]
    for entry in Recorded(path).data:
        if entry.startswith("Mark."):
            entries.append([])
        else:
            entries[-1].append(entry)
    return num_functions, [(function, name, left) for (function, name, *_), left in zip(calls, entries, strict=False)]


def test_what_returns_a_tensor_is_recorded(recorded):
    num_functions, calls = recorded
    missed = sorted({name for _, name, left in calls if not left} - NOT_RECORDED)
    counted = [left for _, _, left in calls if left]
    names = {entry.rpartition(".")[0].rpartition(".")[0] for (entry, *_) in counted}
    print(f"{len(counted)} of {len(calls)} functions that could be called are recorded, under {len(names)} names; ")
    print(f"PyTorch {torch.__version__} has {num_functions}; not recorded: {missed}")
    assert missed == []
    assert len(counted) >= FLOOR
    in_parts = {name for _, name, left in calls if len(left) > 1}
    # PyTorch does not dispatch them, but what they call; `sym_sum` only in some releases.
    assert in_parts <= {"svd_lowrank", "pca_lowrank", "lobpcg", "sym_sum"}


def test_their_names_say_which_function_it_was(recorded):
    _, calls = recorded
    by_function = {function: parse_entry(left[0]) for function, _, left in calls if left}
    expected_names = {
        torch.Tensor.__getitem__: "Tensor.__getitem__", torch.ones: "Torch.ones", torch.randn: "Torch.randn",
        torch.nn.functional.scaled_dot_product_attention: "Functional.scaled_dot_product_attention",
        torch.nn.functional.rms_norm: "Functional.rms_norm", torch.linalg.norm: "Torch.linalg_norm",
        torch.norm: "Torch.norm", torch.linalg.qr: "Torch.linalg_qr", torch.linalg.cross: "Torch.linalg_cross",
        torch.cross: "Torch.cross", torch.linalg.matmul: "Torch.linalg_matmul", torch.matmul: "Torch.matmul",
        torch.linalg.inv: "Torch.linalg_inv", torch.fft.fft: "Torch.fft_fft", torch.special.erf: "Torch.special_erf",
        torch.nn.functional.multi_head_attention_forward: "Functional.multi_head_attention_forward",
    }  # fmt: skip
    found = {function: f"{site.prefix}.{site.path}" for function, site in by_function.items()}
    assert {function: found[function] for function in expected_names} == expected_names


def test_functions_that_were_imported_by_name_count_too(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", risk_level="ALL")
    try:
        with debugger.start():
            scaled_dot_product_attention(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2))
            softmax(torch.ones(2), -1)
            inv(torch.eye(2))
    finally:
        debugger.close()
    names = {entry.removesuffix(".0.forward") for entry in Recorded(tmp_path).data if ".0.forward" in entry}
    assert {"Functional.scaled_dot_product_attention", "Functional.softmax", "Torch.linalg_inv", "Torch.eye"} <= names
