"""The graph of one unit, in the form that the page reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from msprobe_core import names
from msprobe_core.judge.data_flow import edges_of
from msprobe_core.judge.row_findings import FINDINGS, findings_of
from msprobe_core.model import Phase
from msprobe_core.store.stack_text import frames_of_user
from msprobe_core.view.calls import SIDES, Calls
from msprobe_core.view.data import Graph, NodeKind, Number, Peers, Severity, Values, number, said_of, severity_of
from msprobe_core.view.tree import Tree, tree_of

_OPTIMIZER = "optimizer"
_PHASES = {
    Phase.FORWARD.value: "forward",
    Phase.BACKWARD.value: "backward",
    Phase.PARAMETERS_GRAD.value: "parameters_grad",
}
_MAX_FRAMES = 24


@dataclass(frozen=True)
class UnitGraph:
    """A graph, and its figures for the overview.

    Attributes:
        graph: The graph in the page's form.
        tree: Its nodes.
        worst: Largest severity of all nodes; ``None`` if there is nothing to compare with.
        num_flagged: Number of calls with an error that no rule explains.
        num_unmatched: Number of calls that only one side has.
    """

    graph: Graph
    tree: Tree
    worst: Severity
    num_flagged: int
    num_unmatched: int

    @property
    def num_calls(self) -> int:
        """Number of recorded calls."""
        return sum(call != -1 for call in self.tree.calls)


def graph_of(own: Calls, peers: Mapping[str, Peers] | None = None) -> UnitGraph:
    """Return the graph of a unit.

    Args:
        own: Its calls.
        peers: Communication partners by name of a call.
    """
    calls = own.calls
    columns = {name: calls[name].to_list() for name in calls.columns}
    tree = tree_of(columns["name"], columns["phase"], own.parents)
    excesses = dict(enumerate(columns["excess"]))
    severities = [severity_of(excesses.get(call)) for call in tree.calls]
    stacks, stack_of = _stacks(own, columns)

    def of_call(name: str, default: object) -> list[object]:
        return [default if call == -1 else columns[name][call] for call in tree.calls]

    scores = [number(None if call == -1 else _rounded(columns["score"][call])) for call in tree.calls]
    graph = Graph(
        name=tree.names,
        label=[_label(name, kind) for name, kind in zip(tree.names, tree.kinds, strict=True)],
        type=[_type(name) for name in tree.names],
        kind=[kind.value for kind in tree.kinds],
        phase=_phases(tree, columns["phase"]),
        parent=tree.parents,
        micro_step=tree.micro_steps,
        severity=_aggregated(tree, severities),
        own=severities,
        side=[str(side) for side in of_call("side", "both" if own.is_pair else "target")],
        partner=[None if partner is None else str(partner) for partner in of_call("partner", None)],
        score=scores,
        reason=[said_of(found) if (found := own.reasons.get(name)) else "" for name in tree.names],
        stack=[-1 if call == -1 else stack_of[call] for call in tree.calls],
        rows=_rows(tree, own.values),
        communication=[None if peers is None else peers.get(name) for name in tree.names],
        edges=edges_of(tree.parents, tree.calls, own.values),
        stacks=stacks,
        values=_values(own),
    )
    known = [severity for severity in severities if severity is not None]
    return UnitGraph(
        graph=graph,
        tree=tree,
        worst=max(known, default=None),
        num_flagged=int(calls["is_flagged"].sum()),
        num_unmatched=int((calls["side"] != "both").sum()) if own.is_pair else 0,
    )


def _rounded(value: float | None) -> float | None:
    return value if value is None else float(f"{value:.5g}")


def _aggregated(tree: Tree, own: Sequence[float | None]) -> list[Severity]:
    """Return for each node the largest severity of the node and its descendants."""
    worst = list(own)
    for node in range(len(worst) - 1, -1, -1):  # descendants follow their ancestors, so visit them first
        parent, value = tree.parents[node], worst[node]
        if parent != -1 and value is not None:
            above = worst[parent]
            worst[parent] = value if above is None else max(above, value)
    return list(worst)


def _label(name: str, kind: NodeKind) -> str:
    """Return a short label: the end of a module's path, or an API with its index; with the number of later passes."""
    stem = None if kind is NodeKind.COLLECTION else names.stem_of(name)
    if stem is None:
        return name
    site = names.parse_entry(name)
    ending = f" pass {site.backward_pass}" if site.backward_pass else ""
    if names.is_module(stem):
        last = site.path.rpartition(".")[2] or site.type_name
        return f"{last} gradients" if kind is NodeKind.VALUE else last + ending
    return f"{site.path}.{site.index}{ending}"


def _type(name: str) -> str:
    stem = names.stem_of(name)
    if stem is None:
        return ""
    return names.split_module(stem)[2] if names.is_module(stem) else names.split_api(stem)[0]


def _phases(tree: Tree, phases: Sequence[str]) -> list[str]:
    found: list[str] = []
    for node, call in enumerate(tree.calls):
        if tree.is_stepping[node]:
            found.append(_OPTIMIZER)
        elif call != -1:
            found.append(_PHASES.get(phases[call], ""))
        else:
            found.append(_phase_of_name(tree.names[node]))
    # A collection has the phase of its members.
    for node in range(len(found) - 1, -1, -1):
        parent = tree.parents[node]
        if parent != -1 and tree.kinds[parent] is NodeKind.COLLECTION and not found[parent]:
            found[parent] = found[node]
    return found


def _phase_of_name(name: str) -> str:
    if not names.is_module(name):
        return ""
    return "backward" if names.is_backward(name) else "forward"


def _stacks(own: Calls, columns: Mapping[str, Sequence[str]]) -> tuple[list[Sequence[str]], list[int]]:
    """Return the distinct stacks, and the index of each call's stack; a backward has the stack of its forward."""
    found: dict[tuple[str, ...], int] = {}
    places: list[int] = []
    for name in columns["name"]:
        frames = own.stacks.get(name) or own.stacks.get(names.forward_of(name) or "")
        if not frames:
            places.append(-1)
            continue
        shown = tuple(" ".join(frame.split()) for frame in frames_of_user(frames)[:_MAX_FRAMES])
        places.append(found.setdefault(shown, len(found)))
    return [list(frames) for frames in found], places


def _rows(tree: Tree, values: pl.DataFrame) -> list[Sequence[int]]:
    bounds = values.with_row_index("row").group_by("call").agg(first=pl.col("row").min(), last=pl.col("row").max())
    of_call = {call: range(first, last + 1) for call, first, last in bounds.rows()}
    return [list(of_call.get(call, ())) for call in tree.calls]


def _values(own: Calls) -> Values:
    values = own.values
    sides = SIDES if own.is_pair else SIDES[:1]

    def pairs(name: str) -> list[tuple[str | None, str | None]]:
        columns = [values[f"{name}_{side}"].to_list() if side in sides else [None] * values.height for side in SIDES]
        return list(zip(*columns, strict=True))

    def statistics(side: str) -> dict[str, Sequence[Number]]:
        return {name: numbers_of(values[f"{name}_{side}"]) for name in own.statistics}

    return Values(
        slot=values["slot"].to_list(),
        dtype=pairs("dtype"),
        shape=pairs("shape"),
        target=statistics("target"),
        golden=statistics("golden") if own.is_pair else None,
        metrics={name: numbers_of(values[name]) for name in own.metrics},
        verdict=values["verdict"].to_list(),
        reason=[[said_of(found) for found in findings_of(cell)] for cell in values[FINDINGS].to_list()],
        file=pairs("file"),
    )


def numbers_of(column: pl.Series) -> Sequence[Number]:
    """Return a column as a list in the form of the file."""
    if column.dtype == pl.Float64 and not column.is_finite().all():
        return [number(value) for value in column.to_list()]
    return column.to_list()
