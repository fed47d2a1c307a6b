"""What a comparison may note of its dumps, beside what it finds of their rows."""

from __future__ import annotations

from msprobe_core.findings import Code


class CompareCode(Code):
    """What may be noted of dumps, their ends and their ranks."""

    RANK = "compare.rank"
    RANKS = "compare.ranks"
    MORE_RANKS = "compare.ranks.more"
    OF_STEP = "compare.of-step"

    REPLICAS = "compare.replicas"
    REPLICA_DIFFERS = "compare.replicas.one"
    REPLICA_DIFFERS_BY = "compare.replicas.one-by"
    REPLICAS_DIFFER = "compare.replicas.several"
    REPLICAS_DIFFER_BY = "compare.replicas.several-by"
    ALIKE_AS_PARTS = "compare.replicas.why.parts"
    ALIKE_ON_ALL = "compare.replicas.why.all"
    ALIKE_BY_COMMUNICATION = "compare.replicas.why.communication"
    ALIKE_IN_GOLDEN = "compare.replicas.why.golden"
    REPLICA_CHECKSUM = "compare.replicas.checksum"
    REPLICA_SKETCH = "compare.replicas.sketch"
    REPLICA_STATISTICS = "compare.replicas.statistics"

    FAILED = "compare.failed"
    UNREAD = "compare.unread"
    TARGET_ENDED = "compare.ended.target"
    GOLDEN_ENDED = "compare.ended.golden"
    LEFT_OUT_OF_TARGET = "compare.left-out.target"
    LEFT_OUT_OF_GOLDEN = "compare.left-out.golden"

    UNRECORDED = "compare.unrecorded"
    UNRECORDED_OR_UNMERGED = "compare.unrecorded.merged"
    WITHOUT_STATISTICS = "compare.without-statistics"
    UNKNOWN_STATISTICS = "compare.unknown-statistics"
    OTHER_PRECISION = "compare.other-precision"
    MICRO_BATCHES = "compare.micro-batches"
    MORE_THAN_SHEET = "compare.more-than-sheet"

    SUGGESTED_BY_INSIDE = "compare.suggested.inside"
    SUGGESTED_BY_SHAPES = "compare.suggested.shapes"
    SUGGESTED_BY_SOME_SHAPES = "compare.suggested.some-shapes"
    SUGGESTED_BY_SOME_VALUES = "compare.suggested.some-values"
    SUGGESTED_BY_VALUES = "compare.suggested.values"

    OTHER_TASK_ORDER = "compare.other-task.order"
    OTHER_TASK_CONTENT = "compare.other-task.content"
    STATISTICS_FOR_CHECKSUMS = "compare.statistics-for-checksums"
    OTHER_CHECKSUMS = "compare.other-checksums"
    CHECKSUM_OF_MODE = "compare.checksum-of-mode"
    CHECKSUM_SUCH_AS = "compare.checksum-such-as"
