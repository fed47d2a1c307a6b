"""Codes of the texts next to the verdicts on RL runs: what was compared, the lines below, and notes."""

from __future__ import annotations

from msprobe_core.findings import Code


class ComparedCode(Code):
    """What was compared, and in which steps."""

    STEP = "rl.compared.step"
    STEPS = "rl.compared.steps"
    CHECKS = "rl.compared.checks"
    LOG_PROBS = "rl.compared.log-probs"
    CROSS = "rl.compared.cross"
    MODULES = "rl.compared.modules"
    STATISTICS = "rl.compared.statistics"
    ROUTING = "rl.compared.routing"
    RUNS = "rl.compared.runs"
    WEIGHTS = "rl.compared.weights"
    CHAIN = "rl.compared.chain"
    ANSWERS = "rl.compared.answers"


class LineCode(Code):
    """Lines that a terminal shows before the findings, and their parts."""

    SAMPLING = "rl.line.sampling"
    LOG_PROBS = "rl.line.log-probs"
    WORST = "rl.line.worst"
    ID = "rl.line.token"
    DIVERGENCE = "rl.line.divergence"
    WEIGHTS = "rl.line.weights"
    FLOOR = "rl.line.floor"
    SCORE = "rl.line.score"
    CROSS = "rl.line.cross"
    CROSS_HEAD = "rl.line.cross-head"
    CROSS_ROW = "rl.line.cross-row"
    ROUTING = "rl.line.routing"
    MOST_ROUTED = "rl.line.most-routed"
    REPLAYED = "rl.line.replayed"
    COUNT = "rl.line.count"
    RUNS = "rl.line.runs"
    TRANSFER = "rl.line.transfer"
    CHANGED = "rl.line.changed"
    HOP = "rl.line.hop"
    AS_BEFORE = "rl.line.as-before"
    ANSWERS = "rl.line.answers"
    LEVEL = "rl.line.level"
    ANOMALOUS_STEPS = "rl.line.anomalous-steps"
    MODULES = "rl.line.modules"
    PHASE = "rl.line.phase"
    LAYERS = "rl.line.layers"
    LAYER = "rl.line.layer"
    FLIPPED = "rl.line.flipped"
    STATISTICS = "rl.line.statistics"


class RunNoteCode(Code):
    """Notes on a comparison, and on dumps that ended early."""

    COMPUTED = "rl.note.computed"
    FLOAT32_ASSUMED = "rl.note.float32-assumed"
    OLDER_POLICY = "rl.note.older-policy"
    ONE_EXPERT = "rl.note.one-expert"
    NO_PARTNER = "rl.note.no-partner"
    LONE_OUTPUTS = "rl.note.lone-outputs"
    TRAINED = "rl.note.trained"
    MICRO_BATCHES = "rl.note.micro-batches"
    CHECKSUMS = "rl.note.checksums"
    STATISTICS = "rl.note.statistics"
    OTHER_SAMPLES = "rl.note.other-samples"
    NO_ROUTINGS = "rl.note.no-routings"
    REPLAY_UNKNOWN = "rl.note.replay-unknown"
    RECUT = "rl.note.recut"
    LONE_STAGES = "rl.note.lone-stages"
    SETTINGS = "rl.note.settings"
    SETTING = "rl.note.setting"
    VERSIONS = "rl.note.versions"
    VERSION = "rl.note.version"
    NOTHING_RECEIVED = "rl.note.nothing-received"
    NO_CHANGE = "rl.note.no-change"
    UNCHANGED = "rl.note.unchanged"
    ENDED = "rl.note.ended"
