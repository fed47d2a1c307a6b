/** All ranks and steps at once: rank × layer, their groups, and who talks to whom. */
import { Background, type Edge, type Node, ReactFlow, ReactFlowProvider } from "@xyflow/react";
import { Graph, layout as dagreLayout } from "@dagrejs/dagre";
import { type ReactNode, useMemo, useState } from "react";
import { ARROW, EDGE_TYPES } from "./canvas";
import { fill, ink } from "./colour";
import { type Severity, type ViewData } from "./data";
import { type Band, HeatMap } from "./heatmap";
import type { Point } from "./layout";
import { Choice, Legend, VERDICT_TEXT } from "./parts";
import { jump, show, showUnit, unitName, useStore, useText } from "./store";
import { type Tree, verdictOf, worst } from "./tree";

type Part = "worst" | "forward" | "backward" | "parameters";

/** A column of the map: a unit, or one micro step of it. */
interface Column {
  unit: number;
  micro: number | null;
  /** Its row in the tables of the data. */
  at: number;
}

function columnsOf(data: ViewData, apart: boolean): Column[] {
  const micro = apart ? data.heat?.micro_steps : null;
  if (micro) return micro.columns.map(([unit, step], at) => ({ unit, micro: step, at }));
  return data.units.map((_unit, at) => ({ unit: at, micro: null, at }));
}

function cellOf(data: ViewData, part: Part, layer: number, column: Column): Severity {
  const heat = column.micro === null ? data.heat : data.heat?.micro_steps;
  if (!heat) return null;
  const { at } = column;
  if (part !== "worst") return heat[part][layer]?.[at] ?? null;
  return worst([heat.forward[layer]?.[at] ?? null, heat.backward[layer]?.[at] ?? null, heat.parameters[layer]?.[at] ?? null]);
}

/** What a fault spreads to last says most of where it began: forward, if anything is wrong there. */
function firstPart(data: ViewData): Part {
  const parts = ["forward", "backward", "parameters"] as const;
  return parts.find((part) => data.heat?.[part].some((layer) => layer.some((severity) => (severity ?? 0) > 0.5))) ?? "worst";
}

/** With more columns than these, micro steps are one column until the user separates them. */
const MOST_APART = 96;

/** Columns in the order that is asked for, and the bands over them. */
function columnsBy(data: ViewData, order: string, apart: boolean): { columns: Column[]; bands: Band[][] } {
  const columns = columnsOf(data, apart);
  const axes = order === "step" ? ["step", "rank", "micro"] : order === "rank" ? ["rank", "step", "micro"]
    : order === "micro" ? ["micro", "step", "rank"] : [order, "step", "rank", "micro"];
  const key = ({ unit, micro }: Column, axis: string): number => {
    const { step, rank, groups } = data.units[unit];
    return (axis === "step" ? step : axis === "rank" ? rank : axis === "micro" ? micro : groups[axis]) ?? -1;
  };
  columns.sort((a, b) => {
    for (const axis of axes) if (key(a, axis) !== key(b, axis)) return key(a, axis) - key(b, axis);
    return a.at - b.at;
  });
  const bands: Band[][] = [];
  let before = columns.map(() => "");
  for (const axis of axes) {
    const line: Band[] = [];
    const inside = columns.map((column, i) => `${before[i]}/${key(column, axis)}`);
    inside.forEach((place, i) => {
      const last = line[line.length - 1];
      if (last && inside[i - 1] === place) last.to = i + 1;
      else line.push({ from: i, to: i + 1, text: `${axis === "step" || axis === "rank" || axis === "micro" ? axis : axis.toUpperCase()} ${key(columns[i], axis)}` });
    });
    // What every column has for itself stands under the bands, what all share nowhere.
    if (line.length >= columns.length) break;
    if (line.length > (bands[bands.length - 1]?.length ?? 1)) bands.push(line);
    before = inside;
  }
  return { columns, bands };
}

/** The node of a layer in a unit's graph: the outermost whose name has the layer's in it; the worst of several. */
export function layerNode(tree: Tree, layer: string, part: Part, micro: number | null): number | undefined {
  const { graph } = tree;
  const wanted = `.${layer}.`;
  let best: number | undefined;
  for (let node = 0; node < graph.name.length; node++) {
    const name = graph.name[node];
    const found = `.${name}.`.includes(wanted) || graph.label[node] === layer;
    if (!found) continue;
    const above = tree.parent[node];
    if (above >= 0 && !tree.isGroup(above) && `.${graph.name[above]}.`.includes(wanted)) continue;
    if (part === "backward" && graph.phase[node] !== "backward") continue;
    if (part === "forward" && graph.phase[node] === "backward") continue;
    if (micro !== null && graph.micro_step[node] !== micro) continue;
    if (best === undefined || (tree.severity[node] ?? -1) > (tree.severity[best] ?? -1)) best = node;
  }
  return best;
}

export async function descend({ unit, micro }: Column, layer: string, part: Part): Promise<void> {
  const tree = await showUnit(unit);
  useStore.setState({ tab: "graph" });
  const node = tree ? layerNode(tree, layer, part, micro) : undefined;
  if (node !== undefined) show(node);
}

export function HeatOverview({ small = false }: { small?: boolean }): ReactNode {
  const say = useText();
  const data = useStore((state) => state.data);
  const theme = useStore((state) => state.theme);
  const [part, setPart] = useState<Part>(() => firstPart(data));
  const [order, setOrder] = useState("step");
  const micro = data.heat?.micro_steps ?? null;
  const [apart, setApart] = useState(micro !== null && micro.columns.length <= MOST_APART);
  const { columns, bands } = useMemo(() => columnsBy(data, order, apart), [data, order, apart]);
  const rows = useMemo(() => data.layers.map((_layer, i) => i), [data]);
  if (!data.heat || data.layers.length === 0) return <p className="muted">{say("heatNone")}</p>;
  const axes = [...new Set(data.units.flatMap((unit) => Object.keys(unit.groups)))];
  const microText = (step: number | null): string => (step === null ? "" : ` · ${say("microStep")} ${step}`);
  const describe = (row: number, column: number): string => {
    const severity = cellOf(data, part, rows[row], columns[column]);
    const verdict = verdictOf(severity);
    const { unit, micro: step } = columns[column];
    return `${data.layers[rows[row]].name} · ${unitName(data, unit)}${microText(step)} · ${say(VERDICT_TEXT[verdict])}${severity === null ? "" : ` (${severity.toFixed(2)})`}`;
  };
  const label = (column: number): string => {
    const { unit, micro: own } = columns[column];
    const { step, rank } = data.units[unit];
    if (own !== null && order !== "micro") return `m${own}`;
    if (order === "rank") return step === null ? unitName(data, unit) : `s${step}`;
    if (rank !== null) return `r${rank}`;
    return step === null ? unitName(data, unit) : `s${step}`;
  };
  return (
    <>
      {!small && (
        <div className="toolbar">
          <Choice label={say("phase")} value={part} onChange={setPart} options={[
            { value: "worst", text: say("worstOf") }, { value: "forward", text: say("forward") },
            { value: "backward", text: say("backward") }, { value: "parameters", text: say("parameters") }]} />
          <label className="field">{say("orderBy")} <select value={order} onChange={(event) => setOrder(event.target.value)}>
            <option value="step">{say("byStep")}</option>
            <option value="rank">{say("byRank")}</option>
            {apart && <option value="micro">{say("byMicro")}</option>}
            {axes.map((axis) => <option key={axis} value={axis}>{say("byGroup", axis.toUpperCase())}</option>)}
          </select></label>
          {micro && (
            <label className="field"><input type="checkbox" data-testid="apart" checked={apart} onChange={(event) => { setApart(event.target.checked); if (order === "micro") setOrder("step"); }} /> {say("microApart")}</label>
          )}
          <Legend />
        </div>
      )}
      {small && <p className="muted map-part">{say(part === "worst" ? "worstOf" : part)}</p>}
      <HeatMap testid={small ? "heat-small" : "heat"} rows={rows.length} columns={columns.length} label={say("heatTitle")}
        colour={(row, column) => fill(cellOf(data, part, rows[row], columns[column]), theme)} describe={describe}
        rowLabel={(row) => data.layers[rows[row]].name} columnLabel={label} bands={bands}
        gutter={small ? 110 : 190} maxHeight={small ? 300 : 640}
        cell={{ width: small ? [6, 40] : [14, 64], height: small ? [5, 16] : [14, 26] }}
        onPick={(row, column) => void descend(columns[column], data.layers[rows[row]].name, part)} />
    </>
  );
}

export function Overview(): ReactNode {
  const say = useText();
  const data = useStore((state) => state.data);
  return (
    <div className="page-scroll">
      <section className="card wide">
        <h2>{say("heatTitle")}</h2>
        <p className="muted">{say("heatHint")}</p>
        <HeatOverview />
      </section>
      {data.units.length > 1 && <RankMap />}
    </div>
  );
}

const MOST_RANKS = 256;
const RANK = { width: 118, height: 46 };

/** Ranks of one step in their groups, with arrows for communication that the loaded graphs tell of. */
function RankMap(): ReactNode {
  const say = useText();
  const data = useStore((state) => state.data);
  const trees = useStore((state) => state.trees);
  const theme = useStore((state) => state.theme);
  const steps = useMemo(() => [...new Set(data.units.map((unit) => unit.step))], [data]);
  const worstStep = useMemo(() => data.units.reduce((best, unit) => ((unit.severity ?? -1) > (best.severity ?? -1) ? unit : best), data.units[0]).step, [data]);
  const [step, setStep] = useState<number | null>(worstStep);
  const { nodes, edges, height } = useMemo(() => rankGraph(data, trees, step, theme), [data, trees, step, theme]);
  if (nodes.length < 2) return null;
  return (
    <section className="card wide">
      <h2>{say("ranksTitle")}</h2>
      <div className="toolbar">
        {steps.length > 1 && (
          <label className="field">{say("step")} <select value={String(step)} onChange={(event) => setStep(event.target.value === "null" ? null : Number(event.target.value))}>
            {steps.map((item) => <option key={String(item)} value={String(item)}>{String(item)}</option>)}
          </select></label>
        )}
        <span className="muted">{say("ranksHint")}</span>
      </div>
      <div className="rank-map" data-testid="rank-map" style={{ height: Math.min(520, Math.max(120, height + 50)) }}>
        <ReactFlowProvider>
          <ReactFlow nodes={nodes} edges={edges} edgeTypes={EDGE_TYPES} fitView fitViewOptions={{ maxZoom: 1, padding: 0.08 }} minZoom={0.05} colorMode={theme} nodesDraggable={false}
            nodesConnectable={false} elementsSelectable={false} edgesFocusable={false} preventScrolling={false} zoomOnScroll={false}
            proOptions={{ hideAttribution: true }} onlyRenderVisibleElements
            onNodeClick={(_event, node) => { if (!node.id.startsWith("group")) void jump(Number(node.id), null); }}>
            <Background gap={22} size={1} />
          </ReactFlow>
        </ReactFlowProvider>
      </div>
    </section>
  );
}

function rankGraph(data: ViewData, trees: ReadonlyMap<number, Tree>, step: number | null, theme: "light" | "dark"): { nodes: Node[]; edges: Edge[]; height: number } {
  const units = data.units.map((_unit, i) => i).filter((unit) => data.units[unit].step === step).slice(0, MOST_RANKS);
  const links = new Map<string, number>();
  for (const unit of units) {
    const talks = trees.get(unit)?.graph.communication ?? data.units[unit].graph?.communication ?? [];
    for (const talk of talks) {
      if (!talk) continue;
      const ends = talk.sends.length > 0 ? talk.sends : [];
      for (const end of ends) {
        const other = talk.peers[end]?.[0];
        if (other === undefined || other === unit || !units.includes(other)) continue;
        links.set(`${unit}>${other}`, (links.get(`${unit}>${other}`) ?? 0) + 1);
      }
    }
  }
  // Stages of a pipeline one below the other, tensor parallel ranks side by side, replicas in boxes of their own.
  const graph = new Graph({ compound: true, directed: true });
  graph.setGraph({ rankdir: "TB", nodesep: 34, ranksep: 40, marginx: 10, marginy: 10 });
  graph.setDefaultEdgeLabel(() => ({}));
  const groups = new Map<string, string>();
  for (const unit of units) {
    graph.setNode(String(unit), { width: RANK.width, height: RANK.height });
    let inside = "";
    for (const axis of ["dp", "pp"]) {
      const group = data.units[unit].groups[axis];
      if (group === undefined || data.units.every((other) => other.groups[axis] === group)) continue;
      const id = `group${inside.replace("group", "-")}-${axis}${group}`;
      if (!groups.has(id)) {
        groups.set(id, `${axis.toUpperCase()} ${group}`);
        graph.setNode(id, {});
        if (inside) graph.setParent(id, inside);
      }
      inside = id;
    }
    if (inside) graph.setParent(String(unit), inside);
  }
  const stage = (unit: number): number => data.units[unit].groups.pp ?? 0;
  for (const link of links.keys()) {
    const [from, to] = link.split(">").map(Number);
    if (stage(from) < stage(to)) graph.setEdge(String(from), String(to), {});
  }
  dagreLayout(graph);
  const nodes: Node[] = [];
  const places = new Map<string, Point>();
  const style = (unit: number): Node["style"] => ({ background: fill(data.units[unit].severity, theme), color: ink(data.units[unit].severity, theme) });
  for (const [id, text] of groups) {
    const at = graph.node(id) as { x: number; y: number; width: number; height: number };
    nodes.push({
      id, position: { x: at.x - at.width / 2 - 6, y: at.y - at.height / 2 - 14 }, width: at.width + 12, height: at.height + 22,
      data: { label: text }, className: "rank-group", selectable: false, focusable: false, zIndex: 0,
    });
  }
  for (const unit of units) {
    const at = graph.node(String(unit)) as { x: number; y: number };
    places.set(String(unit), at);
    const { rank, groups: mine, flagged } = data.units[unit];
    const tp = mine.tp === undefined ? "" : ` · TP ${mine.tp}`;
    nodes.push({
      id: String(unit), position: { x: at.x - RANK.width / 2, y: at.y - RANK.height / 2 }, ...RANK, className: "rank-node", zIndex: 2, style: style(unit),
      data: { label: `${rank === null ? unitName(data, unit) : `rank ${rank}`}${tp}\n${flagged > 0 ? `${flagged} ✕` : "✓"}` },
      ariaLabel: unitName(data, unit),
    });
  }
  const edges = [...links].map(([link, count]): Edge => {
    const [from, to] = link.split(">");
    const back = links.has(`${to}>${from}`);
    return {
      id: link, source: from, target: to, ariaLabel: `${from} → ${to}: ${count}`, zIndex: 1, hidden: back && Number(from) > Number(to),
      type: "line", data: { points: between(places.get(from), places.get(to)) }, markerEnd: ARROW,
      markerStart: back ? { ...ARROW, orient: "auto-start-reverse" } : undefined,
    };
  });
  return { nodes, edges, height: (graph.graph() as { height?: number }).height ?? 0 };
}

/** The straight line between two boxes of ranks, from edge to edge. */
function between(from: Point | undefined, to: Point | undefined): Point[] {
  if (!from || !to) return [];
  const [x, y] = [to.x - from.x, to.y - from.y];
  const part = Math.min(0.5, Math.min(x === 0 ? 1 : (RANK.width / 2 + 4) / Math.abs(x), y === 0 ? 1 : (RANK.height / 2 + 4) / Math.abs(y)));
  return [{ x: from.x + x * part, y: from.y + y * part }, { x: to.x - x * part, y: to.y - y * part }];
}
