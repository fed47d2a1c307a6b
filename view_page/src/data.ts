/**
 * The page's data as `msprobe view` writes it; docs/view_format.md describes every field. Numbers that JSON cannot
 * hold are the texts "nan", "inf" and "-inf".
 */

import type { Said } from "./findings";

export type Num = number | string | null;
/** 0 is right, 0.5 at the limit, 1 the worst; null: there is nothing to hold against. */
export type Severity = number | null;

export interface Side {
  path: string;
  framework: string;
  task: string;
  level: string;
  parallel: Record<string, number> | null;
}

export interface Check {
  name: string;
  state: string;
  detail: Said;
}

export interface Verdict {
  state: "agree" | "fault" | "insufficient" | "none";
  sentence: Said;
  detail: Said[];
  checks: Check[];
  counts: { nodes: number; flagged: number; unmatched: number };
  noise: Said;
}

export interface Evidence {
  row: string;
  message: Said[];
  score: Num;
  limit: Num;
}

export interface Culprit {
  unit: number;
  node: string | null;
  step: number | null;
  ranks: number[];
  kind: Said;
  strength: string;
  score: Num;
  limit: Num;
  reason: Said;
  evidence: Evidence[];
  parents: string[];
  stack: string[];
  command: Said;
}

export interface Unit {
  label: string;
  step: number | null;
  micro_steps: number;
  rank: number | null;
  groups: Record<string, number>;
  paths?: [string | null, string | null];
  nodes: number;
  flagged: number;
  severity: Severity;
  graph: Graph | null;
}

export type Phase = "forward" | "backward" | "parameters" | "parameters_grad" | "optimizer" | "";

export interface Values {
  slot: string[];
  dtype: [string | null, string | null][];
  shape: [string | null, string | null][];
  target: Record<string, Num[]>;
  golden: Record<string, Num[]> | null;
  metrics: Record<string, Num[]>;
  verdict: string[];
  reason: Said[][];
  file: [string | null, string | null][];
}

export interface Peers {
  peers: [number, string][];
  sends: number[];
  receives: number[];
  more: number;
}

export interface Graph {
  name: string[];
  label: string[];
  type: string[];
  kind: string[];
  phase: Phase[];
  parent: number[];
  micro_step: number[];
  severity: Severity[];
  own: Severity[];
  side: string[];
  partner: (string | null)[];
  score: Num[];
  reason: Said[];
  stack: number[];
  rows: number[][];
  communication: (null | Peers)[];
  edges: (number | null)[][];
  stacks: string[][];
  values: Values;
}

export interface Layer {
  name: string;
  order: number;
}

export interface Heat {
  layers: number;
  units: number;
  forward: Severity[][];
  backward: Severity[][];
  parameters: Severity[][];
  micro_steps?: MicroHeat | null;
}

/** Columns are micro steps of units. */
export interface MicroHeat {
  columns: [number, number][];
  forward: Severity[][];
  backward: Severity[][];
  parameters: Severity[][];
}

export interface Trend {
  name: string;
  slot: string;
  statistic: string;
  phase: string;
  steps: number[];
  target: Record<string, Num[]>;
  golden: Record<string, Num[]> | null;
  micro_step?: number | null;
  origin?: string;
}

export interface TensorMap {
  unit: number;
  node: string;
  slot: string;
  axes: [string, string];
  shape: [number, number];
  sizes: [number, number];
  worst: number[];
  error: Num[][];
  target: Num[][] | null;
  golden: Num[][] | null;
  tokens?: Num[][] | null;
  token_sizes?: [number, number] | null;
}

/** A monitored training: rows are values in the order of the model, columns are steps. */
export interface MonitorMap {
  statistic: string;
  value: Num[][];
  usual: Num[][];
  golden: Num[][] | null;
  rank: (number | null)[][];
  step: (number | null)[][];
}

export interface MonitorEvent {
  kind: "divergence" | "not-finite" | "anomaly" | "alarm";
  text: Said;
  row: number;
  statistic: string;
  step: number;
  ranks: number[];
  count: number;
  unit: number | null;
  command: string;
}

export interface CoverageRow {
  quantity: string;
  ranks: number;
  expected: number | null;
  seen: number;
  finite: number;
  first_step: number | null;
  missing: string[];
}

export interface Dashboard {
  ranks: number[];
  steps: number[];
  columns: [number, number][];
  rows: { quantity: string[]; name: string[]; micro_step: (number | null)[] };
  maps: MonitorMap[];
  events: MonitorEvent[];
  num_anomalies: number;
  num_judged: number;
  num_alarms: number;
  coverage: CoverageRow[];
}

export type CheckVerdict = "wrong" | "suspect" | "ill_conditioned" | "right" | "cannot_tell";

export interface CheckedOutput {
  path: string;
  side: string;
  dtype: string;
  shape: number[];
  verdict: CheckVerdict;
  reason: Said;
  error: Num;
  rounding: Num;
  condition: Num;
  own_error: Num;
  times: Num;
  amplification: Num;
  worst: number[] | null;
  bias: Num;
  applied: string[];
  accepted: string[];
  published: Record<string, Num>;
}

export interface CheckedCall {
  entry: string;
  verdict: CheckVerdict;
  inputs: string;
  seed: number | null;
  reach: number | null;
  is_weak: boolean;
  reason: Said;
  notes: Said[];
  outputs: CheckedOutput[];
}

/** The calls of one dump, each checked by itself: those that are not right first, by their effect. */
export interface CheckedDump {
  unit: number | null;
  dump: string;
  headline: Said;
  counts: Record<CheckVerdict, number>;
  weak: number;
  reasons: [Said, number][];
  calls: CheckedCall[];
  command: string;
}

export interface SensitiveCall {
  entry: string;
  tensors: string;
  verdict: CheckVerdict;
  amplification: Num;
  times: Num;
}

export interface RaisedPart {
  modules: string;
  share: Num;
  times: Num;
  loss: Num;
  is_joint: boolean;
}

/** How a step reacts to changes of last digits, call by call, or to modules with a higher precision. */
export interface Sensitivity {
  headline: Said;
  notes: Said[];
  calls: SensitiveCall[];
  parts: RaisedPart[];
  num_pairs: number;
}

export interface ConfigSection {
  name: string;
  compared: number;
  different: number;
  matter: number;
  unknown: Said;
}

export type Degree = "yes" | "maybe" | "no";

export interface ConfigDifference {
  section: string;
  path: string;
  golden_path: string | null;
  target: string | null;
  golden: string | null;
  only_on: string | null;
  severity: "error" | "warning" | "info";
  count: number;
  ranks: number[];
  message: Said;
  explains: Degree | null;
  because: Said;
}

/** The configurations of the two runs, compared; differences that explain the fault come first. */
export interface Configured {
  ranks: number;
  sections: ConfigSection[];
  different: number;
  differences: ConfigDifference[];
}

/** What the manifest of a single run says of one part of its configuration. */
export interface Fact {
  name: string;
  value: string;
}

export interface RLFinding {
  row: number;
  step: number | null;
  level: "error" | "warning";
  place: string;
  text: Said;
  command: string;
}

export interface RLCurve {
  group: string;
  name: string;
  target: Num[];
  golden: Num[] | null;
  limit: Num[] | null;
}

export interface RLToken {
  step: number;
  sample: number;
  id: string;
  position: number;
  training: Num;
  rollout: Num;
  at: number;
  texts: string[];
  differences: Num[];
}

/** A whole run of an RL trainer: rows are stages and hops of weights, columns are steps. */
export interface RLTraining {
  steps: number[];
  rows: string[];
  severity: Severity[][];
  findings: RLFinding[];
  curves: RLCurve[];
  tokens: RLToken[];
  scale: Num;
}

export interface ViewData {
  format: string;
  version: number;
  made: { msprobe: string; at: string };
  kind: "dump" | "comparison" | "monitor";
  title: string;
  sides: { target: Side; golden: Side | null };
  verdict: Verdict;
  culprits: Culprit[];
  units: Unit[];
  layers: Layer[];
  heat: Heat | null;
  trends: Trend[];
  tensors: TensorMap[];
  monitor?: Dashboard | null;
  checked?: CheckedDump[];
  sensitivity?: Sensitivity | null;
  configured?: Configured | null;
  rl?: RLTraining | null;
  manifest?: Fact[];
  commands: Record<string, string>;
  notes: Said[];
}

/** Where the graphs of the units come from, when they are not in the file itself. */
export interface Source {
  index: string;
  unit: string;
  /** Of a training that goes on: exact maps, and an index that changes. */
  monitor?: string;
}

export class DataError extends Error {}

async function inflate(base64: string): Promise<string> {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function checked(value: unknown): ViewData {
  const data = value as Partial<ViewData> | null;
  if (!data || data.format !== "msprobe-view") throw new DataError("not data of msprobe view");
  if (data.version !== 2) throw new DataError(`version ${String(data.version)} of the data; this page reads 2`);
  return data as ViewData;
}

export async function load(): Promise<{ data: ViewData; source: Source | null }> {
  const packed = document.getElementById("msprobe-data")?.textContent?.trim() ?? "";
  if (packed) {
    const began = performance.now();
    const data = checked(JSON.parse(await inflate(packed)));
    performance.measure("msprobe data", { start: began });
    return { data, source: null };
  }
  const told = document.getElementById("msprobe-source")?.textContent?.trim() ?? "";
  if (!told) throw new DataError("");
  const source = JSON.parse(told) as Source;
  return { data: checked(await fetched(source.index)), source };
}

export async function fetchGraph(source: Source, unit: number): Promise<Graph> {
  return (await fetched(source.unit.replace("{unit}", String(unit)))) as Graph;
}

export async function fetchPart(source: Source, part: string): Promise<MonitorMap | null> {
  const answer = await asked((source.monitor ?? "").replace("{part}", part));
  return answer.ok ? (await answer.json() as MonitorMap) : null;
}

/** The data as they are now, and what to give to be told next time only if they are others; null if they are the same. */
export async function fetchNewer(source: Source, tag: string): Promise<{ data: ViewData; tag: string } | null> {
  const answer = await asked(source.index, tag ? { "If-None-Match": tag } : {});
  return answer.status === 304 ? null : { data: checked(await contentOf(answer)), tag: answer.headers.get("ETag") ?? "" };
}

async function fetched(address: string): Promise<unknown> {
  return contentOf(await asked(address));
}

async function contentOf(answer: Response): Promise<unknown> {
  if (!answer.ok) throw new DataError(`${answer.status} ${answer.statusText}`);
  return answer.json();
}

function asked(address: string, headers: Record<string, string> = {}): Promise<Response> {
  return fetch(address, { credentials: "same-origin", cache: "no-store", headers });
}

/** A number of the data as a number, with NaN and infinities. */
export function toNumber(value: Num | undefined): number {
  if (value === null || value === undefined) return Number.NaN;
  if (typeof value === "number") return value;
  if (value === "inf") return Number.POSITIVE_INFINITY;
  if (value === "-inf") return Number.NEGATIVE_INFINITY;
  return Number.NaN;
}

/** A number as a person reads it: five digits, powers only where they are needed. */
export function show(value: Num | undefined): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (value === 0 || Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e6) return String(Number(value.toPrecision(6)));
  return value.toExponential(4).replace("e+", "e");
}

/** How many times over its limit, short enough for a label. */
export function times(score: Num, limit: Num): string | null {
  const ratio = toNumber(score) / toNumber(limit);
  if (Number.isNaN(ratio)) return null;
  if (!Number.isFinite(ratio)) return "∞";
  return ratio >= 1e5 ? ratio.toExponential(1).replace(".0e", "e").replace("e+", "e") : String(Number(ratio.toPrecision(2)));
}
