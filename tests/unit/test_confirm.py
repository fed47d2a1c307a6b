"""What recorded results are held against: norms, single elements, overflow, decisions."""

import numpy as np
import pytest
from wording import worded_samples

from msprobe_core.confirm import Cause, Confirmation, Side, Verdict
from msprobe_core.confirm.confirm_codes import ConfirmCode
from msprobe_core.confirm.verdict import Pair, decide
from msprobe_core.findings import Finding, noted
from msprobe_core.model import ReplayTensor
from msprobe_core.replay.judge import Held, judge_outputs
from msprobe_core.replay.replay_codes import ReplayCode
from msprobe_core.replay.replays import Replays
from msprobe_core.report.confirm import confirmation_lines


def rounded(values, bits=8):
    """Round to so many significant bits, as bfloat16 does."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 2**bits) / 2**bits, exponent)


def held(recorded, oracle, dtype="bfloat16", *, own=None, disturbed=(), roundoff=2.0**-8, accumulated=None):
    def one(values, kind="float64"):
        return {"0": ReplayTensor(values=np.asarray(values), dtype=kind)}

    replays = Replays(
        oracle=one(oracle), own=None if own is None else one(own, dtype), disturbed=[one(each) for each in disturbed],
        roundoff=roundoff, num_summed=1, accumulated={} if accumulated is None else {"0": accumulated},
    )  # fmt: skip
    (judgement,) = judge_outputs(one(recorded, dtype), replays)
    return judgement


@pytest.fixture
def exact():
    return np.random.default_rng(0).normal(size=10_000)


def test_rounding_is_right(exact):
    found = held(rounded(exact), exact)
    assert found.held is Held.RIGHT
    assert found.error == pytest.approx(0.4 * 2.0**-8, rel=0.1)  # what the limit takes it to be


def test_a_scale_is_wrong_though_each_element_is_near(exact):
    found = held(rounded(exact * 1.01), exact)
    assert (found.held, found.element < 4) == (Held.WRONG, True)


def test_one_wrong_element_is_not_lost_in_the_norm(exact):
    values = rounded(exact)
    values[77] += 0.3
    found = held(values, exact)
    assert found.held is Held.WRONG
    assert found.error < found.rounding
    assert found.reason.code is ReplayCode.OUTPUT_ELEMENT


def test_what_the_inputs_rounding_explains_is_the_condition(exact):
    noise = np.random.default_rng(1).normal(size=exact.size)
    found = held(exact + 0.1 * noise, exact, disturbed=[exact + 0.2 * noise])
    assert found.held is Held.CONDITION
    assert found.amplification == pytest.approx(0.2 * 2**8, rel=0.05)
    assert held(exact + 0.3 * noise, exact, disturbed=[exact + 0.2 * noise]).held is Held.WRONG


def test_what_disturbed_inputs_take_out_of_the_domain_is_judged(exact):
    """As negative numbers to the power of 2, which is NaN for 2 + u."""
    outside = np.where(exact < 0, np.nan, exact)
    values = rounded(exact)
    assert held(values, exact, disturbed=[outside]).held is Held.RIGHT
    assert held(np.where(exact < 0, values * 1.5, values), exact, disturbed=[outside]).held is Held.WRONG


def test_roundings_of_equal_terms_add_up():
    """Each of 40 sums over an index that 20,000 terms have, and 40 over one that a single term has."""
    number = 20_000
    terms = np.random.default_rng(0).normal(size=40).astype(np.float32)
    sums = np.cumsum(np.broadcast_to(terms[:, None], (40, number)), axis=1, dtype=np.float32)[:, -1]
    values = np.concatenate([sums, terms])
    exact = np.concatenate([number * terms.astype(np.float64), terms.astype(np.float64)])
    # Random signs of the disturbances nearly cancel in a sum of equal terms.
    disturbed = [exact * (1 + 2.0**-24 * number**-0.5)]
    bound = np.abs(exact) * np.repeat([number, 1], 40)
    found = [held(values, exact, "float32", disturbed=disturbed, roundoff=2.0**-24, accumulated=it)
             for it in (bound, None)]  # fmt: skip
    assert [each.held for each in found] == [Held.RIGHT, Held.WRONG]
    values[40:] *= np.float32(1.01)  # what is allowed of the large sums is not allowed of the others
    assert held(values, exact, "float32", roundoff=2.0**-24, accumulated=bound).held is Held.WRONG


def test_overflow_of_the_dtype_is_right_and_other_infinities_are_not():
    assert held([np.inf, 1.0], [7e4, 1.0], "float16").held is Held.RIGHT
    assert held([np.inf, 1.0], [6e4, 1.0], "float16").held is Held.WRONG
    assert held([np.inf, 1.0], [6e4, 1.0], "float16", own=[np.inf, 1.0]).held is Held.RIGHT
    assert held([np.nan, 1.0], [np.nan, 1.0]).held is Held.RIGHT
    assert held([2.0, 1.0], [np.nan, 1.0]).held is Held.WRONG


def test_integers_are_the_same_but_for_ties():
    numbers = np.arange(8)
    other = numbers.copy()
    other[3] = 0
    assert held(numbers, numbers, "int64").held is Held.RIGHT
    assert held(other, numbers, "int64").held is Held.WRONG
    assert held(other, numbers, "int64", own=other).held is Held.RIGHT
    assert held(other, numbers, "int64", disturbed=[other]).held is Held.CONDITION


# --- both sides -------------------------------------------------------------------------------------------------


def pair(target, golden, **differences):
    figures = {"arguments": (), "outputs": 0.5, "inputs": 1e-3, "roundoff": 2.0**-8} | differences
    return Pair(target=target, golden=golden, **figures)


UNKNOWN = Side(problem=noted("it draws random numbers"))
OTHER_EPS = Finding(ConfirmCode.ARGUMENT, fields={"argument": "eps", "target": "1e-05", "golden": "0.1"})


def replayed(exact, scale=1.0):
    return Side(outputs=[held(rounded(exact * scale), exact)])


@pytest.mark.parametrize(
    ("scales", "differences", "verdict", "codes"),
    [
        ((2.0, 1.0), {}, Verdict.TARGET, [ConfirmCode.TARGET_WRONG, ConfirmCode.GOLDEN_RIGHT]),
        ((1.0, 2.0), {}, Verdict.GOLDEN, [ConfirmCode.GOLDEN_WRONG, ConfirmCode.TARGET_RIGHT]),
        ((2.0, 3.0), {}, Verdict.BOTH, [ConfirmCode.TARGET_WRONG, ConfirmCode.GOLDEN_WRONG]),
        ((2.0, 2.0), {"outputs": 0.0}, Verdict.CANNOT_TELL, [ConfirmCode.BOTH_OFF_ALIKE]),
        ((2.0, None), {}, Verdict.TARGET, [ConfirmCode.TARGET_WRONG, ConfirmCode.GOLDEN_NOT_REPLAYED]),
        ((None, 1.0), {}, Verdict.CANNOT_TELL, [ConfirmCode.TARGET_NOT_REPLAYED, ConfirmCode.GOLDEN_RIGHT]),
        ((None, None), {}, Verdict.CANNOT_TELL, [ConfirmCode.NEITHER_REPLAYED]),
        ((1.0, 1.0), {}, Verdict.NEITHER, [ConfirmCode.CAME_IN]),
        ((1.0, 1.0), {"outputs": 0.0}, Verdict.NEITHER, [ConfirmCode.BOTH_SAME]),
        ((1.0, 1.0), {"outputs": None}, Verdict.NEITHER, [ConfirmCode.BOTH_RIGHT]),
        ((1.0, 1.0), {"inputs": 0.0}, Verdict.CANNOT_TELL, [ConfirmCode.INPUT_UNRECORDED]),
        ((1.0, 1.0), {"arguments": [OTHER_EPS]}, Verdict.CANNOT_TELL, [ConfirmCode.ASKED_OTHERWISE]),
        ((1.0, 1.0), {"arguments": [OTHER_EPS] * 3}, Verdict.CANNOT_TELL, [ConfirmCode.ASKED_OTHERWISE_OFTEN]),
    ],
)
def test_who_is_wrong_follows_from_both_sides(exact, scales, differences, verdict, codes):
    sides = [UNKNOWN if scale is None else replayed(exact, scale) for scale in scales]
    found, _, reason = decide(pair(*sides, **differences))
    assert found is verdict
    assert [each.code for each in reason.fields.get("clauses", [reason])] == codes
    assert reason.text


# --- wording ----------------------------------------------------------------------------------------------------

CALL = "Functional.linear.0.forward"
ROUNDED = Finding(ReplayCode.OUTPUT_ROUNDED)
OFF = {"output": "0", "error": 0.0123, "explained": 0.000456, "why": ROUNDED}
FIGURES = {"difference": 0.0123, "inputs": 0.00045, "error": 0.5, "condition": 0.2, "gain": 51.23}
ONLY = Finding(ConfirmCode.ONLY_TARGET, fields={"entry": CALL})
SAMPLES = {
    ConfirmCode.SIDES: {
        "clauses": [Finding(ConfirmCode.TARGET_WRONG, fields=OFF), Finding(ConfirmCode.GOLDEN_RIGHT, fields=OFF)]
    },
    ConfirmCode.TARGET_WRONG: OFF,
    ConfirmCode.TARGET_RIGHT: OFF,
    ConfirmCode.GOLDEN_WRONG: OFF,
    ConfirmCode.GOLDEN_RIGHT: OFF,
    ConfirmCode.TARGET_NOT_REPLAYED: {"problem": UNKNOWN.problem},
    ConfirmCode.GOLDEN_NOT_REPLAYED: {"problem": UNKNOWN.problem},
    ConfirmCode.NEITHER_REPLAYED: {"problem": UNKNOWN.problem},
    ConfirmCode.ASKED_OTHERWISE: {"argument": OTHER_EPS},
    ConfirmCode.ASKED_OTHERWISE_OFTEN: {"argument": OTHER_EPS, "more": 2},
    ConfirmCode.BOTH_SAME: FIGURES,
    ConfirmCode.BOTH_OFF_ALIKE: FIGURES,
    ConfirmCode.ROUNDING_AMPLIFIED: FIGURES,
    ConfirmCode.INPUT_UNRECORDED: FIGURES,
    ConfirmCode.CAME_IN: FIGURES,
    ConfirmCode.ARGUMENT: OTHER_EPS.fields,
    ConfirmCode.ARGUMENT_OF_GOLDEN: OTHER_EPS.fields,
    ConfirmCode.ARGUMENT_OF_TARGET: OTHER_EPS.fields,
    ReplayCode.OUTPUT_NON_FINITE: {"count": 1234},
    ReplayCode.OUTPUT_ELEMENT: {"times": 12.345},
    ReplayCode.OUTPUT_OFF: {"times": 12345.6},
    ReplayCode.OUTPUT_AMPLIFIED: {"amplification": 51.23},
    ReplayCode.OUTPUT_TIES: {"count": 3},
    ReplayCode.OUTPUT_OTHER_ELEMENTS: {"count": 3, "total": 1000, "by_rounding": 0},
    ReplayCode.OUTPUT_EQUAL_ELEMENTS: {"count": 3},
    ConfirmCode.NOT_REPLAYABLE: {"api": "Torch.load", "why": "it is not among the numerical functions"},
    ConfirmCode.RIGHT_INSIDE: {"right": 2, "calls": 3},
    ConfirmCode.OTHER_CALLS_INSIDE: {"call": ONLY},
    ConfirmCode.LEFT_INSIDE: {"count": 12},
    ConfirmCode.OF_CALL: {"entry": CALL, "why": ROUNDED},
    ConfirmCode.ONLY_TARGET: {"entry": CALL},
    ConfirmCode.ONLY_GOLDEN: {"entry": CALL},
    ConfirmCode.WITH_MODEL: {"entry": CALL, "why": ROUNDED},
    ConfirmCode.AROUND_WITH_MODEL: {"entry": CALL, "why": ROUNDED},
    ConfirmCode.ALSO_ASKED_OTHERWISE: {"argument": OTHER_EPS},
    ReplayCode.NO_OWN_PRECISION: {"why": "the dtype is not known here"},
    ReplayCode.FUNCTION_IS_OFF: {"output": "0", "error": 0.02},
    ReplayCode.NO_SUCH_OUTPUT: {"output": "1"},
    ReplayCode.OTHER_SHAPE: {"output": "0", "replayed": "[2]", "recorded": "[3]"},
    ReplayCode.NO_RECORD: {"entry": CALL},
    ReplayCode.NO_FORWARD: {"entry": CALL},
    ReplayCode.FAILED_TO_RECORD: {"value": "0", "entry": CALL, "why": "RuntimeError: no memory"},
    ReplayCode.DISTRIBUTED: {"value": "0", "entry": CALL},
    ReplayCode.STATISTICS_ONLY: {"value": "0", "entry": CALL},
    ReplayCode.TOO_LARGE: {"most": 1 << 28},
    ReplayCode.MISPLACED: {"argument": "0.mask"},
    ReplayCode.FAR_PLACE: {"place": 70000},
    ConfirmCode.NEXT_RUN: {"command": "msprobe confirm target golden"},
    ConfirmCode.NEXT_RECORD_AND_RUN: {"command": "msprobe confirm target golden"},
    ConfirmCode.NEXT_SCRIPT: {"command": "msprobe acc_check -api_info target --script Torch.mm.0.forward"},
}


def test_wording(wording_snapshot):
    numbers = np.arange(8.0)
    sides = [Side(outputs=[held(numbers * scale, numbers, own=numbers)]) for scale in (2.0, 1.0)]
    verdict, cause, reason = decide(pair(*sides))
    wrong = Confirmation(
        verdict=verdict, cause=cause, entry=CALL, asked="Module.Net.forward.0", reason=reason, target=sides[0],
        golden=sides[1], output_difference=1.0, input_difference=0.0, looked_at=[(CALL, verdict)], notes=[ONLY],
    )  # fmt: skip
    unknown = Confirmation(
        verdict=Verdict.CANNOT_TELL, cause=Cause.UNKNOWN, entry=CALL, asked=CALL, reason=UNKNOWN.problem,
        target=UNKNOWN, golden=UNKNOWN, next_config="{}",
        next_command=Finding(ConfirmCode.NEXT_RECORD_AND_RUN, fields={"command": "msprobe confirm target golden"}),
    )  # fmt: skip
    said = ["\n".join(confirmation_lines(each)) for each in (wrong, unknown)]
    samples = (
        worded_samples(codes, {code: fields for code, fields in SAMPLES.items() if isinstance(code, codes)})
        for codes in (ConfirmCode, ReplayCode)
    )
    wording_snapshot.check("confirm", *said, *samples)
