"""What is noted of dumps before anything is compared is found as codes with fields, and worded where it is shown."""

from __future__ import annotations

from wording import worded_samples

from msprobe_core.findings import Finding, with_fields_of
from msprobe_core.order.order_codes import OrderCode
from msprobe_core.store.ending_codes import EndingCode
from msprobe_core.store.reading_codes import DamageCode, ReadingCode
from msprobe_core.store.run_codes import RunCode

CALLS = {"few": 1, "fewest": 0, "many": 0, "most": 1234}
MESSAGES = {"source": 0, "sent": 1234, "destination": 1, "received": 0}
ORDER = {
    "ranks": [2, 3, "…"], "rank": 0, "count": 1234, "first": "Distributed.recv.0.forward", "call": "all_gather",
    "channels": [Finding(OrderCode.MESSAGES, fields=MESSAGES), Finding(OrderCode.MORE, fields={"count": 3})],
    **CALLS, **MESSAGES,
}  # fmt: skip
RUN = {
    "path": "run", "units": Finding(RunCode.RANKS, fields={"ranks": ["1-3", "5"]}), "latest": "rank0",
    "steps": Finding(RunCode.STEP, fields={"steps": ["1"]}), "later": Finding(RunCode.STEPS, fields={"steps": ["2-3"]}),
    "run": Finding(RunCode.WRITTEN, fields={"at": "2026-01-02 03:04:05"}), "variable": "MSPROBE_RUN_ID",
    "latest_run": Finding(RunCode.BEGUN, fields={"at": "2026-01-02 04:05:06", "process": 7, "host": "h"}),
    "last": "proc4", "others": ["proc30", "proc9"], "ranks": ["1-3", "5"], "at": "2026-01-02 03:04:05", "process": 7,
    "host": "h",
}  # fmt: skip
CUT = Finding(DamageCode.RECORDS, fields={"count": 12})
WHY = "run/dump.json: is not valid JSON"
READING = {
    "path": "run", "damage": CUT, "why": WHY, "count": 1234, "first": "1234.npy", "line": 3,
}  # fmt: skip
DAMAGE = {
    "count": 12, "batches": 3, "rows": 1234, "why": "its end is missing", "record": "'Torch.b.0.forward'",
    "total": 1234, "first": WHY, "parts": [Finding(EndingCode.EARLY, fields={"place": "step 0 of rank 1", "calls": 2})],
}  # fmt: skip
ENDING = {"place": "step 0 of rank 1", "calls": 1234, "why": CUT}
SHORT = {
    RunCode.STEPS_LEFT_OUT: {"latest": Finding(RunCode.STEP, fields={"steps": ["2"]})},
    RunCode.STEP: {"steps": ["1"]}, RunCode.STEPS: {"steps": ["1-3", "5"]},
}  # fmt: skip


def test_notes_are_worded(wording_snapshot):
    kinds = {OrderCode: ORDER, RunCode: RUN, ReadingCode: READING, DamageCode: DAMAGE, EndingCode: ENDING}
    texts = [
        worded_samples(kind, {code: with_fields_of({**values, **SHORT.get(code, {})}, code).fields for code in kind})
        for kind, values in kinds.items()
    ]
    wording_snapshot.check("dump_notes", *texts)
