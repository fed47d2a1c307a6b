"""The content of a page, in the form of the file; docs/view_format.md describes it for other readers.

Columns instead of objects: a graph of 50,000 calls has 150,000 values, and browsers read columns several times faster.
Numbers are rounded to seven digits; non-finite numbers are the texts ``nan``, ``inf`` and ``-inf``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from msprobe_core._version import __version__
from msprobe_core.findings import Code, Field, Finding, Level, Place, content_of, finding_of, noted, template_of

FORMAT = "msprobe-view"
VERSION = 2

Number = float | int | str | None
"""A number; the text of one that is not finite; ``None`` if there is none."""

Severity = float | str | None
"""0 is right, 0.5 the limit, 1 the largest, see `severity_of`; ``None`` if there is nothing to compare with.
(Never a text: the type is shared with columns of numbers.)"""


class Said(msgspec.Struct, frozen=True):
    """A finding; the page has the templates of its code in every language."""

    code: str
    level: str = Level.NOTE.value
    fields: dict[str, Any] = {}

    @property
    def finding(self) -> Finding:
        """The finding itself."""
        return finding_of({"code": self.code, "level": self.level, "fields": self.fields})

    @property
    def text(self) -> str:
        """The finding in English."""
        return self.finding.text


Text: TypeAlias = Said | str
"""A finding, or a text that is the same in every language."""


def said_of(finding: Finding) -> Said:
    """Return a finding in the page's form; one of another package, for which pages have no templates, as its text."""
    of_core = finding.code.package() == Code.package()
    return msgspec.convert(content_of(_typed(finding) if of_core else noted(finding.text)), Said)


def _typed(finding: Finding) -> Finding:
    """Convert whole floats without a format to text: in JSON, pages cannot distinguish them from integers."""
    plain = {part.field for part in template_of(finding.code) if isinstance(part, Place) and not part.spec}
    fields = {name: _page_field(value, is_plain=name in plain) for name, value in finding.fields.items()}
    return replace(finding, fields=fields)


def _page_field(value: Field, *, is_plain: bool) -> Field:
    if isinstance(value, Finding):
        return _typed(value)
    if isinstance(value, float):
        return f"{value:.3g}" if is_plain and value.is_integer() else value
    if value is None or isinstance(value, (str, int)):
        return value
    return [_page_field(each, is_plain=is_plain) for each in value]


def text_of(text: Text) -> str:
    """Return a text in English."""
    return text.text if isinstance(text, Said) else text


class Kind(str, Enum):
    """What a page shows."""

    DUMP = "dump"
    COMPARISON = "comparison"
    MONITOR = "monitor"


class NodeKind(str, Enum):
    """Kind of a node of a graph."""

    MODULE = "module"
    API = "api"
    COLLECTION = "collection"
    VALUE = "value"


class State(str, Enum):
    """State of a run, or of a comparison, in a page's first sentence."""

    AGREE = "agree"
    FAULT = "fault"
    INSUFFICIENT = "insufficient"
    NONE = "none"


class Made(msgspec.Struct, frozen=True):
    """The release that produced the data, and the time (ISO 8601, UTC)."""

    msprobe: str
    at: str

    @classmethod
    def now(cls) -> Made:
        """Return this release and the current time."""
        return cls(__version__, datetime.now(timezone.utc).isoformat(timespec="seconds"))


class Side(msgspec.Struct, frozen=True):
    """One of the two runs."""

    path: str
    framework: str
    task: str
    level: str
    parallel: dict[str, int] | None = None


class Sides(msgspec.Struct, frozen=True):
    """The runs; ``golden`` is ``None`` if only one run is viewed."""

    target: Side
    golden: Side | None = None


class Check(msgspec.Struct, frozen=True):
    """A precondition: ``state`` is ``holds``, ``differs`` or ``unknown``."""

    name: str
    state: str
    detail: Text


class Counts(msgspec.Struct, frozen=True):
    """Number of calls that were examined, of those beyond their limit, and of those without a partner."""

    nodes: int = 0
    flagged: int = 0
    unmatched: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """The answer, the checks that it rests on, and the noise floors by which it was judged.

    ``incomplete`` lists, as texts, which dumps ended early, are damaged or missing, and so are not part of the answer.
    """

    state: State
    sentence: Text
    detail: Sequence[Text] = ()
    checks: Sequence[Check] = ()
    counts: Counts = msgspec.field(default_factory=Counts)
    noise: Text = ""
    incomplete: Sequence[Text] = ()


class Evidence(msgspec.Struct, frozen=True):
    """One value that supports a culprit."""

    row: str
    message: Sequence[Text] = ()
    score: Number = None
    limit: Number = None


class Culprit(msgspec.Struct, frozen=True):
    """A possible location of the fault.

    Attributes:
        unit: Index in ``units`` of the first rank that shows it.
        node: Its name in that unit's graph; ``None`` if the graph has no such node.
        step: Number of the step; ``None`` if only one step was given.
        ranks: All ranks that show it.
        kind: Type of fault, as text.
        strength: ``strong``, ``moderate`` or ``weak``.
        score: In units of what rounding explains.
        limit: The score must exceed it.
        reason: Why it is suspected.
        evidence: Its values, largest difference first.
        parents: Names of the enclosing calls, innermost first.
        stack: Frames, innermost first.
        command: The command to run next; empty if there is none.
    """

    unit: int
    node: str | None
    step: int | None
    ranks: Sequence[int]
    kind: Text
    strength: str
    score: Number
    limit: Number
    reason: Text
    evidence: Sequence[Evidence] = ()
    parents: Sequence[str] = ()
    stack: Sequence[str] = ()
    command: Text = ""


class Peers(msgspec.Struct, frozen=True):
    """The peers of a communication call.

    Attributes:
        peers: Index of the unit, and name of the node in its graph.
        sends: Indices in ``peers`` of the receivers of this call's data.
        receives: Indices in ``peers`` of the senders to this call.
        more: Number of further peers.
    """

    peers: Sequence[tuple[int, str]]
    sends: Sequence[int] = ()
    receives: Sequence[int] = ()
    more: int = 0


class Values(msgspec.Struct, frozen=True):
    """The values of all nodes of a graph, as columns.

    Attributes:
        slot: ``input.0``, ``kwargs.mask``, ``output.0``, ``parameters.weight``, or a parameter's name for gradients.
        dtype: Of target and golden.
        shape: Of target and golden, as text.
        target: Columns by statistic; a statistic that no value has is left out. ``value`` holds arguments as text,
            ``checksum`` text as well, the others numbers.
        golden: The same columns of golden; ``None`` if only one run is viewed.
        metrics: Columns by name: errors of target against golden, of which ``error`` was judged, ``limit``, and
            ``score``, the error in units of what rounding explains.
        verdict: ``pass``, ``warning`` or ``error``; ``none`` if there is nothing to compare with.
        reason: Findings of each value, with their levels.
        file: Tensor files of target and golden.
    """

    slot: Sequence[str]
    dtype: Sequence[tuple[str | None, str | None]]
    shape: Sequence[tuple[str | None, str | None]]
    target: dict[str, Sequence[Number]]
    golden: dict[str, Sequence[Number]] | None
    metrics: dict[str, Sequence[Number]]
    verdict: Sequence[str]
    reason: Sequence[Sequence[Text]]
    file: Sequence[tuple[str | None, str | None]]


class Graph(msgspec.Struct, frozen=True):
    """The calls of one rank in one step, as columns; parents precede their children, calls are in execution order.

    Attributes:
        name: Unique within the graph.
        label: Short form of the name.
        type: Class of a module, prefix of an API.
        kind: A `NodeKind`.
        phase: ``forward``, ``backward``, ``parameters_grad``, ``optimizer`` or empty.
        parent: Index of the enclosing node; -1 at the top.
        micro_step: Number of the micro-batch within the step.
        severity: Largest severity of the node and its descendants.
        own: Severity of the node alone.
        side: ``both``, ``target`` or ``golden``: which runs have it.
        partner: Its name in the golden run.
        score: Largest error of its outputs, in units of what rounding explains.
        reason: Why it is beyond its limit; empty if it is not.
        stack: Index in ``stacks``; -1 if unknown.
        rows: Indices in ``values``.
        communication: Peers of communication calls; ``None`` for other calls.
        edges: Producer, consumer and, if known, index in ``values`` of the consumer's input.
        stacks: Frames, innermost first.
        values: The values of all nodes.
    """

    name: Sequence[str]
    label: Sequence[str]
    type: Sequence[str]
    kind: Sequence[str]
    phase: Sequence[str]
    parent: Sequence[int]
    micro_step: Sequence[int]
    severity: Sequence[Severity]
    own: Sequence[Severity]
    side: Sequence[str]
    partner: Sequence[str | None]
    score: Sequence[Number]
    reason: Sequence[Text]
    stack: Sequence[int]
    rows: Sequence[Sequence[int]]
    communication: Sequence[Peers | None]
    edges: Sequence[tuple[int, int, int]]
    stacks: Sequence[Sequence[str]]
    values: Values


class Unit(msgspec.Struct, frozen=True):
    """One rank in one step.

    Attributes:
        label: ``step0/rank1``, ``rank0``; empty for a single dump.
        step: ``None`` if only one step was given.
        micro_steps: Number of micro steps.
        rank: ``None`` outside of a job.
        groups: Its rank within groups of ranks: ``tp``, ``pp``, ``dp``, …
        paths: Paths of the dumps of target and golden.
        nodes: Number of nodes in its graph.
        flagged: Number of nodes beyond their limit.
        severity: Largest severity of all nodes.
        graph: ``None`` if it is fetched on demand, or if the file has no room for it.
    """

    label: str
    step: int | None
    micro_steps: int
    rank: int | None
    groups: dict[str, int]
    paths: tuple[str, str | None]
    nodes: int
    flagged: int
    severity: Severity
    graph: Graph | msgspec.Raw | None = None


class Layer(msgspec.Struct, frozen=True):
    """A row of the overview: a part of the model; rows are ordered by when the first call of each part completes."""

    name: str
    order: int


class MicroHeat(msgspec.Struct, frozen=True):
    """Largest severity by layer and micro step of a unit.

    Attributes:
        columns: Index of the unit, and number of the micro step in it.
        forward: By layer and column.
        backward: By layer and column.
        parameters: Of gradients and updates of parameters, by layer and column.
    """

    columns: Sequence[tuple[int, int]]
    forward: Sequence[Sequence[Severity]]
    backward: Sequence[Sequence[Severity]]
    parameters: Sequence[Sequence[Severity]]


class Heat(msgspec.Struct, frozen=True):
    """Largest severity by layer and unit; ``micro_steps`` has it by micro step, if a unit has several."""

    layers: int
    units: int
    forward: Sequence[Sequence[Severity]]
    backward: Sequence[Sequence[Severity]]
    parameters: Sequence[Sequence[Severity]]
    micro_steps: MicroHeat | None = None


class Trend(msgspec.Struct, frozen=True):
    """One statistic of one value over steps, for each rank (``-`` outside of a job).

    ``origin`` is ``dump`` or ``monitor``; a monitor's trend may be limited to one ``micro_step``.
    """

    name: str
    slot: str
    statistic: str
    phase: str
    steps: Sequence[int]
    target: dict[str, Sequence[Number]]
    golden: dict[str, Sequence[Number]] | None = None
    micro_step: int | None = None
    origin: str = "dump"


class TensorMap(msgspec.Struct, frozen=True):
    """Where in a tensor the error is: means over bins, at most 128 by 128.

    Attributes:
        unit: Index in ``units``.
        node: Name of the node in its graph.
        slot: Slot of the value.
        axes: Meaning of rows and columns: ``row``, ``column``, ``token``, ``channel``, ``head``, ….
        shape: Number of bins along each axis.
        sizes: Number of positions covered by the bins along each axis.
        worst: Index, in the whole tensor, of the element with the largest absolute error.
        error: Root mean square of the difference in the bin, divided by that of golden in the whole tensor.
        target: Mean of the target's values in the bin.
        golden: Mean of golden's values in the bin.
        tokens: Error of each token, [sequences, tokens], see `msprobe_core.compare.tokens.token_errors`; for more than
            128 by 1,024 tokens, the largest in each bin. ``None`` if the shape has no known token dimension.
        token_sizes: Number of sequences and tokens.
    """

    unit: int
    node: str
    slot: str
    axes: tuple[str, str]
    shape: tuple[int, int]
    sizes: tuple[int, int]
    worst: Sequence[int]
    error: Sequence[Sequence[Number]]
    target: Sequence[Sequence[Number]] | None = None
    golden: Sequence[Sequence[Number]] | None = None
    tokens: Sequence[Sequence[Number]] | None = None
    token_sizes: tuple[int, int] | None = None


class MonitorRows(msgspec.Struct, frozen=True):
    """The monitored values of a training, as columns, in the order of the model.

    Attributes:
        quantity: ``actv``, ``grad_reduced``, ….
        name: Of a module with ``.input`` or ``.output``, or of a parameter, as `Trend` has it.
        micro_step: Micro-batch; ``None`` if the value belongs to the whole step.
    """

    quantity: Sequence[str]
    name: Sequence[str]
    micro_step: Sequence[int | None]


class MonitorMap(msgspec.Struct, frozen=True):
    """One statistic of all rows over the columns: of each, the rank and step that is furthest from what is usual.

    Attributes:
        statistic: Which.
        value: By row and column.
        usual: Median magnitude of its past, by row and column.
        golden: Value of golden, by row and column; ``None`` if only one training is viewed.
        rank: Of the value, as index in ``ranks``; empty if there is one rank only.
        step: Of the value; empty if each column is one step.
    """

    statistic: str
    value: Sequence[Sequence[Number]]
    usual: Sequence[Sequence[Number]]
    golden: Sequence[Sequence[Number]] | None = None
    rank: Sequence[Sequence[int | None]] = ()
    step: Sequence[Sequence[int | None]] = ()


class MonitorEvent(msgspec.Struct, frozen=True):
    """Something to look at: an anomaly, an alarm, or where two trainings diverge.

    Attributes:
        kind: ``divergence``, ``not-finite``, ``anomaly`` or ``alarm``.
        text: What there is to say.
        row: Index in the rows; -1 if they lack it.
        statistic: That shows it.
        step: Of it.
        ranks: That show it, ascending.
        count: How many events it stands for, such as the same one on several ranks.
        unit: Index in ``units`` of a dump of that step; ``None`` if the page has none.
        command: What shows a dump of that step that is not in the page; empty if there is none.
    """

    kind: str
    text: Text
    row: int
    statistic: str
    step: int
    ranks: Sequence[int]
    count: int = 1
    unit: int | None = None
    command: str = ""


class CoverageRow(msgspec.Struct, frozen=True):
    """How much of one quantity was seen, on all ranks together.

    Attributes:
        quantity: Which.
        ranks: Number of ranks that say so.
        expected: Names, each counted once for each rank; ``None`` if that is not known before.
        seen: Those of them that had a value in any step.
        finite: Those of them whose values were always finite.
        first_step: The first step with a value; ``None`` if there is none.
        missing: Some of those that were expected and never seen.
    """

    quantity: str
    ranks: int
    expected: int | None
    seen: int
    finite: int
    first_step: int | None
    missing: Sequence[str] = ()


class Dashboard(msgspec.Struct, frozen=True):
    """A monitored training at a glance.

    Attributes:
        ranks: Ascending.
        steps: Ascending.
        columns: First and last step of each column of the maps.
        rows: What the rows of the maps are.
        maps: By statistic.
        events: Divergence, anomalies and alarms, most telling first.
        num_anomalies: How many anomalies there are, listed or not.
        num_judged: Values that had enough of a past to be judged.
        num_alarms: How many alarms there are, listed or not.
        coverage: By quantity.
    """

    ranks: Sequence[int]
    steps: Sequence[int]
    columns: Sequence[tuple[int, int]]
    rows: MonitorRows
    maps: Sequence[MonitorMap]
    events: Sequence[MonitorEvent] = ()
    num_anomalies: int = 0
    num_judged: int = 0
    num_alarms: int = 0
    coverage: Sequence[CoverageRow] = ()


class CheckedOutput(msgspec.Struct, frozen=True):
    """One output of a checked call, or one gradient of its inputs; see `msprobe_core.api_check.verdict.OutputVerdict`.

    ``published`` has those columns of published standards that have a value.
    """

    path: str
    side: str
    dtype: str
    shape: Sequence[int]
    verdict: str
    reason: Text
    error: Number
    rounding: Number
    condition: Number
    own_error: Number
    times: Number
    amplification: Number
    worst: Sequence[int] | None
    bias: Number
    applied: Sequence[str]
    accepted: Sequence[str]
    published: dict[str, Number]


class CheckedCall(msgspec.Struct, frozen=True):
    """One checked call; see `msprobe_core.api_check.verdict.CallVerdict`.

    Attributes:
        entry: Its name in the dump and in the graph.
        verdict: ``wrong``, ``suspect``, ``ill_conditioned``, ``right`` or ``cannot_tell``.
        inputs: What it was replayed with.
        seed: Of made inputs.
        reach: Number of later calls that use its result; ``None`` if unknown.
        is_weak: Whether it is right and the check would have accepted most wrong results too.
        reason: Why it was not checked; empty if it was.
        notes: Further findings.
        outputs: The largest error first.
    """

    entry: str
    verdict: str
    inputs: str
    seed: int | None
    reach: int | None
    is_weak: bool
    reason: Text
    notes: Sequence[Text]
    outputs: Sequence[CheckedOutput]


class CheckedDump(msgspec.Struct, frozen=True):
    """The calls of one dump, each checked by itself.

    Attributes:
        unit: Index in ``units``; ``None`` if the page lacks the dump.
        dump: Path of the dump, as commands name it.
        headline: The answer in one sentence.
        counts: Number of calls by verdict.
        weak: Number of right calls that the check hardly proves.
        reasons: Why calls were not checked, with their number, the most frequent first.
        calls: Those that are not right by their effect, then the others in the order of the dump.
        command: Writes a reproducer; ``{entry}`` stands for the call, to be quoted for a shell.
    """

    unit: int | None
    dump: str
    headline: Text
    counts: dict[str, int]
    weak: int
    reasons: Sequence[tuple[Text, int]]
    calls: Sequence[CheckedCall]
    command: str


class SensitiveCall(msgspec.Struct, frozen=True):
    """How one call reacts to a last-bit change; see `msprobe_core.free_benchmark.ranking.Condition`.

    Attributes:
        entry: Its entry name.
        tensors: Dtypes and shapes.
        verdict: On its reaction.
        amplification: By how much relative changes grow.
        times: Noise in units of what is allowed.
    """

    entry: str
    tensors: str
    verdict: str
    amplification: Number
    times: Number


class RaisedPart(msgspec.Struct, frozen=True):
    """The contribution of modules; see `msprobe_core.free_benchmark.bisect.PartOfModules`.

    Attributes:
        modules: The module, or the first and the last one with their number.
        share: Of the whole difference.
        times: In units of noise.
        loss: With these raised; ``None`` if it is not known.
        is_joint: Whether it has this share only as a whole.
    """

    modules: str
    share: Number
    times: Number
    loss: Number
    is_joint: bool = False


class Sensitivity(msgspec.Struct, frozen=True):
    """How a step reacts to changes of last digits, or to modules with a higher precision.

    Attributes:
        headline: The answer in one sentence.
        notes: What else is to be known.
        calls: In the order in which they ended.
        parts: The largest contribution first.
        num_pairs: Number of pairs of steps that these took.
    """

    headline: Text
    notes: Sequence[Text] = ()
    calls: Sequence[SensitiveCall] = ()
    parts: Sequence[RaisedPart] = ()
    num_pairs: int = 0


class ConfigSection(msgspec.Struct, frozen=True):
    """What was compared in one part of the configurations.

    Attributes:
        name: ``model``, ``switches``, …: see `msprobe_core.config_check.differences.Section`.
        compared: Number of settings that both runs have, over all ranks.
        different: Number of differences.
        matter: How many of them can change results.
        unknown: Why nothing was compared; empty if something was.
    """

    name: str
    compared: int = 0
    different: int = 0
    matter: int = 0
    unknown: Text = ""


class ConfigDifference(msgspec.Struct, frozen=True):
    """One setting that differs; see `msprobe_core.config_check.differences.Difference`.

    Attributes:
        section: Name of its section.
        path: Place in it.
        golden_path: Place on the golden side, if it has another name.
        target: The target's value as text; ``None`` if it has none.
        golden: The golden run's value as text; ``None`` if it has none.
        only_on: The side that has it, if the other lacks it.
        severity: ``error``, ``warning``, or ``info`` if it changes no result.
        count: Number of places with the same difference.
        ranks: Ranks that show it; empty if all do.
        message: The same in words.
        explains: Whether it explains the fault: ``yes``, ``maybe``, ``no``; ``None`` if there is no fault.
        because: Why; empty if there is no fault.
    """

    section: str
    path: str
    golden_path: str | None = None
    target: str | None = None
    golden: str | None = None
    only_on: str | None = None
    severity: str = "error"
    count: int = 1
    ranks: Sequence[int] = ()
    message: Text = ""
    explains: str | None = None
    because: Text = ""


class Configured(msgspec.Struct, frozen=True):
    """The configurations of the two runs, compared.

    Attributes:
        ranks: Number of ranks compared.
        sections: In the order of their names' list.
        different: Number of all differences.
        differences: The first ones, those that explain the fault first.
    """

    ranks: int
    sections: Sequence[ConfigSection]
    different: int
    differences: Sequence[ConfigDifference] = ()


class RLFinding(msgspec.Struct, frozen=True):
    """One finding on a run of an RL trainer.

    Attributes:
        row: Index in ``rows``.
        step: Of the trainer; ``None`` if it is about all of them.
        level: ``error`` if the run is out of its limits by it, or ``warning``.
        place: What it is about: a tensor, a module, a metric; empty if it is about all.
        text: What it is.
        command: The command that shows more of it; empty if there is none.
    """

    row: int
    step: int | None
    level: str
    place: str
    text: Text
    command: str = ""


class RLCurve(msgspec.Struct, frozen=True):
    """A measure over the steps.

    Attributes:
        group: What it belongs to, such as ``weights`` or ``metrics``; curves of a group are shown together.
        name: Its name.
        target: Its value at each step.
        golden: That of the golden run; ``None`` if only one run is viewed.
        limit: What it may be at each step; ``None`` if there is no limit.
    """

    group: str
    name: str
    target: Sequence[Number]
    golden: Sequence[Number] | None = None
    limit: Sequence[Number] | None = None


class RLToken(msgspec.Struct, frozen=True):
    """A token whose log-probs differ most, in its text.

    Attributes:
        step: Of the trainer.
        sample: Row in the batch.
        id: Identity of the sample.
        position: In the response, from 0.
        training: Log-prob of the trainer, in nats.
        rollout: That of the engine that drew it.
        at: Index of the token in ``texts``.
        texts: Of the token, and of those around it.
        differences: ``training - rollout`` of these; ``None`` where a token does not count.
    """

    step: int
    sample: int
    id: str
    position: int
    training: Number
    rollout: Number
    at: int
    texts: Sequence[str]
    differences: Sequence[Number]


class RLTraining(msgspec.Struct, frozen=True):
    """A whole run of an RL trainer.

    Attributes:
        steps: Ascending.
        rows: Stages of a step and hops of its weights, causes before effects.
        severity: By row and step: 0.5 is the limit; ``None`` if nothing was recorded.
        findings: Causes before effects.
        curves: Measures over the steps.
        tokens: Those that differ most, by step.
        scale: Difference of log-probs, in nats, that is the limit of a single token; ``None`` if unknown.
    """

    steps: Sequence[int]
    rows: Sequence[str]
    severity: Sequence[Sequence[Severity]]
    findings: Sequence[RLFinding] = ()
    curves: Sequence[RLCurve] = ()
    tokens: Sequence[RLToken] = ()
    scale: Number = None


class Fact(msgspec.Struct, frozen=True):
    """What the manifest of a single run says of one part of its configuration, as text."""

    name: str
    value: str


class ViewData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a page shows.

    Attributes:
        format: `FORMAT`.
        version: `VERSION`.
        made: Release and time.
        kind: What the page shows.
        title: Title for the reader.
        sides: The runs.
        verdict: The answer.
        culprits: Strongest first.
        units: By step and rank.
        layers: Rows of the overview.
        heat: The overview; ``None`` if there is nothing to compare with.
        trends: Statistics over steps, for values that represent the layers.
        tensors: Where in tensors the errors are.
        monitor: A monitored training at a glance; ``None`` if there is none.
        checked: Dumps whose calls were checked one by one.
        sensitivity: Reactions of a step; ``None`` if there are none.
        configured: The configurations of two runs; ``None`` if they were not compared.
        rl: A run of an RL trainer; ``None`` if it is none.
        manifest: The configuration of a single run in short; empty if it was not recorded.
        commands: Commands for further investigation, by purpose; ``{target}``, ``{golden}`` and ``{node}`` stand for
            the paths of a unit and the name of a node, to be quoted for a shell.
        notes: Notes about the data.
    """

    format: str = FORMAT
    version: int = VERSION
    made: Made
    kind: Kind
    title: str
    sides: Sides
    verdict: Verdict
    culprits: Sequence[Culprit] = ()
    units: Sequence[Unit] = ()
    layers: Sequence[Layer] = ()
    heat: Heat | None = None
    trends: Sequence[Trend] = ()
    tensors: Sequence[TensorMap] = ()
    monitor: Dashboard | None = None
    checked: Sequence[CheckedDump] = ()
    sensitivity: Sensitivity | None = None
    configured: Configured | None = None
    rl: RLTraining | None = None
    manifest: Sequence[Fact] = ()
    commands: dict[str, str] = {}
    notes: Sequence[Text] = ()


_DECADES_BELOW, _DECADES_ABOVE = 4.0, 3.0
"""Range of severities, in decades of the error below and above its limit."""


def severity_of(excess: float | None) -> float | None:
    """Return the severity of an error.

    Args:
        excess: The error divided by its limit; ``None`` if there is nothing to compare with.

    Returns: 0.5 at the limit, on a logarithmic scale from 0, four decades below it, to 1, three decades above it.
    """
    if excess is None or math.isnan(excess):
        return None
    if excess <= 0:
        return 0.0
    if math.isinf(excess):
        return 1.0
    decades = math.log10(excess)
    place = decades / _DECADES_ABOVE if decades > 0 else decades / _DECADES_BELOW
    return round(min(1.0, max(0.0, 0.5 + 0.5 * place)), 4)


def number(value: float | None) -> Number:
    """Return a number in the form of the file."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
