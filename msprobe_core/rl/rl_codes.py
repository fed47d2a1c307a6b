"""Codes of what comparisons and checks of RL runs find; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class CheckCode(Code):
    """What cannot be right in a run by itself."""

    NOT_FINITE = "rl.check.not-finite"
    INPUT_IDS = "rl.check.input-ids"
    HIDDEN = "rl.check.hidden"
    POSITIONS = "rl.check.positions"
    POSITIONS_PADDING = "rl.check.positions-padding"
    REWARDS = "rl.check.rewards"
    REWARDS_SHUFFLED = "rl.check.rewards-shuffled"
    DERIVED = "rl.check.derived"
    MISTAKE = "rl.check.mistake"
    FACTOR = "rl.check.factor"
    REFERENCE = "rl.check.reference"
    KL_NEGATIVE = "rl.check.kl-negative"
    KL_SIGN = "rl.check.kl-sign"
    LOSS_SIGN = "rl.check.loss-sign"
    MICRO_LOSSES = "rl.check.micro-losses"
    ADDED = "rl.check.added"
    SCALE = "rl.check.scale"
    NO_SHARE = "rl.check.no-share"
    CLIPPED_AT_ONCE = "rl.check.clipped-at-once"
    CLIPPED = "rl.check.clipped"
    CLIP_RATIO = "rl.check.clip-ratio"
    OTHER_POLICY = "rl.check.other-policy"
    STALE_EXPORT = "rl.check.stale-export"


class LogProbCode(Code):
    """How log-probs of trainer and rollout engine differ, and why."""

    LIMIT = "rl.log-probs.limit"
    DRIFT = "rl.log-probs.drift"
    RETOKENISED = "rl.log-probs.retokenised"
    NOT_FINITE = "rl.log-probs.not-finite"
    SCORE = "rl.log-probs.score"
    CAUSE = "rl.log-probs.cause"
    RAW = "rl.log-probs.raw"
    SETTING = "rl.log-probs.setting"


class CauseCode(Code):
    """Results of the tests of causes."""

    NO_NEIGHBOURS = "rl.cause.no-neighbours"
    SHIFTED = "rl.cause.shifted"
    BY_LOGITS = "rl.cause.by-logits"
    TEMPERATURE = "rl.cause.temperature"
    NO_LOGITS = "rl.cause.no-logits"
    SAME_WORDS = "rl.cause.same-words"
    KEPT = "rl.cause.kept"
    LIMITS_OFF = "rl.cause.limits-off"
    TOP_P = "rl.cause.top-p"
    TOP_K = "rl.cause.top-k"
    LIMITS_UNKNOWN = "rl.cause.limits-unknown"
    MISSING = "rl.cause.missing"
    LATER_TURNS = "rl.cause.later-turns"
    ONE_TURN = "rl.cause.one-turn"
    RETOKENISED = "rl.cause.retokenised"
    NOT_GENERATED = "rl.cause.not-generated"
    OUTDATED = "rl.cause.outdated"
    NO_VERSIONS = "rl.cause.no-versions"
    NOT_OUTDATED = "rl.cause.not-outdated"
    OLDER_POLICY = "rl.cause.older-policy"
    NO_WEIGHTS = "rl.cause.no-weights"
    NOT_AS_SENT = "rl.cause.not-as-sent"
    NO_ROUTING = "rl.cause.no-routing"
    OTHER_EXPERTS = "rl.cause.other-experts"
    CAST_ON_THE_WAY = "rl.cause.cast-on-the-way"
    NOT_ROUNDED = "rl.cause.not-rounded"
    ROUNDED = "rl.cause.rounded"
    SAMPLED_AT = "rl.cause.sampled-at"
    MODE = "rl.cause.mode"
    THE_FIRST = "rl.cause.the-first"
    SEVERAL = "rl.cause.several"
    TOO_FEW = "rl.cause.too-few"
    DIVIDES = "rl.cause.divides"
    COUNTS = "rl.cause.counts"
    BOTH = "rl.cause.both"
    NOT_MASKED = "rl.cause.not-masked"


class ModuleCode(Code):
    """Where modules of two stages diverge."""

    FIRST = "rl.modules.first"
    OF_PHASE = "rl.modules.of-phase"
    WAS_GIVEN = "rl.modules.was-given"
    WAS_NOT_GIVEN = "rl.modules.was-not-given"
    NOT_EQUAL = "rl.modules.not-equal"
    CHECKSUM = "rl.modules.checksum"
    STATISTICS = "rl.modules.statistics"
    ALIASED = "rl.modules.aliased"
    UNEQUAL = "rl.modules.unequal"
    WORST = "rl.modules.worst"
    NOT_FINITE = "rl.modules.not-finite"
    OFF = "rl.modules.off"


class RunsCode(Code):
    """How two runs differ."""

    VALUE = "rl.runs.value"
    OF_STAGE = "rl.runs.of-stage"
    SIZE = "rl.runs.size"
    LIMIT = "rl.runs.limit"
    REASON = "rl.runs.reason"
    SAMPLING = "rl.runs.sampling"
    SCORES = "rl.runs.scores"
    SAMPLES = "rl.runs.samples"
    ONLY_TARGET = "rl.runs.only-target"
    ONLY_GOLDEN = "rl.runs.only-golden"
    NO_SAMPLE = "rl.runs.no-sample"
    SHAPES = "rl.runs.shapes"
    ELEMENTS = "rl.runs.elements"
    METRIC = "rl.runs.metric"
    NO_DUMP = "rl.runs.no-dump"
    RECUT = "rl.runs.recut"
    MODULE = "rl.runs.module"
    ROW = "rl.runs.row"
    CALL = "rl.runs.call"
    SEVERAL = "rl.runs.several"
    VALUES = "rl.runs.values"
    LONE = "rl.runs.lone"
    PARAMETERS = "rl.runs.parameters"


class TransferCode(Code):
    """How weights differ from what was sent, or from the hop before."""

    HOP = "rl.weights.hop"
    TENSOR = "rl.weights.tensor"
    NOT_LOGGED = "rl.weights.not-logged"
    CAST_TWICE = "rl.weights.cast-twice"
    UNKNOWN = "rl.weights.unknown"
    COPIES = "rl.weights.copies"
    COPIES_OF_PART = "rl.weights.copies-of-part"
    PARTS = "rl.weights.parts"
    NO_DIGEST = "rl.weights.no-digest"
    BYTES = "rl.weights.bytes"
    SHARD = "rl.weights.shard"
    NOT_RECEIVED = "rl.weights.not-received"
    NOT_SENT = "rl.weights.not-sent"
    BECAME = "rl.weights.became"
    NOT_AS_SENT = "rl.weights.not-as-sent"
    CAST = "rl.weights.cast"
    NOT_COMPARED = "rl.weights.not-compared"
    EXTRA = "rl.weights.extra"
    SENDERS = "rl.weights.senders"


class CrossCode(Code):
    """Which component of crossed runs is at fault."""

    FAULT = "rl.cross.fault"
    ROLLOUT = "rl.cross.rollout"
    TRAINING = "rl.cross.training"
    BOTH = "rl.cross.both"
    WEIGHTS = "rl.cross.weights"
    TRUSTED = "rl.cross.trusted"


class AnswersCode(Code):
    """What is wrong with answers, and what changes in them over the steps."""

    GROWS = "rl.answers.grows"
    FALLS = "rl.answers.falls"
    OF_PLACE = "rl.answers.of-place"
    LOOP = "rl.answers.loop"
    GARBAGE = "rl.answers.garbage"
    NAN = "rl.answers.nan"
