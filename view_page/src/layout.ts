/** Boxes and edges of what is open, laid out by dagre: every container by itself, from the inside out. */
import { Graph, layout as dagreLayout } from "@dagrejs/dagre";
import type { Tree } from "./tree";

export interface Box {
  node: number;
  x: number;
  y: number;
  width: number;
  height: number;
  depth: number;
  open: boolean;
}

export interface Point {
  x: number;
  y: number;
}

export interface Line {
  from: number;
  to: number;
  points: Point[];
}

export interface Drawing {
  boxes: Box[];
  lines: Line[];
  width: number;
  height: number;
}

interface Inside {
  key: string;
  places: Map<number, { x: number; y: number; width: number; height: number }>;
  lines: Line[];
  width: number;
  height: number;
}

const LEAF_HEIGHT = 44;
const HEADER = 40;
const MARGIN = 16;

function textWidth(text: string): number {
  let width = 0;
  for (const letter of text) width += letter.charCodeAt(0) > 0x2e7f ? 13.5 : 7.4;
  return width;
}

/** Lays out one unit's tree again and again as containers are opened and closed, and keeps what did not change. */
export class Layouter {
  private readonly known = new Map<number, Inside>();

  constructor(private readonly tree: Tree) {}

  draw(open: ReadonlySet<number>, shown: (node: number) => boolean): Drawing {
    const sizes = new Map<number, { width: number; height: number }>();
    const whole = this.inside(-1, open, shown, sizes);
    const boxes: Box[] = [];
    const lines: Line[] = [];
    const place = (inside: Inside, left: number, top: number, depth: number): void => {
      for (const [node, at] of inside.places) {
        const isOpen = open.has(node) && this.tree.children[node].length > 0;
        const box = { node, x: left + at.x, y: top + at.y, width: at.width, height: at.height, depth, open: isOpen };
        boxes.push(box);
        const within = isOpen ? this.known.get(node) : undefined;
        if (within) place(within, box.x + (box.width - within.width) / 2, box.y + HEADER, depth + 1);
      }
      for (const line of inside.lines) {
        lines.push({ ...line, points: line.points.map((point) => ({ x: point.x + left, y: point.y + top })) });
      }
    };
    place(whole, 0, 0, 0);
    return { boxes, lines, width: whole.width, height: whole.height };
  }

  private size(node: number, open: ReadonlySet<number>, shown: (node: number) => boolean,
    sizes: Map<number, { width: number; height: number }>): { width: number; height: number } {
    const label = textWidth(this.tree.label(node)) * 1.06 + 84;
    const more = (this.tree.parent[node] < 0 ? 70 : 0) + (this.tree.side(node) === "both" ? 0 : 100);
    const type = textWidth(this.tree.type(node)) * 0.86 + 76 + more;
    const width = Math.min(300, Math.max(124, label, type));
    let size = { width, height: LEAF_HEIGHT };
    if (open.has(node) && this.tree.children[node].length > 0) {
      const inside = this.inside(node, open, shown, sizes);
      const title = textWidth(this.tree.label(node)) * 1.06 + textWidth(this.tree.type(node)) * 0.9 + 110 + more;
      size = { width: Math.max(title, inside.width), height: HEADER + inside.height };
    }
    sizes.set(node, size);
    return size;
  }

  private inside(container: number, open: ReadonlySet<number>, shown: (node: number) => boolean,
    sizes: Map<number, { width: number; height: number }>): Inside {
    const all = container < 0 ? this.tree.roots : this.tree.children[container];
    const children = all.filter(shown);
    const measured = children.map((child) => this.size(child, open, shown, sizes));
    const key = children.map((child, i) => `${child}:${Math.round(measured[i].width)}x${Math.round(measured[i].height)}`).join();
    const before = this.known.get(container);
    if (before && before.key === key) return before;
    const inside = this.arrange(container, children, measured, key);
    this.known.set(container, inside);
    return inside;
  }

  private arrange(container: number, children: number[], measured: { width: number; height: number }[], key: string): Inside {
    const graph = new Graph({ directed: true });
    graph.setGraph({
      rankdir: "TB", nodesep: 26, edgesep: 12, ranksep: 34, marginx: MARGIN, marginy: MARGIN,
      ranker: children.length > 60 ? "longest-path" : "network-simplex",
    });
    graph.setDefaultEdgeLabel(() => ({}));
    children.forEach((child, i) => graph.setNode(String(child), { ...measured[i] }));
    const flow = this.tree.flow(container).filter(([from, to]) => graph.hasNode(String(from)) && graph.hasNode(String(to)));
    const joined = new Set<number>();
    for (const [from, to] of flow) {
      joined.add(from).add(to);
      graph.setEdge(String(from), String(to), {});
    }
    // What no data flow holds in place follows in the order of execution.
    const unseen = new Set<string>();
    children.forEach((child, i) => {
      if (i === 0 || (joined.has(child) && joined.has(children[i - 1]))) return;
      const from = String(children[i - 1]);
      const to = String(child);
      if (graph.hasEdge(from, to) || graph.hasEdge(to, from)) return;
      graph.setEdge(from, to, { weight: 0 });
      unseen.add(`${from},${to}`);
    });
    dagreLayout(graph);
    const places = new Map<number, { x: number; y: number; width: number; height: number }>();
    for (const child of children) {
      const at = graph.node(String(child)) as { x: number; y: number; width: number; height: number };
      places.set(child, { x: at.x - at.width / 2, y: at.y - at.height / 2, width: at.width, height: at.height });
    }
    const lines: Line[] = [];
    for (const edge of graph.edges()) {
      if (unseen.has(`${edge.v},${edge.w}`)) continue;
      const label = graph.edge(edge) as { points?: Point[] };
      lines.push({ from: Number(edge.v), to: Number(edge.w), points: label.points ?? [] });
    }
    const told = graph.graph() as { width?: number; height?: number };
    return { key, places, lines, width: finite(told.width), height: finite(told.height) };
  }
}

function finite(value: number | undefined): number {
  return value !== undefined && Number.isFinite(value) ? value : 2 * MARGIN;
}
