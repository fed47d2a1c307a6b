"""Codes of what a comparison notes on how dumps, calls and layouts were paired; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class PairingCode(Code):
    """Dumps without a partner, and how steps, ranks and calls were paired."""

    ONLY_IN = "pairing.only-in"
    IN_NEITHER = "pairing.in-neither"
    NOT_COMPARED = "pairing.not-compared"
    OF_MODE = "pairing.of-mode"
    FEWER_REPLICAS = "pairing.fewer-replicas"
    IN_PARTS = "pairing.in-parts"

    BY_SEQUENCE = "pairing.calls.by-sequence"
    TRANSLATED = "pairing.calls.translated"
    BY_MAP = "pairing.calls.by-map"
    BY_MAPS = "pairing.calls.by-maps"
    THE_FIRST = "pairing.calls.the-first"
    WITH = "pairing.calls.with"
    OTHER_CLASSES = "pairing.calls.other-classes"
    NO_NESTING = "pairing.calls.no-nesting"

    NAMES_UNUSED = "pairing.names.unused"
    NO_MAP = "pairing.names.no-map"
    WRAPPED = "pairing.names.wrapped"
    TURNED = "pairing.names.turned"
    ROW_PAIRED_TWICE = "pairing.names.row-paired-twice"


class MadeAlikeCode(Code):
    """What was done to dumps, or computed of them, before they were compared."""

    NOT_FUSED = "alike.not-fused"
    NOT_ON_OTHER_SIDE = "alike.not-on-other-side"
    NO_SUCH_MODULES = "alike.no-such-modules"
    LONE_MODULES = "alike.lone-modules"
    RULE_UNUSED = "alike.rule-unused"
    HASHES_LOST = "alike.hashes-lost"
    TOKENS = "alike.tokens"
    WITHOUT_ROWS = "alike.no-row-per-token"
    LONE_SEQUENCES = "alike.lone-sequences"
    COMPUTED = "alike.computed"
    NOT_COMPUTED = "alike.not-computed"
    MULTIPLIED = "alike.multiplied"
    NOT_MULTIPLIED = "alike.not-multiplied"
    METRIC_LEFT_OUT = "alike.metric-left-out"
    METRIC_FAILED = "alike.metric-failed"


class MergedCode(Code):
    """What is noted of merged ranks."""

    REPLICAS = "merged.replicas"
    MORE = "merged.more"
    HELD = "merged.held"
    PART_ERROR = "merged.part.error"
    PART_EXTREME = "merged.part.extreme"
    PART_NORM = "merged.part.norm"
    LEFT_OUT = "merged.left-out"
    NOT_ON_ALL = "merged.not-on-all"
    SUMS = "merged.sums"
