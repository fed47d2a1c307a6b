/** What the page shows now, and what can be done to it. */
import { create } from "zustand";
import { type Source, type ViewData, fetchGraph, fetchNewer } from "./data";
import type { Theme } from "./colour";
import { type Match } from "./mapping";
import { type Said, worded, wordedWithLevels } from "./findings";
import { type Language, type TextKey, text } from "./texts";
import { type PhaseChoice, Tree, type Verdict } from "./tree";

export type Tab = "summary" | "rl" | "checked" | "sensitivity" | "configuration" | "graph" | "overview" | "monitor" | "trends" | "tensors";
const TABS: Tab[] = ["summary", "graph", "overview", "trends", "tensors"];

/** What there is to look at: a monitor's files have no graphs, and a server sends their lines one by one. */
export function tabsOf(data: ViewData): Tab[] {
  const monitor: Tab[] = data.monitor ? ["monitor"] : [];
  const checked: Tab[] = data.checked?.length ? ["checked"] : [];
  const configured: Tab[] = data.configured ? ["configuration"] : [];
  if (data.units.length > 0) return ["summary", ...configured, ...checked, ...TABS.slice(1, 3), ...monitor, ...TABS.slice(3)];
  if (data.sensitivity) return ["summary", "sensitivity"];
  if (data.rl) return ["rl", "summary"];
  return ["summary", ...checked, ...monitor, ...(data.trends.length > 0 || !(data.monitor || checked.length) ? ["trends" as const] : [])];
}

export interface View {
  x: number;
  y: number;
  zoom: number;
}

export interface State {
  data: ViewData;
  source: Source | null;
  trees: ReadonlyMap<number, Tree>;
  tab: Tab;
  unit: number;
  open: ReadonlyMap<number, ReadonlySet<number>>;
  selected: number;
  /** Rises when the canvas and the outline are to show the selected node. */
  shows: number;
  phase: PhaseChoice;
  micro: number | null;
  sideBySide: boolean;
  words: string;
  only: ReadonlySet<Verdict>;
  matches: Match[];
  matching: number;
  trend: { name: string; slot: string; micro?: number | null } | null;
  tensor: number;
  language: Language;
  theme: Theme;
  message: string;
  /** When the newest data of a training came, if it is watched; what the server calls them. */
  live: { at: number; tag: string } | null;
}

export const NO_NODES: ReadonlySet<number> = new Set();
const MOST_BOXES = 2500;

export const useStore = create<State>()(() => ({}) as State);

const set = useStore.setState;
const get = useStore.getState;

function remembered(key: string): string | null {
  try {
    return localStorage.getItem(`msprobe-view-${key}`);
  } catch {
    return null; // a browser may forbid it to files
  }
}

function remember(key: string, value: string): void {
  try {
    localStorage.setItem(`msprobe-view-${key}`, value);
  } catch {
    /* the page works without */
  }
}

function mapKey(data: ViewData): string {
  return `matches-${data.title}-${data.made.at}`;
}

function recalled(data: ViewData): Match[] {
  try {
    const found: unknown = JSON.parse(remembered(mapKey(data)) ?? "[]");
    return Array.isArray(found) ? (found as Match[]).filter((match) => typeof match.target === "string") : [];
  } catch {
    return [];
  }
}

export function firstLanguage(): Language {
  const chosen = remembered("language");
  if (chosen === "en" || chosen === "zh") return chosen;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export function firstTheme(): Theme {
  const chosen = remembered("theme");
  if (chosen === "light" || chosen === "dark") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export function start(data: ViewData, source: Source | null): void {
  const culprit = data.culprits[0];
  const worst = data.units.reduce((best, unit, i) => ((unit.severity ?? -1) > (data.units[best]?.severity ?? -1) ? i : best), 0);
  set({
    data, source, trees: new Map(), tab: data.rl ? "rl" : data.kind !== "dump" ? "summary" : data.sensitivity ? "sensitivity" : data.checked?.length ? "checked" : "graph", unit: -1,
    open: new Map(), selected: -1, shows: 0, phase: "all", micro: null, sideBySide: false, words: "", only: new Set(),
    matches: recalled(data), matching: -1, trend: null,
    tensor: Math.max(0, data.tensors.findIndex((map) => map.unit === culprit?.unit && map.node === culprit.node)), language: firstLanguage(), theme: firstTheme(), message: "",
    live: source?.monitor ? { at: Date.now(), tag: "" } : null,
  });
  document.title = `${data.title} - msprobe`;
  // The verdict is drawn first; the graph, which takes longer, is made ready while it is read.
  if (data.units.length > 0) setTimeout(() => { if (get().unit < 0) void showUnit(culprit ? culprit.unit : worst); }, 60);
}

/** Asks whether there is more of a training, and shows it. */
export async function watch(): Promise<void> {
  const { source, live, data } = get();
  if (!source?.monitor || !live) return;
  try {
    const newer = await fetchNewer(source, live.tag);
    if (!newer) return;
    const same = live.tag === "" && newer.data.made.at === data.made.at;
    set({ live: { at: same ? live.at : Date.now(), tag: newer.tag }, ...(same ? {} : { data: newer.data }) });
  } catch (error) {
    say(text(get().language, "serverFailed", String(error)));
  }
}

export function say(message: string): void {
  set({ message });
}

async function treeOf(unit: number): Promise<Tree | null> {
  const known = get().trees.get(unit);
  if (known) return known;
  let graph = get().data.units[unit]?.graph ?? null;
  const { source, language } = get();
  if (!graph && source) {
    try {
      graph = await fetchGraph(source, unit);
    } catch (error) {
      say(text(language, "serverFailed", String(error)));
      return null;
    }
  }
  if (!graph) {
    say(text(language, "noGraph"));
    return null;
  }
  const began = performance.now();
  let tree: Tree;
  try {
    tree = new Tree(graph);
  } catch (error) {
    say(text(language, "failed", String(error))); // as from a file that something else has written
    return null;
  }
  performance.measure("msprobe tree", { start: began });
  set({ trees: new Map(get().trees).set(unit, tree) });
  return tree;
}

/** Opens a rank's and step's graph; what encloses everything alone is open from the beginning. */
export async function showUnit(unit: number): Promise<Tree | null> {
  const tree = await treeOf(unit);
  if (!tree) return null;
  const open = new Map(get().open);
  if (!open.has(unit)) open.set(unit, firstOpen(tree));
  if (get().unit !== unit) set({ unit, open, selected: -1, matching: -1, micro: null, shows: get().shows + 1 });
  return tree;
}

function firstOpen(tree: Tree): Set<number> {
  const open = new Set<number>();
  const descend = (nodes: number[], shown: number): void => {
    const holders = nodes.filter((node) => tree.kind(node) === "module" && tree.children[node].length > 0);
    for (const node of holders.length <= 4 ? holders : []) {
      if (shown + tree.children[node].length > 60) continue;
      open.add(node);
      if (tree.children[node].length <= 3) descend(tree.children[node], shown + tree.children[node].length);
    }
  };
  descend(tree.roots, tree.roots.length);
  return open;
}

export function toggle(node: number): void {
  const { unit, open } = get();
  const now = new Set(open.get(unit) ?? NO_NODES);
  if (!now.delete(node)) now.add(node);
  set({ open: new Map(open).set(unit, now) });
}

export function collapseAll(): void {
  const { unit, open } = get();
  set({ open: new Map(open).set(unit, new Set()), shows: get().shows + 1, selected: -1 });
}

export function expandBelow(node: number): void {
  const { unit, open, trees, language } = get();
  const tree = trees.get(unit);
  if (!tree) return;
  const now = new Set(open.get(unit) ?? NO_NODES);
  const waiting = node >= 0 ? [node] : [...tree.roots];
  for (let i = 0; i < waiting.length; i++) {
    if (waiting.length > MOST_BOXES) {
      say(text(language, "tooMany", MOST_BOXES));
      return;
    }
    if (tree.children[waiting[i]].length > 0) {
      now.add(waiting[i]);
      waiting.push(...tree.children[waiting[i]]);
    }
  }
  set({ open: new Map(open).set(unit, now), shows: get().shows + 1 });
}

/** Selects a node and has it shown: what it is in is opened, and a filter that hides it is taken off. */
export function show(node: number): void {
  const { unit, open, trees, phase, micro } = get();
  const tree = trees.get(unit);
  if (!tree || node < 0) return;
  const now = new Set(open.get(unit) ?? NO_NODES);
  for (const at of tree.path(node)) if (at !== node) now.add(at);
  const hidden = !tree.shown(node, phase, micro);
  set({
    open: new Map(open).set(unit, now), selected: node, shows: get().shows + 1,
    ...(hidden ? { phase: "all" as const, micro: null } : {}),
  });
}

export function select(node: number): void {
  set({ selected: node });
}

export async function jump(unit: number, name: string | null): Promise<void> {
  const tree = await showUnit(unit);
  set({ tab: "graph" });
  const node = name === null ? undefined : tree?.find(name);
  if (node !== undefined) show(node);
}

export function nextDifference(direction: 1 | -1): void {
  const { unit, trees, selected, phase, micro } = get();
  const tree = trees.get(unit);
  const list = tree?.differences.filter((node) => tree.shown(node, phase, micro)) ?? [];
  if (list.length === 0) return;
  let at = direction === 1 ? list.findIndex((node) => node > selected) : list.findLastIndex((node) => node < selected);
  if (selected < 0 || at < 0) at = direction === 1 ? 0 : list.length - 1;
  set({ tab: "graph" });
  show(list[at]);
}

export function setMatches(matches: Match[]): void {
  set({ matches, matching: -1 });
  remember(mapKey(get().data), JSON.stringify(matches));
}

export function setLanguage(language: Language): void {
  set({ language });
  remember("language", language);
}

export function setTheme(theme: Theme): void {
  document.documentElement.dataset.theme = theme; // before canvases are painted, which ask for its colours
  set({ theme });
  remember("theme", theme);
}

export function useText(): (key: TextKey, ...values: (string | number)[]) => string {
  const language = useStore((state) => state.language);
  return (key, ...values) => text(language, key, ...values);
}

/** Words what msprobe has found, in the language of the page; several findings of one value each with its level. */
export function useFindings(): (said: Said | Said[]) => string {
  const language = useStore((state) => state.language);
  return (said) => (Array.isArray(said) ? wordedWithLevels(language, said) : worded(language, said));
}

export function useTree(): Tree | undefined {
  return useStore((state) => state.trees.get(state.unit));
}

export function unitName(data: ViewData, unit: number): string {
  const found = data.units[unit];
  if (!found) return "";
  if (found.label) return found.label;
  const parts = [];
  if (found.step !== null) parts.push(`step${found.step}`);
  if (found.rank !== null) parts.push(`rank${found.rank}`);
  return parts.join("/") || "–";
}
