/**
 * A unit's graph as a tree with bounded breadth: what the outline lists and the canvas draws. Nodes keep their index in
 * the data; children of containers that have very many are put into groups, whose indices follow those of all nodes.
 */
import type { Graph, Severity } from "./data";

const BREADTH = 120;

export type PhaseChoice = "all" | "forward" | "backward" | "update";
export const PHASE_BITS: Record<PhaseChoice, number> = { all: 7, forward: 1, backward: 2, update: 4 };

function phaseBit(phase: string): number {
  if (phase === "backward" || phase === "parameters_grad") return 2;
  return phase === "optimizer" ? 4 : 1;
}

export type Verdict = "error" | "warning" | "pass" | "none";

/** Severity in words: at most the limit, beyond it, far beyond it (three quarters of the scale), no partner. */
export function verdictOf(severity: Severity): Verdict {
  if (severity === null) return "none";
  if (severity <= 0.5) return "pass";
  return severity < 0.75 ? "warning" : "error";
}

export class Tree {
  readonly graph: Graph;
  readonly size: number;
  /** Of every node and group: its parent, or -1. */
  readonly parent: number[];
  readonly children: number[][] = [];
  readonly roots: number[];
  readonly severity: Severity[];
  readonly phases: Uint8Array;
  readonly depth: Uint16Array;
  /** Nodes that are off by themselves, in the order of execution. */
  readonly differences: number[];
  readonly counts: Record<Verdict, number> = { error: 0, warning: 0, pass: 0, none: 0 };
  readonly microSteps: number[];
  private readonly groupNames: string[] = [];
  private readonly byName = new Map<string, number>();
  private readonly byPartner = new Map<string, number>();
  private readonly flows = new Map<number, [number, number][]>();
  private readonly into = new Map<number, number[]>();
  private readonly outOf = new Map<number, number[]>();
  private readonly texts: string[];

  constructor(graph: Graph) {
    this.graph = graph;
    const count = graph.name.length;
    this.parent = graph.parent.slice();
    this.severity = graph.severity.slice();
    for (let i = 0; i < count; i++) this.children.push([]);
    const roots: number[] = [];
    for (let i = 0; i < count; i++) {
      const parent = this.parent[i];
      if (parent >= 0) this.children[parent].push(i);
      else roots.push(i);
      if (!this.byName.has(graph.name[i])) this.byName.set(graph.name[i], i);
      const partner = graph.partner[i];
      if (partner !== null && !this.byPartner.has(partner)) this.byPartner.set(partner, i);
    }
    for (let i = 0; i < count; i++) if (this.children[i].length > BREADTH) this.children[i] = this.grouped(i, this.children[i]);
    this.roots = roots.length > BREADTH ? this.grouped(-1, roots) : roots;
    this.size = this.parent.length;
    this.phases = new Uint8Array(this.size);
    this.depth = new Uint16Array(this.size);
    this.fillDown();
    this.differences = [];
    for (let i = 0; i < count; i++) {
      const own = graph.own[i];
      if (own !== null && own > 0.5) this.differences.push(i);
      if (this.children[i].length === 0 || own !== null) this.counts[this.verdict(i)]++;
    }
    this.microSteps = [...new Set(graph.micro_step)].sort((a, b) => a - b);
    this.texts = graph.name.map((name, i) => `${name}\n${graph.label[i]}\n${graph.partner[i] ?? ""}`.toLowerCase());
    this.liftEdges();
  }

  /** Verdict by itself of a node, by its children of a group. */
  verdict(node: number): Verdict {
    const own = node < this.graph.own.length ? this.graph.own[node] : null;
    return verdictOf(own ?? this.severity[node]);
  }

  isGroup(node: number): boolean {
    return node >= this.graph.name.length;
  }

  name(node: number): string {
    return this.isGroup(node) ? this.groupNames[node - this.graph.name.length] : this.graph.name[node];
  }

  label(node: number): string {
    if (this.isGroup(node)) return this.name(node);
    const label = this.graph.label[node];
    if (!/^\d+$/.test(label)) return label || this.graph.name[node];
    const list = new RegExp(`(?:^|\\.)([^.]+)\\.${label}\\.`).exec(this.graph.name[node]); // "layers.0" says more than "0"
    return list ? `${list[1]}.${label}` : label;
  }

  type(node: number): string {
    const type = this.isGroup(node) ? "" : this.graph.type[node];
    return type === this.graph.label[node] ? "" : type;
  }

  kind(node: number): string {
    return this.isGroup(node) ? "collection" : this.graph.kind[node];
  }

  side(node: number): string {
    return this.isGroup(node) ? "both" : this.graph.side[node];
  }

  find(name: string): number | undefined {
    return this.byName.get(name) ?? this.byPartner.get(name);
  }

  path(node: number): number[] {
    const path: number[] = [];
    for (let at = node; at >= 0; at = this.parent[at]) path.unshift(at);
    return path;
  }

  sources(node: number): number[] {
    return this.into.get(node) ?? [];
  }

  consumers(node: number): number[] {
    return this.outOf.get(node) ?? [];
  }

  /** Data flow between the children of a container (-1: between the roots). */
  flow(container: number): [number, number][] {
    return this.flows.get(container) ?? [];
  }

  shown(node: number, phase: PhaseChoice, micro: number | null): boolean {
    if (!(this.phases[node] & PHASE_BITS[phase])) return false;
    return micro === null || this.isGroup(node) || this.graph.micro_step[node] === micro || this.graph.micro_step[node] < 0;
  }

  search(words: string, accept: (node: number) => boolean, most: number): { found: number[]; total: number } {
    const terms = words.toLowerCase().split(/\s+/).filter((term) => term.length > 0);
    const found: number[] = [];
    let total = 0;
    for (let i = 0; i < this.texts.length; i++) {
      const text = this.texts[i];
      if (!terms.every((term) => text.includes(term)) || !accept(i)) continue;
      if (total++ < most) found.push(i);
    }
    return { found, total };
  }

  /** The first of the worst nodes beyond their limit in a container, the innermost of those that are as bad; -1: none. */
  worstInside(node: number): number {
    let best = -1;
    const waiting = [...this.children[node]];
    while (waiting.length > 0) {
      const at = waiting.pop() as number;
      waiting.push(...this.children[at]);
      const own = this.isGroup(at) ? null : this.graph.own[at];
      if (own === null || own <= 0.5) continue;
      const most = best < 0 ? -1 : (this.graph.own[best] as number);
      const inner = best >= 0 && this.path(at).includes(best);
      if (own > most || (own === most && (inner || (at < best && !this.path(best).includes(at))))) best = at;
    }
    return best;
  }

  /** The deepest of a node's ancestors (or itself) that can be seen with these containers open. */
  visible(node: number, open: ReadonlySet<number>): number {
    for (const at of this.path(node)) if (!open.has(at)) return at;
    return node;
  }

  private grouped(parent: number, children: number[]): number[] {
    const width = Math.max(BREADTH, Math.ceil(children.length / BREADTH));
    const groups: number[] = [];
    for (let start = 0; start < children.length; start += width) {
      const members = children.slice(start, start + width);
      const group = this.parent.length;
      this.parent.push(parent);
      this.groupNames.push(`${start} … ${start + members.length - 1}`);
      this.severity.push(worst(members.map((member) => this.severity[member])));
      this.children.push(members);
      if (members.length > BREADTH) this.children[group] = this.grouped(group, members);
      for (const member of this.children[group]) this.parent[member] = group;
      groups.push(group);
    }
    return groups;
  }

  private fillDown(): void {
    const order: number[] = [];
    const waiting = [...this.roots].reverse();
    while (waiting.length > 0) {
      const node = waiting.pop() as number;
      order.push(node);
      this.depth[node] = this.parent[node] < 0 ? 0 : this.depth[this.parent[node]] + 1;
      for (let i = this.children[node].length - 1; i >= 0; i--) waiting.push(this.children[node][i]);
    }
    for (let i = order.length - 1; i >= 0; i--) {
      const node = order[i];
      if (!this.isGroup(node)) this.phases[node] |= phaseBit(this.graph.phase[node]);
      if (this.parent[node] >= 0) this.phases[this.parent[node]] |= this.phases[node];
    }
  }

  /** Every edge of the data becomes one between two siblings: the ancestors of its ends below their common container. */
  private liftEdges(): void {
    const direct = new Set<number>();
    const known = new Set<number>();
    for (const edge of this.graph.edges) {
      const from = edge[0] as number;
      const to = edge[1] as number;
      if (direct.has(from * this.size + to)) continue;
      direct.add(from * this.size + to);
      append(this.outOf, from, to);
      append(this.into, to, from);
      let a = from;
      let b = to;
      while (this.depth[a] > this.depth[b]) a = this.parent[a];
      while (this.depth[b] > this.depth[a]) b = this.parent[b];
      while (a !== b && this.parent[a] !== this.parent[b]) {
        a = this.parent[a];
        b = this.parent[b];
      }
      if (a === b) continue;
      const key = a * this.size + b;
      if (known.has(key)) continue;
      known.add(key);
      const container = this.parent[a];
      const flow = this.flows.get(container);
      if (flow) flow.push([a, b]);
      else this.flows.set(container, [[a, b]]);
    }
  }
}

export function worst(values: Severity[]): Severity {
  let most: Severity = null;
  for (const value of values) if (value !== null && (most === null || value > most)) most = value;
  return most;
}

function append(map: Map<number, number[]>, key: number, value: number): void {
  const list = map.get(key);
  if (!list) map.set(key, [value]);
  else list.push(value);
}

/** Numbers of the suspects that a unit's graph holds. */
export function suspectsIn(tree: Tree, unit: number, culprits: { unit: number; node: string | null }[]): Map<number, number> {
  const found = new Map<number, number>();
  culprits.forEach((culprit, i) => {
    if (culprit.unit !== unit || culprit.node === null) return;
    const node = tree.find(culprit.node);
    if (node !== undefined && !found.has(node)) found.set(node, i + 1);
  });
  return found;
}
