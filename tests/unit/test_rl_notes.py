"""What comparisons of RL runs say next to their verdicts is found as codes with fields."""

import json
from pathlib import Path

import pytest
from wording import worded_samples

from msprobe_core.findings import Finding, noted, with_fields_of
from msprobe_core.rl.detail_codes import ComparedCode, LineCode, RunNoteCode
from msprobe_core.rl.headline_codes import HeadlineCode
from msprobe_core.rl.outcome import Outcome, listed_steps, write_outcome
from msprobe_core.rl.response_guard import Anomaly, AnomalyKind
from msprobe_core.rl.rl_codes import AnswersCode

NUMBERS = {
    "step": 3, "before": 2, "count": 1234, "total": 5678, "tokens": 4096, "samples": 16, "outputs": 12, "calls": 8,
    "layers": 2, "values": 9999, "parameters": 1, "hops": 6, "transfers": 2, "answers": 1000, "position": 7,
    "experts": 2, "equal": 10, "over": 1, "sync": 4, "replica": 0, "replicas": 1, "anomalous": 3, "period": 5,
    "copies": 40.0, "begin": 12, "oldest": 1, "newest": 2, "sample": 5,
}  # fmt: skip
SIZES = {
    "mean": 0.00123, "mean_abs": 0.25, "rms": 0.5, "p99": 1.5, "max": 2.25, "kl": 0.01, "k3": 0.02, "chi2": 0.125,
    "ppl_ratio": 1.0625, "pearson": 0.9375, "over_ln2": 1.5, "mean_ratio": 1.0, "ratio_error": 0.03, "ratio_p99": 1.25,
    "ratio_max": 4.5, "effective_share": 0.75, "below": 12.5, "above": 6.25, "size": 0.01, "score": 12.5, "limit": 4.0,
    "share": 12.5, "most": 50.0, "error": 0.25, "level": -7.5,
}  # fmt: skip
TEXTS = {
    "target": "actor_update", "golden": "rollout_generate",
    "training": "old_log_probs", "rollout": "rollout_log_probs", "what": "actor and reference", "mode": "R3",
    "stage": "actor_update", "module": "model.layers.0", "layer": "layers.0", "system": "A",
    "on_a": "0.25 (2x) ".rjust(26), "on_b": "0.5 (4x)*".rjust(26), "difference": "+0.25", "source": "closed form",
    "measure": "largest", "kind": "cast", "hop": "received", "name": "temperature", "own": "1.0", "other": "0.7",
    "phase": "decode", "names": ["one", "two"], "stages": ["reward"], "errors": [noted("0: 0.1"), noted("1: 0.2")],
    "steps": listed_steps([1, 2]), "log_probs": [2, 2], "update": [4], "settings": [noted("top_p 1")], "token": 7,
    "counts": [noted("2 equal")], "scores": [noted("mean 2x of 4x")], "worst": [noted(", the worst")],
    "replayed": [noted("; 1 layers replayed")], "place": "answers.jsonl, line 1", "reason": noted("repeats"),
    "ending": noted("rank0 ended early"), "growth": 4.0, "first": 1.0, "last": 4.0,
}  # fmt: skip
VALUES = {**NUMBERS, **SIZES, **TEXTS}


STEPS = {"steps": [1, 2]}
OTHER_VALUES = {
    ComparedCode.STEP: {"steps": [3]},
    ComparedCode.STEPS: STEPS,
    ComparedCode.CROSS: STEPS,
    LineCode.ANSWERS: {"level": [Finding(LineCode.LEVEL, fields={"mean": -0.5})]},
    RunNoteCode.NO_PARTNER: {"target": 3, "golden": 0},
}


def test_what_stands_next_to_a_verdict_is_worded(wording_snapshot):
    kinds = (ComparedCode, LineCode, RunNoteCode, AnswersCode)
    samples = [
        {code: with_fields_of({**VALUES, **OTHER_VALUES.get(code, {})}, code).fields for code in kind} for kind in kinds
    ]
    wording_snapshot.check("rl_notes", *map(worded_samples, kinds, samples))


@pytest.mark.parametrize(
    ("steps", "code"), [([3], ComparedCode.STEP), ([1, 2], ComparedCode.STEPS)], ids=["one", "several"]
)
def test_steps_are_listed(steps, code):
    assert listed_steps(steps) == Finding(code, fields={"steps": steps})


@pytest.mark.parametrize(
    ("found", "code", "copies"),
    [
        (Anomaly(AnomalyKind.LOOP, 12, 200, period=5), AnswersCode.LOOP, 40.0),
        (Anomaly(AnomalyKind.GARBAGE, 12, 64, level=-7.5), AnswersCode.GARBAGE, None),
        (Anomaly(AnomalyKind.NAN, 12, 1), AnswersCode.NAN, None),
    ],
    ids=lambda value: value.value if isinstance(value, AnswersCode) else None,
)
def test_an_anomaly_is_a_finding(found, code, copies):
    assert (found.said.code, found.said.fields["begin"], found.said.fields.get("copies")) == (code, 12, copies)
    assert found.text == found.said.text


def test_a_file_has_codes_next_to_texts(tmp_path: Path):
    outcome = Outcome(
        command="logprob",
        paths=[tmp_path],
        compared=Finding(ComparedCode.ANSWERS, fields={"answers": 2, "tokens": 30}),
        said=Finding(HeadlineCode.CHECKS_AGREE),
        notes=[Finding(RunNoteCode.TRAINED)],
        lines=[Finding(LineCode.CROSS, fields={"step": 1})],
        incomplete=[Finding(RunNoteCode.ENDED, fields={"stage": "trainer", "ending": noted("rank0 ended early")})],
    )
    (path,) = write_outcome(outcome, tmp_path / "out")
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["compared"] == "Checked 2 answers of 30 tokens."
    assert content["compared_finding"]["fields"] == {"answers": 2, "tokens": 30}
    assert content["notes"] == [outcome.notes[0].text]
    assert [note["code"] for note in content["notes_finding"]] == ["rl.note.trained"]
    assert [line["code"] for line in content["lines_finding"]] == ["rl.line.cross"]
    assert content["incomplete"] == ["trainer, rank0 ended early"]
    assert content["incomplete_finding"][0]["fields"]["ending"]["code"] == "note.text"
