/** The model as a list that opens and closes, or what a search or a filter leaves of it; only visible rows exist. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { type KeyboardEvent, type ReactNode, type RefObject, useEffect, useMemo, useRef } from "react";
import { fill } from "./colour";
import { Chevron, Shape } from "./icons";
import { phaseText } from "./parts";
import { NO_NODES, show, toggle, useStore, useText } from "./store";
import { type PhaseChoice, type Tree, type Verdict, verdictOf } from "./tree";

const MOST_FOUND = 20_000;
const VERDICTS: Verdict[] = ["error", "warning", "pass", "none"];

export function visibleNodes(tree: Tree, open: ReadonlySet<number>, phase: PhaseChoice, micro: number | null): number[] {
  const rows: number[] = [];
  const waiting = [...tree.roots].reverse();
  while (waiting.length > 0) {
    const node = waiting.pop() as number;
    if (!tree.shown(node, phase, micro)) continue;
    rows.push(node);
    if (open.has(node)) for (let i = tree.children[node].length - 1; i >= 0; i--) waiting.push(tree.children[node][i]);
  }
  return rows;
}

/** Arrow keys, Home, End and Enter, for the outline and the canvas alike. */
export function moveByKey(event: KeyboardEvent, tree: Tree, rows: number[], flat: boolean): boolean {
  const { selected, open, unit } = useStore.getState();
  const at = rows.indexOf(selected);
  const isOpen = (open.get(unit) ?? NO_NODES).has(selected);
  const holds = selected >= 0 && tree.children[selected].length > 0;
  const to = (index: number): void => {
    const node = rows[Math.min(rows.length - 1, Math.max(0, index))];
    if (node !== undefined) show(node);
  };
  if (event.key === "ArrowDown") to(at + 1);
  else if (event.key === "ArrowUp") to(at < 0 ? 0 : at - 1);
  else if (event.key === "Home") to(0);
  else if (event.key === "End") to(rows.length - 1);
  else if (event.key === "PageDown") to(at + 12);
  else if (event.key === "PageUp") to(at - 12);
  else if (event.key === "ArrowRight" && !flat) {
    if (holds && !isOpen) toggle(selected);
    else if (holds) to(at + 1);
  } else if (event.key === "ArrowLeft" && !flat) {
    if (holds && isOpen) toggle(selected);
    else if (selected >= 0 && tree.parent[selected] >= 0) show(tree.parent[selected]);
  } else if ((event.key === "Enter" || event.key === " ") && selected >= 0) {
    if (holds && !flat) toggle(selected);
    else show(selected);
  } else return false;
  event.preventDefault();
  event.stopPropagation();
  return true;
}

export function Outline({ tree, searchBox, suspects }: {
  suspects: ReadonlyMap<number, number>; tree: Tree; searchBox: RefObject<HTMLInputElement | null> }): ReactNode {
  const say = useText();
  const open = useStore((state) => state.open.get(state.unit) ?? NO_NODES);
  const { phase, micro, words, only, selected, theme, shows } = useStore();
  const plain = useStore((state) => state.data.kind === "dump");
  const flat = words.trim() !== "" || only.size > 0;
  const { rows, total } = useMemo(() => {
    if (!flat) {
      const visible = visibleNodes(tree, open, phase, micro);
      return { rows: visible, total: visible.length };
    }
    const accept = (node: number): boolean => {
      if (!tree.shown(node, phase, micro)) return false;
      return only.size === 0 || (only.has(tree.verdict(node)) && (tree.graph.own[node] !== null || tree.children[node].length === 0));
    };
    const { found, total: all } = tree.search(words, accept, MOST_FOUND);
    return { rows: found, total: all };
  }, [tree, open, phase, micro, words, only, flat]);
  const scroller = useRef<HTMLDivElement>(null);
  const rowHeight = flat ? 42 : 30;
  const list = useVirtualizer({ count: rows.length, getScrollElement: () => scroller.current, estimateSize: () => rowHeight, overscan: 8 });
  useEffect(() => list.measure(), [rowHeight]);
  useEffect(() => {
    const at = rows.indexOf(selected);
    if (at < 0) return;
    const seen = list.range;
    const far = !seen || at < seen.startIndex - 1 || at > seen.endIndex + 1;
    list.scrollToIndex(at, { align: far ? "center" : "auto" });
  }, [selected, shows]);

  return (
    <aside className="outline" aria-label={say("outline")}>
      <div className="outline-head">
        <input ref={searchBox} type="search" className="search" value={words} placeholder={say("searchHint")} aria-label={say("search")}
          spellCheck={false} onChange={(event) => useStore.setState({ words: event.target.value })}
          onKeyDown={(event) => {
            if (event.key === "Enter" || event.key === "ArrowDown") {
              const at = rows.indexOf(selected);
              const next = rows[event.shiftKey ? Math.max(0, at - 1) : Math.min(rows.length - 1, at + 1)];
              if (next !== undefined) show(next);
              if (event.key === "ArrowDown") scroller.current?.focus();
              event.preventDefault();
            }
          }} />
        {!plain && (
          <div className="filters" role="group" aria-label={say("filters")}>
            {VERDICTS.map((verdict) => <FilterChip key={verdict} verdict={verdict} count={tree.counts[verdict]} />)}
          </div>
        )}
        {flat && (
          <div className="found" role="status">
            {total > MOST_FOUND ? say("foundMore", total, MOST_FOUND) : say("found", total)}
          </div>
        )}
      </div>
      <div ref={scroller} className="rows" role="tree" tabIndex={0} aria-label={say("outline")}
        aria-activedescendant={selected >= 0 ? `row-${selected}` : undefined}
        onKeyDown={(event) => moveByKey(event, tree, rows, flat)}>
        <div style={{ height: list.getTotalSize(), position: "relative" }} role="presentation">
          {list.getVirtualItems().map((item) => {
            const node = rows[item.index];
            const holds = tree.children[node].length > 0;
            const severity = tree.severity[node];
            return (
              <div key={item.key} id={`row-${node}`} role="treeitem" className={`row${node === selected ? " chosen" : ""}`}
                aria-level={flat ? 1 : tree.depth[node] + 1} aria-selected={node === selected}
                aria-expanded={holds && !flat ? open.has(node) : undefined} data-name={tree.name(node)} title={tree.name(node)}
                style={{ transform: `translateY(${item.start}px)`, height: item.size, paddingLeft: flat ? 10 : 6 + Math.min(12, tree.depth[node]) * 14 }}
                onClick={() => show(node)}
                onDoubleClick={() => { if (holds && !flat) toggle(node); }}>
                {!flat && (
                  <span className="row-fold" onClick={(event) => { event.stopPropagation(); if (holds) toggle(node); }}>
                    {holds && <Chevron open={open.has(node)} />}
                  </span>
                )}
                {plain && severity === null ? <span className={`kind kind-${tree.kind(node)}`} />
                  : <span className="swatch" style={{ background: fill(severity, theme) }}><Shape verdict={holds ? verdictOf(tree.severity[node]) : tree.verdict(node)} /></span>}
                <span className="row-text">
                  <span className="row-label">{tree.label(node)}</span>
                  {flat && <span className="row-path">{tree.name(node)}</span>}
                </span>
                {suspects.has(node) && <span className="suspect">{suspects.get(node)}</span>}
                {!flat && <span className="row-type">{[tree.parent[node] < 0 && phaseText(tree, node, say), tree.type(node)].filter(Boolean).join(" · ")}</span>}
              </div>
            );
          })}
        </div>
      </div>
    </aside>
  );
}

const FILTER_TEXT = { error: "filterError", warning: "filterWarning", pass: "filterPass", none: "filterNone" } as const;

function FilterChip({ verdict, count }: { verdict: Verdict; count: number }): ReactNode {
  const say = useText();
  const only = useStore((state) => state.only);
  const pressed = only.has(verdict);
  return (
    <button className={`chip ${verdict}`} aria-pressed={pressed} data-filter={verdict} onClick={() => {
      const now = new Set(only);
      if (pressed) now.delete(verdict);
      else now.add(verdict);
      useStore.setState({ only: now });
    }}>
      <Shape verdict={verdict} size={12} /> {say(FILTER_TEXT[verdict])} <b>{count}</b>
    </button>
  );
}
