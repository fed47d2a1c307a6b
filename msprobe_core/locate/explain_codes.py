"""Codes of findings on whether a difference of two configurations explains a fault."""

from __future__ import annotations

from msprobe_core.findings import Code


class ExplainCode(Code):
    """Code of a finding on whether a difference explains a fault; ``explanations.yaml`` names the causes."""

    # Degrees.
    YES = "explain.yes"
    MAYBE = "explain.maybe"
    NO = "explain.no"
    HARMLESS = "explain.harmless"
    ELSEWHERE = "explain.elsewhere"
    # Why.
    AT = "explain.at"
    AROUND = "explain.around"
    OTHER_RANKS = "explain.other-ranks"
    ROPE = "explain.cause.rope"
    EPSILON = "explain.cause.epsilon"
    DROPOUT = "explain.cause.dropout"
    MODE = "explain.cause.mode"
    ATTENTION = "explain.cause.attention"
    ACTIVATION = "explain.cause.activation"
    ROUTING = "explain.cause.routing"
    EMBEDDING = "explain.cause.embedding"
    LOSS = "explain.cause.loss"
    DTYPE = "explain.cause.dtype"
    MATMUL = "explain.cause.matmul"
    DETERMINISM = "explain.cause.determinism"
    HOOKS = "explain.cause.hooks"
    OPTIMIZER = "explain.cause.optimizer"
    GRADIENTS = "explain.cause.gradients"
    TRAINED = "explain.cause.trained"
    COMMUNICATION = "explain.cause.communication"
    PARALLEL = "explain.cause.parallel"
    SEED = "explain.cause.seed"
    DATA = "explain.cause.data"
    WEIGHTS = "explain.cause.weights"
    STRUCTURE = "explain.cause.structure"
    VERSION = "explain.cause.version"
    MACHINE = "explain.cause.machine"
    PROGRAM = "explain.cause.program"
    SETTING = "explain.cause.setting"
