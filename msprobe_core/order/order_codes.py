"""Codes of what is noted of the communication between ranks; their templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class OrderCode(Code):
    """Communication that could not be followed from rank to rank."""

    ABSENT_RANK = "order.absent-rank"
    ABSENT_RANKS = "order.absent-ranks"
    UNKNOWN_PEER = "order.unknown-peer"
    UNMATCHED = "order.unmatched"
    MESSAGES = "order.unmatched.messages"
    COLLECTIVES = "order.unmatched.collectives"
    MORE = "order.unmatched.more"
    CIRCLE = "order.circle"
