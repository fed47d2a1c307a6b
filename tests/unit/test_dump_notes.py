"""What is noted of dumps before anything is compared is found as codes with fields, and worded where it is shown."""

from __future__ import annotations

from wording import worded_samples

from msprobe_core.findings import Finding, with_fields_of
from msprobe_core.order.order_codes import OrderCode

CALLS = {"few": 1, "fewest": 0, "many": 0, "most": 1234}
MESSAGES = {"source": 0, "sent": 1234, "destination": 1, "received": 0}
ORDER = {
    "ranks": [2, 3, "…"], "rank": 0, "count": 1234, "first": "Distributed.recv.0.forward", "call": "all_gather",
    "channels": [Finding(OrderCode.MESSAGES, fields=MESSAGES), Finding(OrderCode.MORE, fields={"count": 3})],
    **CALLS, **MESSAGES,
}  # fmt: skip


def test_notes_are_worded(wording_snapshot):
    kinds = {OrderCode: ORDER}
    texts = [
        worded_samples(kind, {code: with_fields_of(values, code).fields for code in kind})
        for kind, values in kinds.items()
    ]
    wording_snapshot.check("dump_notes", *texts)
