"""What `locate` says of a suspect is true of it."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from dumps import tensor, write_dump

from msprobe_core.judge.origins import Source
from msprobe_core.locate import FaultKind, locate
from msprobe_core.locate.kinds import reason_of
from msprobe_core.locate.locate_codes import LocateCode

SAVED = Path(__file__).parents[1] / "data" / "mindstudio_probe" / "26.2.0_debug" / "step0" / "proc1" / "debug.json"
NODE = {
    "entry": "Functional.gelu.0.forward", "phase": "forward", "only_on": None, "is_lost": False, "is_added_up": False,
    "inputs_equal": True, "input_score": 0.0, "arguments_differ": False, "argument_gap": 0.0, "parts_missing": False,
    "parameter_excess": 0.0, "output_excess": 4.0, "output_score": 0.0, "local_excess": 4.0, "outputs_differ": True,
}  # fmt: skip


def changed(value):
    if isinstance(value, dict) and "Max" in value:
        return value | {name: value[name] * 1.1 for name in ("Max", "Min", "Mean", "Norm")}
    if isinstance(value, dict):
        return {key: changed(each) for key, each in value.items()}
    return [changed(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("entry", ["x.0.debug", "nest.0.debug", "y_grad.0.debug"])
def test_what_to_do_about_a_saved_value(tmp_path, entry):
    target = Path(shutil.copy(SAVED, tmp_path))
    content = json.loads(target.read_text())
    content["data"][entry] = changed(content["data"][entry])
    target.write_text(json.dumps(content))
    (suspect,) = locate(target, SAVED).suspects
    assert suspect.entry == entry
    assert suspect.advice.code is LocateCode.NEXT_SAVE_MORE


@pytest.mark.parametrize(
    ("node", "code", "made", "score"),
    [
        ({}, LocateCode.COMPUTATION, LocateCode.MADE_LOCAL, 4.0),
        ({"arguments_differ": True, "local_excess": 0.0, "output_excess": 0.0, "outputs_differ": False},
         LocateCode.ARGUMENT, LocateCode.MADE_WITHIN, None),
        ({"output_score": 12.0}, LocateCode.COMPUTATION, LocateCode.MADE_BEYOND, 12.0),
        ({"output_score": 0.5, "output_excess": 0.1, "local_excess": 0.0},
         LocateCode.COMPUTATION, LocateCode.MADE_GROWING, 0.5),
    ],
)  # fmt: skip
def test_the_size_of_an_error_is_not_zero(node, code, made, score):
    reason = reason_of(Source(NODE | node), FaultKind.COMPUTATION, pl.DataFrame({"role": ["output"]}))
    assert reason.code is code
    assert reason.fields["made"].code is made
    assert reason.fields["made"].fields.get("score") == score


@pytest.mark.parametrize(
    ("call", "given"),
    [(None, LocateCode.GIVEN_UNKNOWN), ("Module.head.Linear.backward.0", LocateCode.GIVEN_EQUAL)],
    ids=["of a module that is not called", "of a called module"],
)
def test_what_no_call_was_given_is_not_called_equal(tmp_path, call, given):
    for side, factor in (("target", 1.1), ("golden", 1.0)):
        calls = {} if call is None else {call: {"input": [tensor([1.0, 2.0])], "output": [tensor([3.0, 4.0])]}}
        gradients = {"Module.head.Linear.parameters_grad.0": {"bias": [tensor([2.0 * factor, 1.0])]}}
        write_dump(tmp_path / side, calls | gradients)
    (suspect,) = locate(tmp_path / "target", tmp_path / "golden").suspects
    assert suspect.reason.code is LocateCode.GRADIENT_OF_PARAMETERS
    assert suspect.reason.fields["given"].code is given
