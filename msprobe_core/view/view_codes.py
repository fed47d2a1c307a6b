"""Codes of texts that pages add to the findings of searches and comparisons."""

from __future__ import annotations

from msprobe_core.findings import Code


class ViewCode(Code):
    """Texts of the page."""

    AGREE = "view.agree"
    INSUFFICIENT = "view.insufficient"
    FAULT = "view.fault"
    FAULT_INSIDE = "view.fault.inside"
    NOT_FINITE = "view.not-finite"
    NOT_FINITE_KIND = "view.not-finite.kind"
    NOT_FINITE_VALUE = "view.not-finite.value"
    SINGLE_RUN = "view.single-run"
    SINGLE_RUN_FINITE = "view.single-run.finite"
    SINGLE_RUN_HARMLESS = "view.single-run.harmless"
    SINGLE_RUN_WITHOUT_VALUES = "view.single-run.without-values"

    RL_FAULT = "view.rl.fault"
    RL_AGREE = "view.rl.agree"
    RL_UNCHECKED = "view.rl.unchecked"
    RL_COUNT = "view.rl.count"
    RL_LEFT_OUT = "view.rl.left-out"
    RL_NO_TEXT = "view.rl.no-text"
    RL_COMPARISON = "view.rl.comparison"

    WHERE = "view.where"
    STEP = "view.where.step"
    MICRO_STEP = "view.where.micro-step"
    RANK = "view.where.rank"
    RANKS = "view.where.ranks"

    LOOKED_AT = "view.looked-at"
    ABOUT = "view.about"
    SEEN_AT = "view.seen-at"
    MADE_AGAIN = "view.made-again"
    INCOMPLETE = "view.incomplete"
    MORE_INCOMPLETE = "view.incomplete.more"

    ONLY_HERE = "view.call.only-here"
    HOLDS_NOT_FINITE = "view.call.not-finite"
    VALUE = "view.call.value"

    UNIT_NOTE = "view.note.unit"
    NO_OVERFLOW_SEARCH = "view.note.no-overflow-search"
    UNREADABLE = "view.note.unreadable"
    NO_MAP = "view.note.no-map"
    MORE_NOTES = "view.note.more"
    MONITOR = "view.note.monitor"
    NO_MONITOR = "view.note.no-monitor"
    NO_MANIFEST = "view.note.no-manifest"
    NO_CHECKS = "view.note.no-checks"
    NO_COMMUNICATION = "view.note.no-communication"
    NO_ROOM = "view.note.no-room"
