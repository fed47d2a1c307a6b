/** The verdict first: one sentence, where to look, how sure, and what to do next. */
import type { ReactNode } from "react";
import { type Culprit, type ViewData, show } from "./data";
import { HeatOverview } from "./overview";
import { Manifest } from "./configuration";
import { Command, Name, Over, Strength } from "./parts";
import { Shape } from "./icons";
import { withoutLevel, word } from "./findings";
import { jump, unitName, useFindings, useStore, useText } from "./store";
import type { TextKey } from "./texts";

const SHAPES: Record<string, "error" | "pass" | "warning" | "none"> = { fault: "error", agree: "pass", insufficient: "warning" };

/** The answer in two or three words. */
export function stateText({ verdict: { state }, kind, sides, culprits, checked, rl }: ViewData): TextKey {
  if (rl && (state === "fault" || state === "agree")) return state === "fault" ? "stateRlFault" : "stateRlAgree";
  if (state === "fault" && kind === "dump" && culprits.length === 0) return "stateWrongCall";
  if (state === "fault") return kind === "comparison" ? "stateFault" : sides.golden ? "statePart" : "stateNotFinite";
  if (state === "none" && checked?.length) return checked.some(({ counts }) => counts.right + counts.ill_conditioned > 0) ? "stateChecked" : "stateInsufficient";
  return state === "agree" ? "stateAgree" : state === "insufficient" ? "stateInsufficient" : "stateNone";
}

export function Summary(): ReactNode {
  const say = useText();
  const read = useFindings();
  const data = useStore((state) => state.data);
  const { verdict, culprits } = data;
  const [first, ...others] = culprits;
  return (
    <div className="summary">
      <section className={`verdict ${verdict.state}`} aria-labelledby="verdict-state">
        <div className="verdict-mark"><Shape verdict={SHAPES[verdict.state] ?? "none"} size={44} /></div>
        <div>
          <div className="verdict-state" id="verdict-state">{say(stateText(data))}</div>
          <h1 data-testid="sentence"><Name value={read(verdict.sentence)} /></h1>
          {verdict.detail.map(read).filter((line) => !first || line !== read(first.reason)).map((line, i) => <p key={i} className="detail">{line}</p>)}
          <p className="facts">
            {data.kind === "comparison" && !data.rl && <span>{say("nodesFlagged", verdict.counts.flagged, verdict.counts.nodes)}</span>}
            {data.kind === "comparison" && verdict.counts.unmatched > 0 && <span>{say("unmatchedCount", verdict.counts.unmatched)}</span>}
            {data.units.length > 1 && <span>{say("unitsCount", data.units.length)}</span>}
            {data.kind === "dump" && !data.rl && <span>{say("calls", verdict.counts.nodes)}</span>}
          </p>
          {data.rl && <button className="button strong" data-testid="show-rl" onClick={() => useStore.setState({ tab: "rl" })}>{say("exploreRl")}</button>}
          {data.kind === "monitor" && data.monitor && (
            <button className="button strong" data-testid="show-monitor" onClick={() => useStore.setState({ tab: "monitor" })}>{say("exploreMonitor")}</button>
          )}
          {data.kind === "monitor" && data.trends.length > 0 && (
            <>{" "}<button className="button" data-testid="show-trend" onClick={() => useStore.setState({ tab: "trends", trend: null })}>{say(verdict.state === "fault" ? "showTrend" : "exploreTrends")}</button></>
          )}
          {data.configured?.sections.some(({ matter }) => matter > 0) ? (
            <><button className="button strong" data-testid="show-configuration" onClick={() => useStore.setState({ tab: "configuration" })}>{say("exploreConfiguration")}</button>{" "}</>
          ) : null}
          {data.checked?.length ? (
            <><button className="button strong" data-testid="show-checked" onClick={() => useStore.setState({ tab: "checked" })}>{say("exploreChecked")}</button>{" "}</>
          ) : null}
          {!first && data.units.length > 0 && (
            <button className={data.checked?.length ? "button" : "button strong"} onClick={() => useStore.setState({ tab: "graph" })}>{say("explore")}</button>
          )}
        </div>
      </section>
      <div className="summary-columns">
        <div>
          {first ? <CulpritCard culprit={first} number={1} main /> : <><Checks /><Sides /><Manifest /></>}
          {others.length > 0 && (
            <section>
              <h2 className="section">{say("otherSuspects")}</h2>
              {others.map((culprit, i) => <CulpritCard key={`${culprit.node ?? ""}${i}`} culprit={culprit} number={i + 2} />)}
            </section>
          )}
        </div>
        <div>
          {data.heat && data.layers.length > 1 && (
            <section className="card">
              <h2>{say(data.units.length > 1 ? "heatTitle" : "heatLayers")}</h2>
              <HeatOverview small />
            </section>
          )}
          {first && <><Checks /><Sides /><Manifest /></>}
          {data.notes.length > 0 && (
            <section className="card"><h2>{say("notes")}</h2><ul className="notes">{data.notes.map((note, i) => <li key={i}>{read(note)}</li>)}</ul></section>
          )}
        </div>
      </div>
    </div>
  );
}

function CulpritCard({ culprit, number, main = false }: { culprit: Culprit; number: number; main?: boolean }): ReactNode {
  const say = useText();
  const read = useFindings();
  const language = useStore((state) => state.language);
  const data = useStore((state) => state.data);
  const tensor = data.tensors.findIndex((item) => item.unit === culprit.unit && item.node === culprit.node);
  const when = [
    culprit.step === null ? "" : `${say("step")} ${culprit.step}`,
    culprit.ranks.length === 0 ? "" : `${say(culprit.ranks.length > 1 ? "ranks" : "rank")} ${culprit.ranks.join(", ")}`,
  ].filter(Boolean).join(" · ");
  const name = culprit.node ?? unitName(data, culprit.unit);
  const telling = main ? culprit.evidence.find((row) => row.message.some((each) => typeof each !== "string" && each.level === "error")) : undefined;
  return (
    <article className={`card culprit${main ? " main" : ""}`} data-culprit={number}>
      <div className="culprit-head">
        <span className="suspect large">{number}</span>
        <div>
          <div className="eyebrow">{main ? say("firstSuspect") : say("suspect", number)} · {typeof culprit.kind === "string" ? word(language, culprit.kind) : read(culprit.kind)}</div>
          <h2><code><Name value={name} /></code></h2>
        </div>
      </div>
      <div className="culprit-facts">
        {when && <span>{when}</span>}
        <Strength strength={culprit.strength} />
        <Over score={culprit.score} limit={culprit.limit} />
      </div>
      {culprit.parents.length > 0 && (
        <div className="line"><span className="muted">{say("where")}</span> <span className="parents"><Name value={place(culprit.parents).join(" › ")} /></span></div>
      )}
      {telling && <p className="telling"><code>{slotOf(culprit, telling.row)}</code> {telling.message.map((each) => read(withoutLevel(each))).join(" ")}</p>}
      {culprit.reason && <p className="culprit-reason">{read(culprit.reason)}</p>}
      <div className="actions">
        <button className="button strong" data-testid={`jump-${number}`} onClick={() => void jump(culprit.unit, culprit.node)}>{say("showInGraph")}</button>
        {tensor >= 0 && <button className="button" onClick={() => useStore.setState({ tab: "tensors", tensor })}>{say("showTensor")}</button>}
      </div>
      {main ? <CulpritMore culprit={culprit} /> : <details><summary>{say("evidence")}</summary><CulpritMore culprit={culprit} /></details>}
    </article>
  );
}

/** A row's name, without that of the culprit. */
function slotOf(culprit: Culprit, row: string): string {
  return culprit.node && row.startsWith(`${culprit.node}.`) ? row.slice(culprit.node.length + 1) : row;
}

/** Modules around a call, the outermost first, each as the path within the one before. */
function place(parents: string[]): string[] {
  const paths = [...parents].reverse().map((name) => {
    const parts = name.replace(/^(Module|Cell)\./, "").replace(/\.(forward|backward)(\.\d+)?$/, "").split(".");
    return (parts.length > 1 ? parts.slice(0, -1) : parts).join(".");
  });
  return paths.map((path, i) => (i > 0 && path.startsWith(`${paths[i - 1]}.`) ? path.slice(paths[i - 1].length + 1) : path));
}

function CulpritMore({ culprit }: { culprit: Culprit }): ReactNode {
  const say = useText();
  const read = useFindings();
  return (
    <div className="culprit-more">
      {culprit.evidence.length > 0 && (
        <table className="evidence">
          <thead><tr><th>{say("evidence")}</th><th>{say("message")}</th><th className="number">{say("score")}</th><th className="number">{say("limit")}</th></tr></thead>
          <tbody>
            {culprit.evidence.slice(0, 6).map((row) => (
              <tr key={row.row}><td><code><Name value={slotOf(culprit, row.row)} /></code></td><td>{read(row.message)}</td><td className="number">{show(row.score)}</td><td className="number">{show(row.limit)}</td></tr>
            ))}
          </tbody>
        </table>
      )}
      {culprit.stack.length > 0 && (
        <><h3>{say("codePlace")}</h3><pre className="stack">{culprit.stack.slice(0, 8).join("\n")}</pre></>
      )}
      {culprit.command && <><h3>{say("digDeeper")}</h3><Command value={read(culprit.command)} /></>}
    </div>
  );
}

const CHECK_SHAPES: Record<string, "pass" | "warning" | "none"> = { holds: "pass", differs: "warning" };

function Checks(): ReactNode {
  const say = useText();
  const read = useFindings();
  const language = useStore((state) => state.language);
  const { checks, noise } = useStore((state) => state.data.verdict);
  if (checks.length === 0) return null;
  return (
    <section className="card">
      <h2>{say("checks")}</h2>
      <ul className="checks">
        {checks.map((check) => (
          <li key={check.name}>
            <Shape verdict={CHECK_SHAPES[check.state] ?? "none"} />
            <div><b>{word(language, check.name)}</b> <span className="muted">{check.state === "holds" || check.state === "differs" || check.state === "unknown" ? say(check.state) : check.state}</span>
              {check.detail && <div className="muted">{read(check.detail)}</div>}</div>
          </li>
        ))}
      </ul>
      {noise && <p className="muted">{read(noise)}</p>}
    </section>
  );
}

function Sides(): ReactNode {
  const say = useText();
  const { sides, made } = useStore((state) => state.data);
  return (
    <section className="card">
      <h2>{say("facts")}</h2>
      <dl className="sides">
        {([["target", sides.target], ["golden", sides.golden]] as const).map(([key, side]) => side && (
          <div key={key}>
            <dt>{say(key)}</dt>
            <dd><code>{side.path}</code><div className="muted">{[side.framework, side.task, side.level,
              ...Object.entries(side.parallel ?? {}).map(([axis, size]) => `${axis} ${size}`)].filter(Boolean).join(" · ")}</div></dd>
          </div>
        ))}
      </dl>
      <p className="muted">{say("madeBy", made.msprobe, made.at)}</p>
    </section>
  );
}
