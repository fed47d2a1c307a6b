"""What a comparison notes of dumps is found as codes with fields, and worded where it is shown."""

from __future__ import annotations

import json

import pytest
from dumps import api, tensor, write_dump
from wording import worded_samples

from msprobe_core.cli import main
from msprobe_core.compare import compare_dumps
from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.compare.pairing_codes import MadeAlikeCode, MergedCode, PairingCode
from msprobe_core.compare.shards.findings import ReplicaFinding
from msprobe_core.findings import Finding, each_once, finding_of, noted, with_fields_of
from msprobe_core.judge.judge_codes import JudgeCode
from msprobe_core.store.ending_codes import EndingCode

RANK = Finding(CompareCode.RANK, fields={"ranks": [1]})
DIFFERS = {"odd": RANK, "others": Finding(CompareCode.MORE_RANKS, fields={"ranks": [0, 2, 3, 4], "more": 3})}
SHOWN = {"odd": "11111111", "other": "22222222", "rank": 0}
CHECKSUM = Finding(CompareCode.CHECKSUM_OF_MODE, fields={"checksum": "0a1b2c3d", "mode": "md5"})
ENDED = Finding(EndingCode.EARLY, fields={"place": "step 0 of rank 0", "calls": 8, "why": None})
LOST = {"count": 3, "first": "Torch.mul.0.forward.output.0", "why": "it has no storage"}
TASKS = {"target": "structure", "golden": "statistics"}
ALIKE = {"what": "results and parameters", "percent": 67}

SAMPLES = {
    CompareCode.RANK: {"ranks": [1]},
    CompareCode.RANKS: {"ranks": [1, 2]},
    CompareCode.MORE_RANKS: {"ranks": [0, 2, 3, 4], "more": 3},
    CompareCode.OF_STEP: {"step": 2, "finding": noted("text")},
    CompareCode.REPLICAS: {
        "row": "Module.fc.Linear.forward.0.parameters.weight",
        "difference": Finding(CompareCode.REPLICA_DIFFERS_BY, fields={**DIFFERS, "error": 0.25}),
        "why": Finding(CompareCode.ALIKE_ON_ALL),
        "values": Finding(CompareCode.REPLICA_CHECKSUM, fields=SHOWN),
    },
    CompareCode.REPLICA_DIFFERS: DIFFERS,
    CompareCode.REPLICA_DIFFERS_BY: {**DIFFERS, "error": 0.25},
    CompareCode.REPLICAS_DIFFER: DIFFERS,
    CompareCode.REPLICAS_DIFFER_BY: {**DIFFERS, "error": 0.25},
    CompareCode.REPLICA_CHECKSUM: SHOWN,
    CompareCode.REPLICA_SKETCH: SHOWN,
    CompareCode.REPLICA_STATISTICS: SHOWN,
    CompareCode.FAILED: {"unit": "rank1", "why": "it is damaged"},
    CompareCode.TARGET_ENDED: {"ending": ENDED},
    CompareCode.GOLDEN_ENDED: {"ending": ENDED},
    CompareCode.LEFT_OUT_OF_TARGET: {"count": 1234},
    CompareCode.LEFT_OUT_OF_GOLDEN: {"count": 1234},
    CompareCode.UNREAD: LOST,
    CompareCode.UNRECORDED: LOST,
    CompareCode.UNRECORDED_OR_UNMERGED: LOST,
    CompareCode.WITHOUT_STATISTICS: {"count": 3},
    CompareCode.UNKNOWN_STATISTICS: {"statistics": "zeros, kurtosis"},
    CompareCode.MICRO_BATCHES: {"target": 4, "golden": 1},
    CompareCode.OTHER_PRECISION: {**LOST, "target": "torch.bfloat16", "golden": "torch.float32"},
    CompareCode.SUGGESTED_BY_SHAPES: ALIKE,
    CompareCode.SUGGESTED_BY_SOME_SHAPES: ALIKE,
    CompareCode.SUGGESTED_BY_SOME_VALUES: ALIKE,
    CompareCode.SUGGESTED_BY_VALUES: ALIKE,
    CompareCode.OTHER_TASK_ORDER: TASKS,
    CompareCode.OTHER_TASK_CONTENT: TASKS,
    CompareCode.OTHER_CHECKSUMS: {"target": CHECKSUM, "golden": CHECKSUM},
    CompareCode.CHECKSUM_OF_MODE: CHECKSUM.fields,
    CompareCode.CHECKSUM_SUCH_AS: CHECKSUM.fields,
    CompareCode.MORE_THAN_SHEET: {"count": 2_000_000, "worst": "a.xlsx", "all": "a.csv"},
}

CALLS = Finding(PairingCode.WITH, fields={"target": "Torch.mul.1", "golden": "Torch.mul.0"})
PAIRING = {
    "what": "step3", "path": "run/step3", "target": "PyTorch", "golden": "MindSpore", "mode": "graph",
    "why": "it fails",
    "finding": noted("rank1 is in a only"), "ranks": "rank2, rank3", "count": 3, "total": 4, "renamed": 2,
    "how": Finding(PairingCode.BY_MAP, fields={"framework": "PyTorch"}), "framework": "PyTorch",
    "where": "a.yaml, line 1",
    "first": CALLS, "wanted": "anything in the target", "side": "golden dump", "wrapper": "net", "file": "a.yaml",
}  # fmt: skip
MADE_ALIKE = {
    "rule": "a.yaml, line 2", "whole": "*.qkv", "module": "layers.0.qkv", "path": "run/rank0", "count": 1234,
    "why": Finding(MadeAlikeCode.NOT_ON_OTHER_SIDE, fields={"module": "layers.0.qkv"}), "modules": ["a", "b", "…"],
    "match": "*.q", "first": "Torch.mul.0.forward.input.0", "tokens": 4096, "sequences": 16, "what": "statistics",
    "side": "target", "metric": "'ulp'",
}  # fmt: skip
PART = Finding(MergedCode.PART_ERROR, fields={"rank": 1, "where": "[0:4]", "error": 0.25})
MERGED = {
    "path": "run/step0", "count": 12, "found": [noted("one"), noted("two")],
    "name": "Module.fc.Linear.forward.0.output.0",
    "more": [Finding(MergedCode.MORE, fields={"count": 9})], "parts": [PART, PART], "rank": 1, "where": "[0:4]",
    "error": 0.25, "what": "maximum", "own": 2.5, "other": 2.0, "norm": 1.5, "ranks": 4, "first": "Torch.mul.0",
}  # fmt: skip


def _values_of(code, values):
    if code is PairingCode.TRANSLATED:
        return {**values, "first": [Finding(PairingCode.THE_FIRST, fields={"first": CALLS})]}
    return values


def test_how_dumps_were_paired_and_made_alike_is_worded(wording_snapshot):
    kinds = {PairingCode: PAIRING, MadeAlikeCode: MADE_ALIKE, MergedCode: MERGED}
    texts = [
        worded_samples(kind, {code: with_fields_of(_values_of(code, values), code).fields for code in kind})
        for kind, values in kinds.items()
    ]
    wording_snapshot.check("pairing_notes", *texts)


def test_notes_are_worded(wording_snapshot):
    wording_snapshot.check("compare_notes", worded_samples(CompareCode, SAMPLES))


def test_replicas_that_differ_are_a_finding():
    found = ReplicaFinding(
        name="Module.fc.Linear.forward.0.output.0",
        entry="Module.fc.Linear.forward.0",
        position=3,
        ranks=(0, 1, 2),
        odd_ranks=(1, 2),
        evidence="checksum",
        values=("22222222", "11111111", "33333333"),
        error=None,
        reason=CompareCode.ALIKE_BY_COMMUNICATION,
    ).finding
    assert found.code is CompareCode.REPLICAS
    difference, values = found.fields["difference"], found.fields["values"]
    assert (difference.code, difference.fields["odd"].fields["ranks"]) == (CompareCode.REPLICAS_DIFFER, (1, 2))
    assert found.fields["why"].code is CompareCode.ALIKE_BY_COMMUNICATION
    assert (values.code, values.fields) == (CompareCode.REPLICA_CHECKSUM, {**SHOWN})


def test_the_summary_has_codes_beside_texts(tmp_path):
    other = {"dtype": "torch.bfloat16"}
    for side, fields in (("target", other), ("golden", {})):
        write_dump(
            tmp_path / side, {"Torch.mul.0.forward": api(tensor([1.0, 2.0]), output=tensor([1.0, 2.0], **fields))}
        )
    (unit,) = compare_dumps(tmp_path / "target", tmp_path / "golden").units
    (note,) = unit.note_findings
    assert note.code is CompareCode.OTHER_PRECISION
    assert unit.notes == [note.text]
    with pytest.raises(SystemExit):
        main(["compare", "-tp", str(tmp_path / "target"), "-gp", str(tmp_path / "golden"), "-o", str(tmp_path / "out")])
    (summary,) = (tmp_path / "out").glob("summary*.json")
    (stored,) = json.loads(summary.read_text())["units"]
    assert stored["notes"] == [note.text]
    assert [finding_of(each) for each in stored["notes_finding"]] == [note]


def test_what_several_units_say_is_said_once():
    first, second = noted("a"), noted("b")
    assert each_once([first, second, noted("a")]) == [first, second]


JUDGED = {
    JudgeCode.MEASURED: {"repeats": 5, "count": 1234},
    JudgeCode.MEASURED_IN_PART: {"repeats": 5, "count": 1234, "others": 7},
    JudgeCode.CLOSED_FORM: {"count": 1234},
    JudgeCode.CLOSED_FORM_BECAUSE: {"count": 1234, "why": "noise_profile.parquet is of another dump"},
    JudgeCode.CARRIED: {"distance": 0.0123},
    JudgeCode.TURNED: {"entry": "Functional.relu.0.backward", "most": 3, "distance": 0.0123},
    JudgeCode.IDLE_LIMITS: {"count": 2, "first": "limits.yaml, line 3"},
    JudgeCode.LONE_GRADIENTS: {"count": 2, "first": "Functional.linear.0.backward.output.1"},
}


def test_notes_of_the_judge_are_worded(wording_snapshot):
    wording_snapshot.check("judge_notes", worded_samples(JudgeCode, JUDGED))
