"""Files for Google's Model Explorer: graphs, severities as node data, and a mapping that links both panes.

Source: google-ai-edge/model-explorer, ``src/ui/src/components/visualizer/common/``: ``input_graph.ts`` (graphs),
``types.ts`` (``NodeDataProviderGraphData``) and ``sync_navigation.ts``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msprobe_core.exports.graphs import SideOf, UnitGraph, sides_of, unit_graphs
from msprobe_core.protocols.presentation import Page
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory, tensor_file_name
from msprobe_core.untrusted.paths import encode_json
from msprobe_core.view.data import ViewData, text_of

GRAPHS, NODE_DATA = "graphs.json", "node_data.json"

_STYLES = (
    (0.3, "#fffcf3"),
    (0.5, "#ffedbe"),
    (0.75, "#fdae61"),
    (1.0, "#d7301f"),
)
"""Colours up to each severity, from yellow to red, a range that people with red-green blindness can distinguish."""

_NO_SLASH = "\u2215"
"""A division slash; a plain slash in a name would split the path."""

_STATISTICS = ("max", "min", "mean", "norm", "value")


def write(page: Page) -> Sequence[Path]:
    """Write the graphs and node data of all units, and a mapping per unit of a comparison; return the files.

    Raises:
        StoreError: a file cannot be written.
    """
    data: ViewData = page.data
    directory = page.directory / "model_explorer"
    make_directory(directory, below=page.directory)
    graphs: list[dict[str, Any]] = []
    node_data: dict[str, Any] = {}
    paths = [directory / GRAPHS, directory / NODE_DATA]
    for own in unit_graphs(data, page.graphs):
        for side in sides_of(data):
            name = _graph_id(own, side, is_pair=data.sides.golden is not None)
            graphs.append({"id": name, "nodes": _nodes(own, side), "groupNodeAttributes": _groups(own, side)})
            results = dict(_severities(own, side))
            if results:
                node_data[name] = {"results": results, "thresholds": _thresholds()}
        if data.sides.golden is not None:
            paths.append(directory / tensor_file_name(f"mapping_{own.label.replace('/', '_')}", ".json"))
            _write(paths[-1], {"type": "sync_navigation", "mapping": dict(_mapping(own))})
    _write(paths[0], [{"label": data.title, "graphs": graphs}])
    _write(paths[1], node_data)
    return paths


def _write(path: Path, content: object) -> None:
    with whole_file(path) as file:
        file.write(encode_json(content))


def _graph_id(own: UnitGraph, side: SideOf, *, is_pair: bool) -> str:
    return f"{own.label} {side.value}" if is_pair else own.label


def _thresholds() -> list[dict[str, Any]]:
    return [{"value": value, "bgColor": colour} for value, colour in _STYLES]


def _is_leaf(own: UnitGraph, side: SideOf, node: int) -> bool:
    return own.has(side, node) and not any(own.has(side, each) for each in own.children.get(node, ()))


def _namespace(own: UnitGraph, side: SideOf, node: int) -> str:
    """Return the path of a node's ancestors, whose parts are names that are unique among siblings."""
    return "/".join(_part(own, side, each) for each in own.ancestors(node))


def _part(own: UnitGraph, side: SideOf, node: int) -> str:
    return own.name(side, node).replace("/", _NO_SLASH)


def _nodes(own: UnitGraph, side: SideOf) -> list[dict[str, Any]]:
    leaves = [node for node in range(len(own.graph.name)) if _is_leaf(own, side, node)]
    is_leaf = set(leaves)
    incoming: dict[int, list[dict[str, str]]] = {}
    for producer, consumer, row in own.graph.edges:
        if producer in is_leaf and consumer in is_leaf:
            edge = {
                "sourceNodeId": own.name(side, producer),
                "sourceNodeOutputId": "0",
                "targetNodeInputId": own.graph.values.slot[row],
            }
            incoming.setdefault(consumer, []).append(edge)
    return [
        {
            "id": own.name(side, node),
            "label": own.graph.label[node],
            "namespace": _namespace(own, side, node),
            "attrs": _attributes(own, node),
            "incomingEdges": incoming.get(node, []),
            "inputsMetadata": _metadata(own, side, node, is_input=True),
            "outputsMetadata": _metadata(own, side, node, is_input=False),
        }
        for node in leaves
    ]


def _attributes(own: UnitGraph, node: int) -> list[dict[str, str]]:
    graph = own.graph
    stack = graph.stacks[graph.stack[node]] if graph.stack[node] != -1 else ()
    told = {
        "phase": graph.phase[node],
        "only on": graph.side[node] if graph.side[node] != "both" else "",
        "reason": text_of(graph.reason[node]),
        "called from": stack[0] if stack else "",
    }
    return [{"key": key, "value": value} for key, value in told.items() if value]


def _metadata(own: UnitGraph, side: SideOf, node: int, *, is_input: bool) -> list[dict[str, Any]]:
    values = own.graph.values
    statistics = values.target if side is SideOf.TARGET else values.golden or {}
    place = 0 if side is SideOf.TARGET else 1
    found: list[dict[str, Any]] = []
    for row in own.graph.rows[node]:
        slot = values.slot[row]
        is_there = values.dtype[row][place] is not None or values.shape[row][place] is not None
        if not is_there or slot.startswith(("input", "kwargs", "parameters")) is not is_input:
            continue
        described = {"dtype": values.dtype[row][place], "shape": values.shape[row][place]}
        described |= {name: statistics[name][row] for name in _STATISTICS if name in statistics}
        described |= {"error": values.metrics["error"][row]} if "error" in values.metrics else {}
        attributes = [{"key": key, "value": str(value)} for key, value in described.items() if value is not None]
        found.append(
            {"id": slot if is_input else str(len(found)), "attrs": [{"key": "name", "value": slot}, *attributes]}
        )
    return found


def _groups(own: UnitGraph, side: SideOf) -> dict[str, dict[str, str]]:
    """Return the attributes of nodes that have children, by path."""
    found: dict[str, dict[str, str]] = {}
    for node, kind in enumerate(own.graph.kind):
        if own.has(side, node) and not _is_leaf(own, side, node):
            above = _namespace(own, side, node)
            path = f"{above}/{_part(own, side, node)}" if above else _part(own, side, node)
            own_severity = own.graph.own[node]
            told = {"kind": kind, "class": own.graph.type[node], "reason": text_of(own.graph.reason[node])}
            told |= {} if own_severity is None else {"severity": str(own_severity)}
            found[path] = {key: value for key, value in told.items() if value}
    return found


def _severities(own: UnitGraph, side: SideOf) -> Iterable[tuple[str, dict[str, Any]]]:
    for node, severity in enumerate(own.graph.own):
        if severity is not None and _is_leaf(own, side, node):
            yield own.name(side, node), {"value": severity}


def _mapping(own: UnitGraph) -> Iterable[tuple[str, str]]:
    for node, partner in enumerate(own.graph.partner):
        if partner is not None and _is_leaf(own, SideOf.TARGET, node):
            yield own.graph.name[node], partner
