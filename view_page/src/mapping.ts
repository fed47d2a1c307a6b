/** Matches made by hand, as the mapping file that `-dm` of compare and view reads: one line for each row. */
import type { Tree } from "./tree";

export interface Match {
  unit: number;
  target: string;
  /** Null: the target's node is to have no partner. */
  golden: string | null;
}

/** What the reader of the file takes for a row name. */
const ROW = /\.(input|kwargs|output|parameters|parameters_grad|debug)(\.|$)/;

function quoted(name: string): string {
  return /^[\w.$()/\-]+$/.test(name) && !/^[-\d.]/.test(name) ? name : JSON.stringify(name);
}

function rowNames(tree: Tree, node: number, name: string): Map<string, string> {
  const names = new Map<string, string>();
  for (const row of tree.graph.rows[node]) {
    const slot = tree.graph.values.slot[row];
    names.set(slot, `${name}.${slot}`);
  }
  return names;
}

/** Nodes that follow from a match: those inside of the two, paired in their order by type and label. */
export function pairs(tree: Tree, target: number, golden: number): [number, number][] {
  const found: [number, number][] = [[target, golden]];
  const left = tree.children[target];
  const right = [...tree.children[golden]];
  for (const child of left) {
    const at = right.findIndex((other) => tree.type(other) === tree.type(child) && tree.kind(other) === tree.kind(child));
    if (at >= 0) found.push(...pairs(tree, child, right.splice(at, 1)[0]));
  }
  return found;
}

/** A node and all that is inside of it. */
function inside(tree: Tree, node: number): number[] {
  return [node, ...tree.children[node].flatMap((child) => inside(tree, child))];
}

/** What the golden dump calls a node that the target lacks: the page's name tells it from one that the target has. */
function ofGolden(tree: Tree, node: number): string {
  return tree.graph.partner[node] ?? tree.graph.name[node].replace(/ \(golden\)$/, "");
}

export function mappingFile(matches: Match[], treeOf: (unit: number) => Tree | undefined): string {
  const lines = ["# Matches made by hand in a page of msprobe view; give it to compare or view with -dm.",];
  const said = new Set<string>();
  for (const match of matches) {
    const tree = treeOf(match.unit);
    if (match.golden === null) {
      lines.push(`# unmatch: ${match.target.replace(/\s+/g, " ")}`);
      const node = tree?.find(match.target);
      for (const single of tree && node !== undefined ? inside(tree, node) : []) {
        if (tree!.isGroup(single) || tree!.graph.side[single] === "golden") continue;
        for (const name of rowNames(tree!, single, tree!.graph.name[single]).values()) {
          if (said.has(name) || !ROW.test(name)) continue;
          said.add(name);
          lines.push(`${quoted(name)}: null`);
        }
      }
      continue;
    }
    lines.push(`# match: ${match.target.replace(/\s+/g, " ")} -> ${match.golden.replace(/\s+/g, " ")}`);
    const target = tree?.find(match.target);
    const golden = tree?.find(match.golden);
    if (!tree || target === undefined || golden === undefined) continue;
    for (const [left, right] of pairs(tree, target, golden)) {
      if (tree.isGroup(left) || tree.isGroup(right)) continue;
      const theirs = rowNames(tree, right, ofGolden(tree, right));
      for (const [slot, name] of rowNames(tree, left, tree.graph.name[left])) {
        const other = theirs.get(slot);
        if (other === undefined || said.has(name) || !ROW.test(name) || !ROW.test(other)) continue;
        said.add(name);
        lines.push(`${quoted(name)}: ${quoted(other)}`);
      }
    }
  }
  return `${lines.join("\n")}\n`;
}

/** What a downloaded mapping file says of whole nodes; other lines are left to `-dm`. */
export function readMapping(text: string, unit: number): Match[] {
  const matches: Match[] = [];
  for (const line of text.split(/\r?\n/)) {
    const pair = /^# match: (.+) -> (.+)$/.exec(line);
    if (pair) matches.push({ unit, target: pair[1], golden: pair[2] });
    const single = /^# unmatch: (.+)$/.exec(line);
    if (single) matches.push({ unit, target: single[1], golden: null });
  }
  return matches;
}
