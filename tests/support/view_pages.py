"""Data of pages for the browser tests and the benchmark: a model of any size, with a fault where one is asked for."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "msprobe_core" / "view" / "page" / "index.html"
EXAMPLES = Path(__file__).parents[1] / "data" / "view"
PLACE = "<!--msprobe-data-->"
STATISTICS = ("max", "min", "mean", "norm", "num_nan", "num_inf")
APIS = {
    "input_layernorm": ["pow", "mean", "rsqrt", "mul"],
    "self_attn.q_proj": ["linear"],
    "self_attn.k_proj": ["linear"],
    "self_attn.v_proj": ["linear"],
    "self_attn": ["transpose", "scaled_dot_product_attention", "reshape"],
    "self_attn.o_proj": ["linear"],
    "post_attention_layernorm": ["pow", "mean", "rsqrt", "mul"],
    "mlp.gate_proj": ["linear"],
    "mlp.act_fn": ["silu"],
    "mlp.up_proj": ["linear"],
    "mlp.down_proj": ["linear"],
}
"""The calls of a layer of a Llama, by module, in the order of execution."""


@dataclass(frozen=True)
class Model:
    """What the page is to show.

    Attributes:
        layers: Layers of the model; each has some 30 nodes forward and as many backward.
        fault: The layer whose attention is wrong, and with it all layers after it; `None` for two runs that agree.
        hostile: A text that names, types and reasons have.
    """

    layers: int = 4
    fault: int | None = 2
    hostile: str = ""


@dataclass
class Columns:
    """A graph while it is made; `node` adds one, `value` one of its values."""

    graph: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = "name label type kind phase parent micro_step severity own side partner score reason stack rows"
        self.graph = {name: [] for name in (*names.split(), "communication")}
        self.graph |= {"edges": [], "stacks": [["File model.py, line 12, in forward", "return self.o_proj(context)"]]}
        empty = {name: [] for name in STATISTICS}
        self.values: dict[str, Any] = {
            "slot": [],
            "dtype": [],
            "shape": [],
            "verdict": [],
            "reason": [],
            "file": [],
            "target": {name: [] for name in STATISTICS},
            "golden": empty,
            "metrics": {"error": [], "limit": [], "score": [], "score_limit": []},
        }
        self.graph["values"] = self.values

    def node(
        self, name: str, label: str, kind: str, parent: int, phase: str, severity: float | None = 0.1, **more: Any
    ) -> int:
        graph = self.graph
        beyond = severity is not None and severity > 0.5
        entry = {
            "name": name,
            "label": label,
            "type": "",
            "kind": kind,
            "phase": phase,
            "parent": parent,
            "micro_step": 0,
            "severity": severity,
            "own": severity,
            "side": "both",
            "partner": name,
            "score": 40.0 if beyond else 0.1,
            "reason": "beyond rounding" if beyond else "",
            "stack": 0,
            "rows": [],
            "communication": None,
        } | more
        for key, value in entry.items():
            graph[key].append(value)
        return len(graph["name"]) - 1

    def value(self, node: int, slot: str, severity: float | None, scale: float) -> None:
        values = self.values
        beyond = severity is not None and severity > 0.5
        row = len(values["slot"])
        self.graph["rows"][node].append(row)
        values["slot"].append(slot)
        values["dtype"].append(["bfloat16", "bfloat16"])
        values["shape"].append(["[2, 128, 512]", "[2, 128, 512]"])
        values["verdict"].append("error" if beyond else "pass")
        values["reason"].append(["40 times what rounding explains"] if beyond else [])
        values["file"].append([None, None])
        off = 1.27 if beyond else 1.0
        golden = [3.25 * scale, -3.5 * scale, 0.0123 * scale, 181.0 * scale, 0, 0]
        for statistic, number in zip(STATISTICS, golden, strict=True):
            values["target"][statistic].append(number * off)
            values["golden"][statistic].append(number)
        for metric, number in zip(values["metrics"], (0.27, 0.008, 40.0, 3.5), strict=True):
            values["metrics"][metric].append(number if beyond or "limit" in metric else number / 500)


def _layer(columns: Columns, model: Model, parent: int, layer: int, phase: str, calls: dict[str, int]) -> None:
    faulty = model.fault is not None and (layer >= model.fault if phase == "forward" else True)
    number = 0 if phase == "forward" else 1
    path = f"Module.model.layers.{layer}"
    severity = (0.97 if layer == model.fault and phase == "forward" else 0.62) if faulty else 0.12
    top = columns.node(
        f"{path}.LlamaDecoderLayer.{phase}.0",
        f"layers.{layer}",
        "module",
        parent,
        phase,
        severity,
        type="LlamaDecoderLayer",
    )
    columns.graph["own"][top] = 0.62 if faulty else 0.12
    modules: dict[str, int] = {}
    last = -1
    order = APIS if phase == "forward" else dict(reversed(APIS.items()))
    wrong = False
    for part, apis in order.items():
        outer = part.split(".", maxsplit=1)[0]
        for name in (outer, part):
            if name in modules:
                continue
            above = modules.get(outer, top) if name != outer else top
            kind = {"self_attn": "LlamaAttention", "mlp": "LlamaMLP"}.get(
                name, "LlamaRMSNorm" if "norm" in name else "Linear"
            )
            modules[name] = columns.node(
                f"{path}.{name}.{kind}.{phase}.0",
                name.rsplit(".", maxsplit=1)[-1],
                "module",
                above,
                phase,
                0.1,
                type=kind,
            )
        for api in apis if phase == "forward" else reversed(apis):
            culprit = layer == model.fault and phase == "forward" and api == "scaled_dot_product_attention"
            wrong = wrong or culprit or (faulty and layer != model.fault) or (faulty and phase == "backward")
            own = 0.97 if culprit else 0.6 if wrong else 0.05 + 0.2 * ((layer * 7 + len(api)) % 10) / 10
            calls[api] = calls.get(api, -1) + (1 - number if phase == "forward" else 1)
            node = columns.node(
                f"Functional.{api}.{calls[api]}.{phase}", api, "api", modules[part], phase, own, type="Functional"
            )
            columns.value(node, "input.0", 0.1 if culprit or not wrong else own, 1.0)
            columns.value(node, "output.0", own, 1.0)
            if last >= 0:
                columns.graph["edges"].append([last, node, len(columns.values["slot"]) - 2])
            last = node
    graph = columns.graph
    for node in reversed(range(top + 1, len(graph["name"]))):
        above = graph["parent"][node]
        graph["severity"][above] = max(graph["severity"][above], graph["severity"][node])


def graph_of(model: Model) -> dict[str, Any]:
    """A graph with everything a page can show: modules, APIs, both directions, nodes without a partner."""
    columns = Columns()
    for phase in ("forward", "backward"):
        root = columns.node(f"Module.model.LlamaModel.{phase}.0", "model", "module", -1, phase, 0.1, type="LlamaModel")
        calls: dict[str, int] = {}
        order = range(model.layers) if phase == "forward" else reversed(range(model.layers))
        for layer in order:
            _layer(columns, model, root, layer, phase, calls)
        graph = columns.graph
        tops = [i for i, above in enumerate(graph["parent"]) if above == root]
        for before, after in itertools.pairwise(tops):
            leaves = [i for i in range(before, after) if graph["kind"][i] == "api"]
            following = next(i for i in range(after, len(graph["name"])) if graph["kind"][i] == "api")
            graph["edges"].append([leaves[-1], following, None])
        graph["severity"][root] = max(graph["severity"][root:])
        graph["own"][root] = None
    columns.node(
        "Functional.clamp.0.forward",
        "clamp",
        "api",
        0,
        "forward",
        None,
        type="Functional",
        side="target",
        partner=None,
        score=None,
    )
    columns.node(
        "Torch.clip.0.forward",
        "clip",
        "api",
        0,
        "forward",
        None,
        type="Torch",
        side="golden",
        partner="Torch.clip.0.forward",
        score=None,
    )
    columns.value(len(columns.graph["name"]) - 2, "output.0", None, 1.0)
    columns.value(len(columns.graph["name"]) - 1, "output.0", None, 1.0)
    if model.hostile:
        node = columns.node(
            f"Module.{model.hostile}.0",
            model.hostile,
            "module",
            0,
            "forward",
            0.9,
            type=model.hostile,
            reason=model.hostile,
            partner=f"golden {model.hostile}",
        )
        columns.value(node, model.hostile, 0.9, 1.0)
    return columns.graph


def flat(calls: int, odd: int) -> dict[str, Any]:
    """Data of a page whose calls follow each other outside of any module; that of number `odd` is wrong."""
    columns = Columns()
    for i in range(calls):
        name, severity = f"Torch.op.{i}.forward", 0.9 if i == odd else 0.1
        columns.value(
            columns.node(name, f"op.{i}", "api", -1, "forward", severity, type="Torch"), "output.0", severity, 1.0
        )
        if i:
            columns.graph["edges"].append([i - 1, i, None])
    data = comparison(Model(layers=1, fault=None))
    data["units"][0]["graph"] = columns.graph
    return data


def comparison(model: Model | None = None, *, ranks: int = 1, steps: int = 1) -> dict[str, Any]:
    """Data of a page of two runs; rank 1 of several talks to its neighbours, and the fault is on the last rank."""
    model = model or Model()
    units, heat = [], {name: [[] for _ in range(model.layers)] for name in ("forward", "backward", "parameters")}
    for step in range(steps):
        for rank in range(ranks):
            faulty = model.fault is not None and rank == ranks - 1
            graph = graph_of(Model(layers=model.layers, fault=model.fault if faulty else None, hostile=model.hostile))
            flagged = sum(own is not None and own > 0.5 for own in graph["own"])
            if ranks > 1:
                other = step * ranks + (rank + 1) % ranks
                graph["communication"][graph["name"].index("Functional.linear.0.forward")] = {
                    "peers": [[other, "Functional.linear.0.forward"]],
                    "sends": [0],
                    "receives": [],
                    "more": 0,
                }
            units.append(
                {
                    "label": f"step{step}/rank{rank}" if ranks * steps > 1 else "",
                    "step": step,
                    "micro_steps": 1,
                    "rank": rank,
                    "groups": {"tp": rank % 2, "pp": rank // 2 % 2, "dp": rank // 4},
                    "nodes": len(graph["name"]),
                    "flagged": flagged,
                    "severity": 0.97 if faulty else 0.2,
                    "graph": graph,
                }
            )
            for layer in range(model.layers):
                wrong = faulty and model.fault is not None and layer >= model.fault
                heat["forward"][layer].append(
                    (0.97 if layer == model.fault else 0.62) if wrong else 0.1 + 0.02 * (rank % 5)
                )
                heat["backward"][layer].append(0.6 if faulty else 0.2)
                heat["parameters"][layer].append(0.05)
    fault = model.fault is not None
    culprit = f"Functional.scaled_dot_product_attention.{model.fault}.forward"
    first = ranks - 1
    trend = {str(rank): [180.0 + 3 * math.sin(step + rank) for step in range(steps)] for rank in range(ranks)}
    error = [[abs(math.sin(r / 5) * math.cos(c / 7)) ** 6 for c in range(48)] for r in range(32)]
    return {
        "format": "msprobe-view",
        "version": 2,
        "made": {"msprobe": "1.0", "at": "2026-11-21 18:00"},
        "kind": "comparison",
        "title": "target against golden",
        "sides": {
            "target": {
                "path": "demo_output/target",
                "framework": "pytorch",
                "task": "statistics",
                "level": "mix",
                "parallel": None,
            },
            "golden": {
                "path": "demo_output/golden",
                "framework": "pytorch",
                "task": "statistics",
                "level": "mix",
                "parallel": None,
            },
        },
        "verdict": {
            "state": "fault" if fault else "agree",
            "sentence": f"The runs diverge at {culprit}: its inputs are right, what it makes is not."
            if fault
            else "Rounding explains every difference.",
            "detail": ["Everything before it agrees within rounding."],
            "checks": [
                {"name": "initial weights", "state": "holds", "detail": "equal bit by bit"},
                {"name": "input data", "state": "holds", "detail": ""},
                {"name": "random numbers", "state": "unknown", "detail": "no random call was recorded"},
            ],
            "counts": {
                "nodes": sum(unit["nodes"] for unit in units),
                "flagged": sum(unit["flagged"] for unit in units),
                "unmatched": 2,
            },
            "noise": "Rounding as measured: three repetitions of the golden run.",
        },
        "culprits": [
            {
                "unit": first,
                "node": culprit,
                "step": 0,
                "ranks": [ranks - 1],
                "kind": "computation",
                "strength": "strong",
                "score": 143.0,
                "limit": 3.5,
                "reason": "its result is wrong while all inputs are right",
                "evidence": [
                    {"row": f"{culprit}.output.0", "message": ["norm is 27 % off"], "score": 143.0, "limit": 3.5}
                ],
                "parents": ["model", f"layers.{model.fault}", "self_attn"],
                "stack": ["File model.py, line 12, in forward"],
                "command": "msprobe confirm demo_output/target demo_output/golden",
            },
            {
                "unit": first,
                "node": "Functional.linear.0.forward",
                "step": 0,
                "ranks": [ranks - 1],
                "kind": "scale",
                "strength": "weak",
                "score": 4.2,
                "limit": 3.5,
                "reason": "all statistics are off by one factor, 1.27",
                "evidence": [],
                "parents": [],
                "stack": [],
                "command": "",
            },
        ]
        if fault
        else [],
        "units": units,
        "layers": [{"name": f"model.layers.{i}", "order": i} for i in range(model.layers)],
        "heat": {"layers": model.layers, "units": len(units), **heat},
        "trends": [
            {
                "name": "Functional.linear.0.forward",
                "slot": "output.0",
                "statistic": statistic,
                "phase": "forward",
                "steps": list(range(steps)),
                "target": {rank: [number * scale for number in line] for rank, line in trend.items()},
                "golden": trend,
            }
            for statistic, scale in (("norm", 1.02), ("max", 0.1))
        ]
        if ranks * steps > 1
        else [],
        "tensors": [
            {
                "unit": first,
                "node": culprit,
                "slot": "output.0",
                "axes": ["token", "channel"],
                "shape": [32, 48],
                "sizes": [256, 96],
                "worst": [0, 7, 11],
                "error": error,
                "target": error,
                "golden": [[-value for value in line] for line in error],
                "tokens": [[max(line) for line in error]],
                "token_sizes": [1, 256],
            },
        ]
        if fault
        else [],
        "commands": {"confirm": "msprobe confirm demo_output/target demo_output/golden --node {node}"},
        "notes": ["Two nodes have no partner."],
    }


def example(name: str) -> dict[str, Any]:
    """Data of a page of a real training, as ``view_examples.py`` has recorded it: ``dump`` or ``comparison``."""
    return json.loads(gzip.decompress((EXAMPLES / f"{name}.json.gz").read_bytes()))


def packed(data: dict[str, Any]) -> str:
    """The element of the page that holds the data."""
    text = base64.b64encode(gzip.compress(json.dumps(data).encode(), 6)).decode()
    return f'<script type="application/octet-stream;base64" id="msprobe-data">{text}</script>'


def write_page(path: Path, data: dict[str, Any]) -> Path:
    """Write the committed page with this data."""
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(PLACE) == 1
    path.write_text(page.replace(PLACE, packed(data)), encoding="utf-8")
    return path
