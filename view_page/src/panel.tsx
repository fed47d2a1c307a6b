/** All that is known of the selected node. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useMemo, useRef, useState } from "react";
import { type Num, type Values, show as shown, toNumber } from "./data";
import { Shape, Symbol } from "./icons";
import { CopyButton, Command, Name, Over, VERDICT_TEXT, shellWord } from "./parts";
import { expandBelow, jump, setMatches, show, unitName, useFindings, useStore, useText } from "./store";
import type { TextKey } from "./texts";
import { type Tree, type Verdict, verdictOf } from "./tree";

const SAID_ELSEWHERE = new Set(["score", "score_limit"]);

export function Panel({ tree }: { tree: Tree }): ReactNode {
  const say = useText();
  const selected = useStore((state) => state.selected);
  return (
    <aside className="panel" aria-label={say("nodePanel")}>
      {selected < 0 ? <p className="empty">{say("nothingSelected")}</p> : <NodeView key={selected} tree={tree} node={selected} />}
    </aside>
  );
}

function NodeView({ tree, node }: { tree: Tree; node: number }): ReactNode {
  const say = useText();
  const { graph } = tree;
  const group = tree.isGroup(node);
  const plain = useStore((state) => state.data.kind === "dump");
  const name = tree.name(node);
  const partner = group ? null : graph.partner[node];
  const severity = tree.severity[node];
  const verdict = group ? verdictOf(severity) : tree.verdict(node);
  const path = tree.path(node).slice(0, -1);
  const holds = tree.children[node].length;
  const inside = useMemo(() => tree.worstInside(node), [tree, node]);
  const stack = group || graph.stack[node] < 0 ? [] : graph.stacks[graph.stack[node]];
  const [body, setBody] = useState<HTMLDivElement | null>(null);
  return (
    <div className="panel-body" ref={setBody}>
      {path.length > 0 && (
        <nav className="path" aria-label={say("where")}>
          {path.map((at) => <span key={at}><button className="link" onClick={() => show(at)}>{tree.label(at)}</button> › </span>)}
        </nav>
      )}
      <h2>{!(plain && severity === null) && <Shape verdict={verdict} size={18} label={say(VERDICT_TEXT[verdict])} />} <span><Name value={tree.label(node)} /></span></h2>
      <div className="full-name"><code data-testid="name"><Name value={name} /></code><CopyButton value={name} /></div>
      {partner !== null && partner !== name && <div className="full-name"><span className="muted">{say("partner")}</span><code><Name value={partner} /></code></div>}
      {!group && <Reason tree={tree} node={node} />}
      <ManualMatch tree={tree} node={node} />
      {holds > 0 && (
        <p className="line">{say("contents", holds)} <button className="button small" onClick={() => expandBelow(node)}>{say("expandBelow")}</button>
          {inside >= 0 && <> <button className="button small" data-testid="worst-inside" onClick={() => show(inside)}><Shape verdict={tree.verdict(inside)} size={12} /> {say("worstInside")}</button></>}</p>
      )}
      {!group && (
        <>
          <Peers tree={tree} node={node} />
          <ValueList tree={tree} node={node} scroller={body} />
          <Links tree={tree} title="dataFrom" nodes={tree.sources(node)} />
          <Links tree={tree} title="dataTo" nodes={tree.consumers(node)} />
          {stack.length > 0 && (
            <section><h3>{say("stack")}</h3><pre className="stack">{stack.join("\n")}</pre></section>
          )}
          <Commands name={name} />
        </>
      )}
    </div>
  );
}

function Reason({ tree, node }: { tree: Tree; node: number }): ReactNode {
  const say = useText();
  const read = useFindings();
  const { graph } = tree;
  const plain = useStore((state) => state.data.kind === "dump");
  const side = graph.side[node];
  if (side !== "both" && !plain) return <p className="reason none">{say(side === "golden" ? "onlyGolden" : "onlyTarget")}{graph.reason[node] && `: ${read(graph.reason[node])}`}</p>;
  const own = graph.own[node];
  if (plain && own === null) return null;
  const verdict = verdictOf(own);
  return (
    <p className={`reason ${verdict}`}>
      {read(graph.reason[node]) || say(VERDICT_TEXT[verdict])}
      {graph.score[node] !== null && <span className="muted"> · {say("score")} {shown(graph.score[node])}</span>}
    </p>
  );
}

function ManualMatch({ tree, node }: { tree: Tree; node: number }): ReactNode {
  const say = useText();
  const { matches, matching, unit } = useStore();
  const comparison = useStore((state) => state.data.kind === "comparison");
  if (!comparison || tree.isGroup(node)) return null;
  const { graph } = tree;
  const side = graph.side[node];
  const name = graph.name[node];
  const mine = matches.find((match) => match.unit === unit && (match.target === name || match.golden === name || match.golden === graph.partner[node]));
  if (mine) {
    return (
      <p className="line">
        <span className="muted">{say(mine.golden === null ? "unmatchedByHand" : "matchedByHand")}{mine.golden !== null && `: ${mine.target === name ? mine.golden : mine.target}`}</span>
        {" "}<button className="button small" data-testid="forget" onClick={() => setMatches(matches.filter((match) => match !== mine))}>{say("remove")}</button>
      </p>
    );
  }
  if (matching >= 0 && matching !== node) {
    const fits = side === "both" || side !== graph.side[matching];
    if (!fits) return <p className="line muted">{say("matchWrong")}</p>;
    const [target, golden] = graph.side[matching] === "golden" || side === "target" ? [node, matching] : [matching, node];
    return (
      <p className="line">
        <button className="button small strong" data-testid="match" onClick={() => setMatches([...matches,
          { unit, target: graph.name[target], golden: graph.partner[golden] ?? graph.name[golden] }])}>
          {say("matchNow", tree.label(matching))}
        </button>
      </p>
    );
  }
  return (
    <p className="line">
      <button className="button small" data-testid="match-start" onClick={() => useStore.setState({ matching: node })}>
        <Symbol name="match" /> {say("matchByHand")}
      </button>
      {side === "both" && <> <button className="button small" data-testid="unmatch" title={say("unmatchHow")} onClick={() => setMatches([...matches, { unit, target: name, golden: null }])}>{say("unmatch")}</button></>}
    </p>
  );
}

function Peers({ tree, node }: { tree: Tree; node: number }): ReactNode {
  const say = useText();
  const data = useStore((state) => state.data);
  const talk = tree.graph.communication[node];
  if (!talk) return null;
  const sends = new Set(talk.sends);
  const receives = new Set(talk.receives);
  return (
    <section>
      <h3>{say("communication")}</h3>
      <ul className="links peers">
        {talk.peers.map(([unit, name], i) => (
          <li key={`${unit} ${name}`}>
            <span className="arrow" title={[sends.has(i) && say("sends"), receives.has(i) && say("receives")].filter(Boolean).join(", ")}>
              {sends.has(i) ? (receives.has(i) ? "⇄" : "→") : receives.has(i) ? "←" : "·"}
            </span>
            <button className="link" onClick={() => void jump(unit, name)}>{unitName(data, unit)}</button> <span className="muted">{name}</span>
          </li>
        ))}
        {talk.more > 0 && <li className="muted">{say("moreLeft", talk.more)}</li>}
      </ul>
    </section>
  );
}

function Links({ tree, title, nodes }: { tree: Tree; title: TextKey; nodes: number[] }): ReactNode {
  const say = useText();
  if (nodes.length === 0) return null;
  const listed = nodes.slice(0, 12);
  return (
    <section>
      <h3>{say(title)}</h3>
      <ul className="links">
        {listed.map((node) => (
          <li key={node}><Shape verdict={tree.verdict(node)} size={11} /> <button className="link" title={tree.name(node)} onClick={() => show(node)}>{tree.name(node)}</button></li>
        ))}
        {nodes.length > listed.length && <li className="muted">{say("moreLeft", nodes.length - listed.length)}</li>}
      </ul>
    </section>
  );
}

function Commands({ name }: { name: string }): ReactNode {
  const say = useText();
  const read = useFindings();
  const data = useStore((state) => state.data);
  const culprit = data.culprits.find((item) => item.node === name);
  const unit = useStore((state) => state.unit);
  const [target, golden] = data.units[unit]?.paths ?? [null, null];
  const fills: Record<string, string | null> = { node: name, target, golden };
  const commands = Object.values(data.commands ?? {}).map((command) =>
    command.replace(/\{(node|target|golden)\}/g, (whole, key: string) => (fills[key] ? shellWord(fills[key]) : whole)));
  const next = culprit ? read(culprit.command) : "";
  if (!commands.includes(next)) commands.unshift(next);
  const told = commands.filter((command) => command.length > 0);
  if (told.length === 0) return null;
  return <section><h3>{say("digDeeper")}</h3>{told.map((command) => <Command key={command} value={command} />)}</section>;
}

function ValueList({ tree, node, scroller }: { tree: Tree; node: number; scroller: HTMLDivElement | null }): ReactNode {
  const say = useText();
  const rows = tree.graph.rows[node];
  const hostOf = useRef<HTMLDivElement>(null);
  const list = useVirtualizer({
    count: rows.length, getScrollElement: () => scroller, estimateSize: () => 190, overscan: 3,
    scrollMargin: hostOf.current?.offsetTop ?? 0,
  });
  if (rows.length === 0) return <p className="muted">{say("noValues")}</p>;
  return (
    <section>
      <h3>{say("values")}</h3>
      <div ref={hostOf} style={{ height: list.getTotalSize(), position: "relative" }}>
        {list.getVirtualItems().map((item) => (
          <div key={item.key} ref={list.measureElement} data-index={item.index} className="value-place"
            style={{ transform: `translateY(${item.start - list.options.scrollMargin}px)` }}>
            <Value tree={tree} node={node} row={rows[item.index]} />
          </div>
        ))}
      </div>
    </section>
  );
}

function cell(column: Num[] | undefined, row: number): Num {
  return column ? column[row] ?? null : null;
}

const NOT_ZERO = new Set(["num_nan", "num_inf"]);

function Value({ tree, node, row }: { tree: Tree; node: number; row: number }): ReactNode {
  const say = useText();
  const read = useFindings();
  const values = tree.graph.values;
  const { unit, data } = useStore();
  const statistics = useMemo(() => statisticsOf(values, row), [values, row]);
  const metrics = Object.entries(values.metrics).filter(([key, column]) => !SAID_ELSEWHERE.has(key) && column[row] !== null && column[row] !== undefined);
  const verdict = values.verdict[row] as Verdict;
  const [dtype, dtypeGolden] = values.dtype[row];
  const [shape, shapeGolden] = values.shape[row];
  const slot = values.slot[row];
  const name = tree.name(node);
  const isNumber = Object.values(values.target).length > 0 && ["norm", "max"].some((key) => typeof cell(values.target[key], row) === "number" || typeof cell(values.golden?.[key], row) === "number");
  const hasTrend = (data.units.length > 1 && isNumber && tree.graph.side[node] !== "golden") || data.trends.some((item) => item.name === name && item.slot === slot);
  const tensor = data.tensors.findIndex((item) => item.unit === unit && item.node === name && item.slot === slot);
  const files = values.file[row].filter((file): file is string => file !== null && file !== "");
  return (
    <article className={`value ${verdict}`}>
      <header>
        {verdict !== "none" && <Shape verdict={verdict} size={12} />}
        <b>{slot}</b>
        <span className="muted">{pair(dtype, dtypeGolden)} {pair(shape, shapeGolden)}</span>
        <Over score={cell(values.metrics.score ?? values.metrics.error, row)}
          limit={cell(values.metrics.score ? values.metrics.score_limit : values.metrics.limit, row)} />
      </header>
      {values.reason[row].length > 0 && <p className="value-reason">{read(values.reason[row])}</p>}
      {statistics.length > 0 && (
        <table>
          <thead><tr><th /><th>{say("target")}</th>{values.golden && <th>{say("golden")}</th>}</tr></thead>
          <tbody>
            {statistics.map(([key, target, golden]) => (
              <tr key={key} className={values.golden && differs(target, golden) ? "differs" : ""}>
                <th>{key}</th><td>{shown(target)}</td>{values.golden && <td>{shown(golden)}</td>}
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {metrics.length > 0 && (
        <dl className="metrics">{metrics.map(([key, column]) => <div key={key}><dt>{key}</dt><dd>{shown(column[row])}</dd></div>)}</dl>
      )}
      {files.map((file) => <div key={file} className="file muted">{file}</div>)}
      {(hasTrend || tensor >= 0) && (
        <div className="value-actions">
          {hasTrend && <button className="button small" onClick={() => useStore.setState({ tab: "trends", trend: { name, slot } })}>{say("trendOf")}</button>}
          {tensor >= 0 && <button className="button small" onClick={() => useStore.setState({ tab: "tensors", tensor })}>{say("showTensor")}</button>}
        </div>
      )}
    </article>
  );
}

function pair(target: string | null, golden: string | null): string {
  if (golden === null || golden === "" || golden === target) return target ?? "";
  return target ? `${target} ≠ ${golden}` : golden;
}

function statisticsOf(values: Values, row: number): [string, Num, Num][] {
  const keys = new Set([...Object.keys(values.target), ...Object.keys(values.golden ?? {})]);
  const found: [string, Num, Num][] = [];
  for (const key of keys) {
    const target = cell(values.target[key], row);
    const golden = values.golden ? cell(values.golden[key], row) : null;
    if (target === null && golden === null) continue;
    if (NOT_ZERO.has(key) && !target && !golden) continue;
    found.push([key, target, golden]);
  }
  return found;
}

/** Whether a reader's eye should stop here: more than a part in a thousand, or another text. */
function differs(target: Num, golden: Num): boolean {
  if (target === golden || target === null || golden === null) return false;
  const [a, b] = [toNumber(target), toNumber(golden)];
  if (Number.isNaN(a) || Number.isNaN(b)) return true;
  return Math.abs(a - b) > 1e-3 * Math.max(Math.abs(a), Math.abs(b));
}
