/** What the maps of a monitored training are made of: from the page's data, or from the server, in one form. */
import { type Dashboard, type MonitorMap, type Num, type Trend, toNumber } from "./data";

export type MapView = "model" | "ranks" | "step";

/** One cell: a value, what it is held against, and where it is. */
export interface Cell {
  row: number;
  rank: number;
  step: number;
  value: Num;
  usual: Num;
  golden: Num | undefined;
}

export interface Shown {
  rows: string[];
  columns: string[];
  cells: (Cell | null)[][];
  /** What the page lacks of it. */
  lacks: { rows?: [number, number]; steps?: [number, number] };
}

const WINDOW = 50;
const FIRST = 10;

function median(sorted: number[]): number {
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** The median magnitude of up to 50 values before each, of the first ten for these, as in view/trends_maps.py. */
export function usualOf(values: Num[]): Num[] {
  const sizes = values.map((value) => Math.abs(toNumber(value)));
  const first = sizes.filter(Number.isFinite).slice(0, FIRST).sort((a, b) => a - b);
  const begin = first.length > 0 ? median(first) : null;
  const window: number[] = [];
  const place = (value: number): number => {
    let [low, high] = [0, window.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (window[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  return sizes.map((size, i) => {
    const usual = window.length >= FIRST ? median(window) : begin;
    if (Number.isFinite(size)) window.splice(place(size), 0, size);
    const old = sizes[i - WINDOW];
    if (i >= WINDOW && Number.isFinite(old)) window.splice(place(old), 1);
    return usual;
  });
}

/** How far a value is from golden, relative, or else from usual, as a logarithm; below 0 if there is none. */
export function apart(cell: Cell | null): number {
  if (!cell || cell.value === null) return -1;
  const value = toNumber(cell.value);
  if (cell.golden !== undefined) {
    if (cell.golden === null) return 0;
    const golden = toNumber(cell.golden);
    if (value === golden || (Number.isNaN(value) && Number.isNaN(golden))) return 0;
    const part = Math.abs(value - golden) / Math.abs(golden);
    return Number.isNaN(part) ? Infinity : part;
  }
  if (!Number.isFinite(value)) return Infinity;
  const ratio = Math.abs(logRatio(cell));
  return Number.isNaN(ratio) ? 0 : ratio;
}

/** The logarithm of a value's magnitude in units of what is usual. */
export function logRatio(cell: Cell): number {
  const [size, usual] = [Math.abs(toNumber(cell.value)), toNumber(cell.usual)];
  return size === 0 && usual === 0 ? 0 : Math.log(size / usual);
}

const keyOf = (name: string, slot: string, micro: number | null | undefined, statistic: string): string => `${statistic}\n${slot}\n${name}\n${micro ?? ""}`;

/** The lines of single ranks that the page holds, by what they are of. */
export class Lines {
  private readonly found = new Map<string, Trend>();

  constructor(trends: Trend[], private readonly board: Dashboard) {
    for (const trend of trends) if (trend.origin === "monitor") this.found.set(keyOf(trend.name, trend.slot, trend.micro_step, trend.statistic), trend);
  }

  of(row: number, statistic: string): Trend | undefined {
    const { quantity, name, micro_step } = this.board.rows;
    return this.found.get(keyOf(name[row], quantity[row], micro_step[row], statistic));
  }

  /** The steps that all lines of a quantity have: those of the line with the fewest. */
  steps(names: Named[], statistic: string): number[] {
    const all = names.flatMap(({ rows }) => rows.map((row) => this.of(row, statistic)?.steps)).filter((steps) => steps !== undefined);
    return all.reduce((least, steps) => (steps.length < least.length ? steps : least), this.board.steps);
  }
}

/** The step that is nearest to one that is wanted. */
export function nearest(steps: number[], step: number): number {
  return steps.reduce((best, each) => (Math.abs(each - step) < Math.abs(best - step) ? each : best), steps[0] ?? step);
}

/** The exact values of one row over ranks and steps. */
export interface RowPart {
  steps: number[];
  value: Num[][];
  usual: Num[][];
  golden: Num[][] | null;
}

export function rowOfTrend(trend: Trend, board: Dashboard): RowPart {
  const none = trend.steps.map(() => null);
  const value = board.ranks.map((rank) => trend.target[String(rank)] ?? none);
  return { steps: trend.steps, value, usual: value.map(usualOf), golden: trend.golden && board.ranks.map((rank) => trend.golden?.[String(rank)] ?? none) };
}

export function rowOfMap(map: MonitorMap, board: Dashboard): RowPart {
  return { steps: board.steps, value: map.value, usual: map.usual, golden: map.golden };
}

/** Rows of one quantity that have one name, and differ in their micro-batch. */
export interface Named {
  name: string;
  rows: number[];
}

export function namesOf(board: Dashboard, quantity: string, micro: number | null): Named[] {
  const found = new Map<string, Named>();
  board.rows.quantity.forEach((own, row) => {
    if (own !== quantity || (micro !== null && board.rows.micro_step[row] !== null && board.rows.micro_step[row] !== micro)) return;
    const name = board.rows.name[row];
    const named = found.get(name) ?? { name, rows: [] };
    named.rows.push(row);
    found.set(name, named);
  });
  return [...found.values()];
}

const worst = (cells: (Cell | null)[]): Cell | null => {
  let [best, most] = [cells[0] ?? null, apart(cells[0] ?? null)];
  for (const cell of cells.slice(1)) {
    const own = apart(cell);
    if (own > most) [best, most] = [cell, own];
  }
  return best?.value === null ? null : best;
};

/** Layers and steps, each cell from the rank that is furthest from usual. */
export function worstOfRanks(board: Dashboard, map: MonitorMap, names: Named[]): Shown {
  const cells = names.map(({ rows }) => board.columns.map((column, c) => worst(rows.map((row) => ({
    row, rank: board.ranks[map.rank[row]?.[c] ?? 0], step: map.step[row]?.[c] ?? column[0],
    value: map.value[row][c], usual: map.usual[row][c], golden: map.golden ? map.golden[row][c] : undefined,
  })))));
  const columns = board.columns.map(([first, last]) => (first === last ? String(first) : `${first}–${last}`));
  return { rows: names.map(({ name }) => name), columns, cells, lacks: {} };
}

/** Layers and steps of one rank. `rows` are those of the map. */
export function ofRank(board: Dashboard, names: Named[], rank: number, part: (row: number) => { steps: number[]; value: Num[]; usual: Num[]; golden: Num[] | null } | null): Shown {
  const held = new Map(names.flatMap(({ rows }) => rows.map((row) => [row, part(row)] as const)));
  const there = [...held.values()].filter((each) => each !== null);
  const steps = there.reduce<number[]>((least, each) => (least.length === 0 || each.steps.length < least.length ? each.steps : least), []);
  const shown = names.filter(({ rows }) => rows.some((row) => held.get(row)));
  const places = new Map(there.map((each) => [each.steps, new Map(each.steps.map((step, i) => [step, i]))]));
  const cells = shown.map(({ rows }) => steps.map((step) => worst(rows.map((row) => {
    const own = held.get(row);
    const at = own ? places.get(own.steps)?.get(step) : undefined;
    if (!own || at === undefined) return null;
    return { row, rank, step, value: own.value[at], usual: own.usual[at], golden: own.golden ? own.golden[at] : undefined };
  }))));
  return { rows: shown.map(({ name }) => name), columns: steps.map(String), cells, lacks: lacking(names, shown, board, steps) };
}

/** Layers and ranks of one step. */
export function ofStep(board: Dashboard, names: Named[], step: number, part: (row: number) => { value: Num[]; usual: Num[]; golden: Num[] | null } | null): Shown {
  const held = new Map(names.flatMap(({ rows }) => rows.map((row) => [row, part(row)] as const)));
  const shown = names.filter(({ rows }) => rows.some((row) => held.get(row)));
  const cells = shown.map(({ rows }) => board.ranks.map((rank, c) => worst(rows.map((row) => {
    const own = held.get(row);
    return own ? { row, rank, step, value: own.value[c], usual: own.usual[c], golden: own.golden ? own.golden[c] : undefined } : null;
  }))));
  return { rows: shown.map(({ name }) => name), columns: board.ranks.map(String), cells, lacks: lacking(names, shown, board, board.steps) };
}

/** Ranks and steps of one row. */
export function ofRow(board: Dashboard, row: number, part: RowPart): Shown {
  const cells = board.ranks.map((rank, r) => part.steps.map((step, c) => (part.value[r]?.[c] ?? null) === null ? null : {
    row, rank, step, value: part.value[r][c], usual: part.usual[r][c], golden: part.golden ? part.golden[r][c] : undefined,
  }));
  return { rows: board.ranks.map((rank) => `rank ${rank}`), columns: part.steps.map(String), cells, lacks: lacking([], [], board, part.steps) };
}

function lacking(names: Named[], shown: Named[], board: Dashboard, steps: number[]): Shown["lacks"] {
  return {
    ...(shown.length < names.length ? { rows: [shown.length, names.length] as [number, number] } : {}),
    ...(steps.length < board.steps.length ? { steps: [steps.length, board.steps.length] as [number, number] } : {}),
  };
}

export const FACTORS = [1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 30, 100, 1000];

/** A factor that leaves what most cells do pale, and gives what is unusual a full colour: thrice what 19 of 20 are within. */
export function factorOf(shown: Shown): number {
  const sizes = shown.cells.flat().filter((cell) => cell !== null).map((cell) => Math.abs(logRatio(cell))).filter(Number.isFinite).sort((a, b) => a - b);
  const most = Math.min(3 * (sizes[Math.floor(0.95 * (sizes.length - 1))] ?? 0), sizes.at(-1) ?? 0);
  return FACTORS.find((factor) => Math.log(factor) >= most) ?? FACTORS[FACTORS.length - 1];
}

/** Logarithms of the smallest and largest magnitude. */
export function rangeOf(shown: Shown): [number, number] {
  const sizes = shown.cells.flat().map((cell) => Math.log(Math.abs(toNumber(cell?.value)))).filter(Number.isFinite).sort((a, b) => a - b);
  return [sizes[Math.floor(0.005 * sizes.length)] ?? 0, sizes[sizes.length - 1] ?? 1];
}

/** The relative difference as a severity: a ten-thousandth is the least, all of it the most. */
export function distance(target: Num, golden: Num | undefined): number | null {
  const [left, right] = [toNumber(target), toNumber(golden)];
  if (target === null || golden === null || golden === undefined) return null;
  if (left === right || (Number.isNaN(left) && Number.isNaN(right))) return 0;
  const part = Math.abs(left - right) / Math.max(Math.abs(left), Math.abs(right));
  return Number.isFinite(part) ? Math.min(1, Math.max(0, 1 + Math.log10(part) / 4)) : 1;
}
