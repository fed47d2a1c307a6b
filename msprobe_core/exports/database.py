"""The SQLite file of the established viewer: ``tb_nodes``, ``tb_stack`` and ``tb_config``.

Each node occurs once per side that has it: ``NPU`` is the target, ``Bench`` the golden run. All nodes are descendants
of a root called ``DefaultModel`` and are stored in post-order.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msprobe_core.compat.spellings import METRICS, RELATIVE_STATISTICS, STATISTIC_TITLES
from msprobe_core.exports.graphs import SideOf, UnitGraph, sides_of, unit_graphs
from msprobe_core.exports.whole_database import whole_database
from msprobe_core.protocols.presentation import Page, PageGraphs
from msprobe_core.report.default_table import TENSOR_HEADERS
from msprobe_core.untrusted.paths import encode_json
from msprobe_core.view.data import Number, Peers, ViewData

ROOT = "DefaultModel"

_SOURCES = {SideOf.TARGET: "NPU", SideOf.GOLDEN: "Bench"}
_TYPES = {"module": "0", "api": "1", "value": "1", "collection": "9"}
_TASKS = {"statistics": "summary", "tensor": "all"}
_STATISTICS = {"max": "Max", "min": "Min", "mean": "Mean", "norm": "Norm"}
_COLOURS = {
    "#FFFCF3": {"value": [0, 0.3], "description": "pass"},
    "#FFDC7F": {"value": [0.3, 0.6], "description": "warning"},
    "#FF704D": {"value": [0.6, 1], "description": "error"},
    "#C7C7C7": {"value": "unmatched", "description": "no partner"},
}

_COLUMNS: dict[str, str] = {
    "id": "TEXT PRIMARY KEY",
    "graph_id": "TEXT NOT NULL",
    "node_order": "INTEGER NOT NULL",
    "node_name": "TEXT NOT NULL",
    "node_type": "TEXT NOT NULL",
    "up_node": "TEXT",
    "sub_nodes": "TEXT",
    "precision_index": "REAL",
    "overflow_level": "TEXT",
    "micro_step_id": "INTEGER",
    "matched_node_link": "TEXT",
    "stack_id": "INTEGER",
    "parallel_merge_info": "TEXT",
    "matched_distributed": "TEXT",
    "modified": "INTEGER",
    "input_data": "TEXT",
    "output_data": "TEXT",
    "data_source": "TEXT NOT NULL",
    "dump_data_dir": "TEXT",
    "step": "INTEGER NOT NULL",
    "rank": "INTEGER NOT NULL",
    "is_distributed": "INTEGER",
}
_INDEXES = (
    ("graph_id", "node_order"), ("graph_id", "node_name"), ("graph_id", "up_node"), ("graph_id", "precision_index"),
    ("graph_id", "overflow_level"), ("graph_id", "node_type"), ("step", "rank", "data_source"),
)  # fmt: skip


def write(page: Page) -> Sequence[Path]:
    """Write the file, readable by its owner only, and return its path.

    Raises:
        StoreError: it cannot be written; no partial file remains.
    """
    path = page.directory / f"{page.stem}.vis.db"
    with whole_database(path) as connection:
        _fill(connection, page.data, page.graphs)
    return [path]


def _fill(connection: sqlite3.Connection, data: ViewData, page_graphs: PageGraphs) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
    connection.execute(f"CREATE TABLE tb_nodes ({columns})")
    connection.execute("CREATE TABLE tb_stack (id INTEGER PRIMARY KEY, stack_info TEXT)")
    connection.execute(
        "CREATE TABLE tb_config (id INTEGER PRIMARY KEY, graph_type TEXT, task TEXT, tool_tip TEXT, "
        "micro_steps INTEGER, overflow_check INTEGER, node_colors TEXT, rank_list TEXT, step_list TEXT)"
    )
    places = ", ".join("?" * len(_COLUMNS))
    stacks: dict[str, int] = {}
    writer = _Writer(data, stacks)
    for own in unit_graphs(data, page_graphs):
        for side in sides_of(data):
            rows = (tuple(row[name] for name in _COLUMNS) for row in writer.rows(own, side))
            connection.executemany(f"INSERT INTO tb_nodes VALUES ({places})", rows)  # noqa: S608  # question marks
    connection.executemany("INSERT INTO tb_stack VALUES (?, ?)", [(number, text) for text, number in stacks.items()])
    connection.execute("INSERT INTO tb_config VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)", _config(data))
    for number, index in enumerate(_INDEXES):
        connection.execute(f"CREATE INDEX idx_{number} ON tb_nodes ({', '.join(index)})")


def _config(data: ViewData) -> tuple[Any, ...]:
    units = data.units
    return (
        "build" if data.sides.golden is None else "compare",
        _TASKS.get(data.sides.target.task, ""),
        _json({"severity": "0.5 is the limit, 1 as wrong as can be, on a logarithmic scale"}),
        max((unit.micro_steps for unit in units), default=1),
        0,
        _json(_COLOURS),
        _json(sorted({unit.rank or 0 for unit in units})),
        _json(sorted({unit.step or 0 for unit in units})),
    )


def _json(content: object) -> str:
    return encode_json(content).decode()


class _Writer:
    """Creates the rows of the nodes."""

    def __init__(self, data: ViewData, stacks: dict[str, int]) -> None:
        self._data = data
        self._is_pair = data.sides.golden is not None
        self._stacks = stacks

    def rows(self, own: UnitGraph, side: SideOf) -> Iterator[Mapping[str, Any]]:
        """Yield a side's rows of a unit in post-order, the root last."""
        graph_id = f"{_SOURCES[side]}_{own.unit.step or 0}_{own.unit.rank or 0}"
        shared = {
            "graph_id": graph_id,
            "data_source": _SOURCES[side],
            "dump_data_dir": own.unit.paths[0 if side is SideOf.TARGET else 1],
            "step": own.unit.step or 0,
            "rank": own.unit.rank or 0,
            "overflow_level": None,
            "parallel_merge_info": None,
            "modified": 0,
        }
        order = 0
        seen = {f"{graph_id}_{ROOT}"}
        for node in own.post_order():
            if own.has(side, node):
                row = self._row(own, side, node)
                # Several calls of the target may have one partner, so repeated identifiers get a number.
                row["id"] = row["id"] if row["id"] not in seen else f"{row['id']}.{order}"
                seen.add(row["id"])
                yield shared | row | {"node_order": order}
                order += 1
        top = [own.name(side, node) for node in own.children.get(-1, ()) if own.has(side, node)]
        yield dict.fromkeys(_COLUMNS) | shared | {
            "id": f"{graph_id}_{ROOT}", "node_order": order, "node_name": ROOT, "node_type": "0",
            "sub_nodes": _json(top), "micro_step_id": 0, "is_distributed": 0, "input_data": "{}", "output_data": "{}",
            "matched_node_link": _json([ROOT] if self._is_pair else []),
        }  # fmt: skip

    def _row(self, own: UnitGraph, side: SideOf, node: int) -> dict[str, Any]:
        graph = own.graph
        parent = graph.parent[node]
        name = own.name(side, node)
        severity = graph.own[node] if graph.kind[node] != "collection" else graph.severity[node]
        peers = graph.communication[node]
        given, made = _values(own, side, node)
        return {
            "id": f"{_SOURCES[side]}_{own.unit.step or 0}_{own.unit.rank or 0}_{name}",
            "node_name": name,
            "node_type": _TYPES[graph.kind[node]],
            "up_node": ROOT if parent == -1 else own.name(side, parent),
            "sub_nodes": _json([own.name(side, each) for each in own.children.get(node, ()) if own.has(side, each)]),
            "precision_index": None if severity is None else float(float(severity) > 0.5),  # 0.5 is the limit
            "micro_step_id": graph.micro_step[node],
            "matched_node_link": _json(self._link(own, side, node)),
            "stack_id": self._stack_id(own, node),
            "matched_distributed": None if peers is None else _json(self._distributed(peers)),
            "input_data": _json(given),
            "output_data": _json(made),
            "is_distributed": int(peers is not None),
        }

    def _link(self, own: UnitGraph, side: SideOf, node: int) -> list[str]:
        """Return the partner's ancestors and the partner, the root first; empty for a node without a partner."""
        if not self._is_pair or own.graph.side[node] != "both":
            return []
        other = SideOf.GOLDEN if side is SideOf.TARGET else SideOf.TARGET
        return [ROOT, *(own.name(other, each) for each in (*own.ancestors(node), node) if own.has(other, each))]

    def _stack_id(self, own: UnitGraph, node: int) -> int | None:
        place = own.graph.stack[node]
        return None if place == -1 else self._stacks.setdefault(_json(own.graph.stacks[place]), len(self._stacks) + 1)

    def _distributed(self, peers: Peers) -> dict[str, Any]:
        kind = "send_receive" if peers.sends and peers.receives else "send" if peers.sends else "receive"
        nodes = {
            str(self._data.units[unit].rank or 0): [self._data.units[unit].severity, name] for unit, name in peers.peers
        }
        return {"communications_type": kind, "nodes_info": nodes}


def _values(own: UnitGraph, side: SideOf, node: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs of a call, including its parameters, and its outputs; all as text."""
    values = own.graph.values
    place = 0 if side is SideOf.TARGET else 1
    name = own.name(side, node)
    given: dict[str, Any] = {}
    made: dict[str, Any] = {}
    for row in own.graph.rows[node]:
        if values.dtype[row][place] is None and values.shape[row][place] is None:
            continue  # only the other side has it
        slot = values.slot[row]
        part = given if slot.startswith(("input", "kwargs", "parameters")) else made
        part[f"{name}.{slot}"] = _fields(own, row, side)
    return given, made


def _fields(own: UnitGraph, row: int, side: SideOf) -> dict[str, str]:
    values = own.graph.values
    place = 0 if side is SideOf.TARGET else 1
    statistics = values.target if side is SideOf.TARGET else values.golden or {}
    argument = _at(statistics, "value", row)
    fields: dict[str, object] = {
        "type": "torch.Tensor" if argument is None else values.dtype[row][place],
        "dtype": values.dtype[row][place],
        "shape": values.shape[row][place],
    }
    fields |= {
        title: argument if argument is not None else _at(statistics, name, row) for name, title in _STATISTICS.items()
    }
    fields |= {"requires_grad": _at(statistics, "requires_grad", row), "data_name": values.file[row][place]}
    if side is SideOf.TARGET and values.golden is not None:
        fields |= _differences(values.target, values.golden, values.metrics, row)
    return {name: "None" if value is None else str(value) for name, value in fields.items()}


def _differences(
    target: Mapping[str, Sequence[Number]],
    golden: Mapping[str, Sequence[Number]],
    metrics: Mapping[str, Sequence[Number]],
    row: int,
) -> dict[str, object]:
    if "cosine_similarity" in metrics:
        return {
            title: "N/A" if (value := _at(metrics, TENSOR_HEADERS[name], row)) is None else value
            for name, title in METRICS.items()
        }
    found: dict[str, object] = {}
    for name, title in STATISTIC_TITLES.items():
        sides = _at(target, name, row), _at(golden, name, row)
        relative = _at(metrics, f"{name}_rel", row)
        is_number = all(isinstance(value, int | float) for value in sides)
        found[f"{title} diff"] = float(sides[0] or 0) - float(sides[1] or 0) if is_number else "N/A"
        in_percent = f"{100 * relative}%" if isinstance(relative, int | float) else "N/A"
        found[f"{RELATIVE_STATISTICS[name]}RelativeErr"] = in_percent
    return found


def _at(columns: Mapping[str, Sequence[Number]], name: str, row: int) -> Number:
    return columns[name][row] if name in columns else None
