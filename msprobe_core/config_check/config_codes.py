"""Codes of the findings of comparisons of configurations; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class ConfigCode(Code):
    """A difference between two configurations, a reason for its severity, or what could not be compared."""

    BOTH = "config.both"
    VALUE = "config.value"
    ONLY = "config.only"
    RANKS = "config.ranks"

    LIBRARY_BUILD = "config.library.build"
    LIBRARY_DEFAULTS = "config.library.defaults"

    MODULE_VALUE = "config.module.value"
    MODULE_ONLY_HAS = "config.module.only-has"
    MODULE_TYPE = "config.module.type"
    MODULE_MISSING = "config.module.missing"
    MODULE_MODE = "config.module.mode"
    MODULE_HOOKS = "config.module.hooks"

    PARAMETER_VALUE = "config.parameter.value"
    PARAMETER_MISSING = "config.parameter.missing"

    OPTIMIZER_NUMBER = "config.optimizer.number"
    OPTIMIZER_GROUPS = "config.optimizer.groups"
    OPTIMIZER_MEMBERS = "config.optimizer.members"
    OPTIMIZER_LOST = "config.optimizer.lost"

    RANDOM_SEED = "config.random.seed"
    RANDOM_STATE = "config.random.state"
    RANDOM_CALLS = "config.random.calls"

    DATA_ORDER = "config.data.order"
    DATA_SHIFT = "config.data.shift"
    DATA_ROWS = "config.data.rows"
    DATA_REPEATED = "config.data.repeated"
    DATA_NUMBER = "config.data.number"
    DATA_SHARED = "config.data.shared"
    STATISTICS = "config.statistics"

    RANK_DEVIATES = "config.rank.deviates"
    RANK_NUMBER = "config.rank.number"

    WHY_DEFAULT = "config.why.default"
    WHY_HARMLESS = "config.why.harmless"
    WHY_FOLLOWS = "config.why.follows"
    WHY_NEUTRAL_HOOK = "config.why.neutral-hook"
    WHY_ALIAS = "config.why.alias"
    WHY_SIMILAR = "config.why.similar"
    WHY_OTHER_DEVICE = "config.why.other-device"
    WHY_OTHER_PARTS = "config.why.other-parts"

    NOT_HELD = "config.not-held"
    NOT_COMPARABLE = "config.not-comparable"
    ONE_FRAMEWORK_ONLY = "config.one-framework-only"
    NO_MAP = "config.no-map"
    ROWS_UNKNOWN = "config.rows-unknown"
