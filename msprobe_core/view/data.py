"""What a page shows, as it stands in the file; docs/view_format.md describes it for those who read it elsewhere.

Columns, not objects: a graph of 50,000 calls has 150,000 values, and a browser reads columns several times faster.
Numbers are rounded to seven digits; those that are not finite are the texts ``nan``, ``inf`` and ``-inf``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from msprobe_core.findings import Code, Field, Finding, Level, Place, content_of, finding_of, noted, template_of
from msprobe_core.untrusted.paths import encode_json

FORMAT = "msprobe-view"
VERSION = 2

Number = float | int | str | None
"""A number; the text of one that is not finite; ``None`` where there is none."""

Severity = float | str | None
"""0 is right, 0.5 the limit, 1 as wrong as can be, see `severity_of`; ``None`` where there is nothing to hold against.
(Never a text: the type is shared with columns of numbers.)"""


class Said(msgspec.Struct, frozen=True):
    """A finding: the page has the templates of its code in every language."""

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
    """Return a finding as pages have it; those of other packages, whose templates no page has, as their text."""
    of_core = finding.code.package() == Code.package()
    return msgspec.convert(content_of(_typed(finding) if of_core else noted(finding.text)), Said)


def _typed(finding: Finding) -> Finding:
    """Return a finding with text for whole floats without a format, which pages cannot tell from integers."""
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
    """Return what a page says in English."""
    return text.text if isinstance(text, Said) else text


class Kind(str, Enum):
    """What a page is of."""

    DUMP = "dump"
    COMPARISON = "comparison"
    MONITOR = "monitor"


class NodeKind(str, Enum):
    """What a node of a graph is."""

    MODULE = "module"
    API = "api"
    COLLECTION = "collection"
    VALUE = "value"


class State(str, Enum):
    """What a page's first sentence says."""

    AGREE = "agree"
    FAULT = "fault"
    INSUFFICIENT = "insufficient"
    NONE = "none"


class Made(msgspec.Struct, frozen=True):
    """Which release has made the data, and when (ISO 8601, UTC)."""

    msprobe: str
    at: str


class Side(msgspec.Struct, frozen=True):
    """One of the two runs."""

    path: str
    framework: str
    task: str
    level: str
    parallel: dict[str, int] | None = None


class Sides(msgspec.Struct, frozen=True):
    """The runs; ``golden`` is ``None`` where a single dump is looked at."""

    target: Side
    golden: Side | None = None


class Check(msgspec.Struct, frozen=True):
    """A precondition: ``state`` is ``holds``, ``differs`` or ``unknown``."""

    name: str
    state: str
    detail: Text


class Counts(msgspec.Struct, frozen=True):
    """How many calls were looked at, how many of them are beyond what is allowed, how many have no partner."""

    nodes: int = 0
    flagged: int = 0
    unmatched: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """The answer, what it rests on, and against what measure of rounding it was found.

    ``incomplete`` says in words which dumps ended early, are damaged or missing, so that the answer is not of all.
    """

    state: State
    sentence: Text
    detail: Sequence[Text] = ()
    checks: Sequence[Check] = ()
    counts: Counts = msgspec.field(default_factory=Counts)
    noise: Text = ""
    incomplete: Sequence[Text] = ()


class Evidence(msgspec.Struct, frozen=True):
    """One value that speaks for a culprit."""

    row: str
    message: Sequence[Text] = ()
    score: Number = None
    limit: Number = None


class Culprit(msgspec.Struct, frozen=True):
    """A place where the fault may be.

    Attributes:
        unit: Index in ``units`` of the first rank that shows it.
        node: Its name in that unit's graph; ``None`` if the graph has no such node.
        step: Number of the step; ``None`` where only one was given.
        ranks: All that show it.
        kind: What sort of fault, in words.
        strength: ``strong``, ``moderate`` or ``weak``.
        score: In units of what rounding explains.
        limit: What the score must exceed.
        reason: Why it is suspected.
        evidence: Its values, those that differ most first.
        parents: Names of the calls that enclose it, innermost first.
        stack: Frames, innermost first.
        command: What to run next; empty if there is nothing to say.
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
    """Where a call of communication sends to and receives from.

    Attributes:
        peers: Index of the unit, and name of the node there.
        sends: Indices in ``peers`` of those that receive from this call.
        receives: Likewise of those whose data this call receives.
        more: How many further peers there are.
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
        shape: Likewise, as text.
        target: Columns by statistic; a statistic that no value has is left out. ``value`` holds arguments as text,
            ``checksum`` text as well, the others numbers.
        golden: Likewise; ``None`` where a single dump is looked at.
        metrics: Columns by name: errors of target against golden, ``error`` being the one that was judged, ``limit``
            and ``score``, the error in units of what rounding explains.
        verdict: ``pass``, ``warning``, ``error`` or ``none``, where there is nothing to hold against.
        reason: What was found of each value, with what levels.
        file: Of the tensors of target and golden.
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
    """The calls of one rank in one step, as columns; parents stand before their children, calls in execution order.

    Attributes:
        name: Unique within the graph.
        label: What to show in a small place.
        type: Class of a module, prefix of an API.
        kind: A `NodeKind`.
        phase: ``forward``, ``backward``, ``parameters_grad``, ``optimizer`` or empty.
        parent: Index of the enclosing node; -1 at the top.
        micro_step: Which micro-batch of the step.
        severity: The worst of the node and all in it.
        own: Of the node by itself.
        side: ``both``, ``target`` or ``golden``: who has it.
        partner: What the golden run calls it.
        score: Largest error of what it made, in units of what rounding explains.
        reason: Why it is beyond its limit; empty if it is not.
        stack: Index in ``stacks``; -1 if unknown.
        rows: Indices in ``values``.
        communication: Of calls of communication; ``None`` for others.
        edges: Producer, consumer and, where it is known, index in ``values`` of the consumer's input.
        stacks: Frames, innermost first.
        values: Of all nodes.
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
        step: ``None`` where only one was given.
        micro_steps: How many there are.
        rank: ``None`` outside of a job.
        groups: Its number within groups of ranks: ``tp``, ``pp``, ``dp``, …
        paths: Where the dumps of target and golden are.
        nodes: How many its graph has.
        flagged: How many of them are beyond their limit.
        severity: The worst of all.
        graph: ``None`` where it is fetched when it is needed, or where the file has no room for it.
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
    """A row of the overview: a part of the model, by the order in which the first call of it is complete."""

    name: str
    order: int


class MicroHeat(msgspec.Struct, frozen=True):
    """Worst severity by layer and micro step of a unit.

    Attributes:
        columns: Index of the unit, and which micro step of it.
        forward: By layer and column.
        backward: Likewise.
        parameters: Likewise, of gradients and updates of parameters.
    """

    columns: Sequence[tuple[int, int]]
    forward: Sequence[Sequence[Severity]]
    backward: Sequence[Sequence[Severity]]
    parameters: Sequence[Sequence[Severity]]


class Heat(msgspec.Struct, frozen=True):
    """Worst severity by layer and unit; ``micro_steps`` by micro step too, where a unit has several."""

    layers: int
    units: int
    forward: Sequence[Sequence[Severity]]
    backward: Sequence[Sequence[Severity]]
    parameters: Sequence[Sequence[Severity]]
    micro_steps: MicroHeat | None = None


class Trend(msgspec.Struct, frozen=True):
    """One statistic of one value over steps, for each rank (``-`` outside of a job).

    ``origin`` is ``dump`` or ``monitor``; what a monitor has followed may be of one ``micro_step``.
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
    """Where in a tensor the error sits: mean over bins, at most 128 by 128.

    Attributes:
        unit: Index in ``units``.
        node: Name in its graph.
        slot: Which value.
        axes: What rows and columns are: ``row``, ``column``, ``token``, ``channel``, ``head``, ….
        shape: How many bins.
        sizes: How many places the bins cover along each axis.
        worst: Index, in the whole tensor, of the element with the largest absolute error.
        error: Root of the mean squared difference in the bin over that of golden in the whole tensor.
        target: Mean of the values.
        golden: Likewise.
        tokens: Error of each token, [sequences, tokens], see `msprobe_core.compare.tokens.token_errors`; of more than
            128 by 1,024 the largest in each bin. ``None`` of shapes whose tokens are not known.
        token_sizes: How many sequences and tokens there are.
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


class ViewData(msgspec.Struct, frozen=True, kw_only=True):
    """All that a page shows.

    Attributes:
        format: `FORMAT`.
        version: `VERSION`.
        made: By what, and when.
        kind: What it is of.
        title: For people.
        sides: The runs.
        verdict: The answer.
        culprits: The best first.
        units: By step and rank.
        layers: Rows of the overview.
        heat: The overview; ``None`` if there is nothing to hold against.
        trends: Over steps, of what stands for the layers.
        tensors: Where in tensors errors sit.
        commands: Commands that dig deeper by what they do; ``{target}``, ``{golden}`` and ``{node}`` stand for the
            paths of a unit and the name of a node, to be quoted for a shell.
        notes: What there is to say about the data.
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
    commands: dict[str, str] = {}
    notes: Sequence[Text] = ()


_DECADES_BELOW, _DECADES_ABOVE = 4.0, 3.0
"""How far below and above its limit an error is told from none and from any larger one."""


def severity_of(excess: float | None) -> float | None:
    """Return the severity of an error.

    Args:
        excess: The error over its limit; ``None`` where there is nothing to hold against.

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
    """Return a number as the file has it."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def encode(data: object) -> bytes:
    """Return data as JSON, in UTF-8."""
    return encode_json(data)
