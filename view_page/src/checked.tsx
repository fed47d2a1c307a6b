/** Calls that were checked one by one: which are wrong, how far they are off, and what the check would have noticed. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import { type CheckVerdict, type CheckedCall, type CheckedDump, type CheckedOutput, type Num, show, toNumber } from "./data";
import { Shape } from "./icons";
import { Choice, Command, CopyButton, Name, shellWord } from "./parts";
import { jump, unitName, useFindings, useStore, useText } from "./store";
import type { TextKey } from "./texts";
import type { Verdict } from "./tree";

const VERDICTS: CheckVerdict[] = ["wrong", "suspect", "ill_conditioned", "right", "cannot_tell"];
const SHAPES: Record<CheckVerdict, Verdict> = { wrong: "error", suspect: "warning", ill_conditioned: "warning", right: "pass", cannot_tell: "none" };
const ROW_HEIGHT = 38;

type Order = "effect" | "times" | "reach" | "name";
const ORDERS: Record<Order, TextKey> = { effect: "byEffect", times: "byTimes", reach: "byReach", name: "inOrder" };

export function Checked(): ReactNode {
  const dumps = useStore((state) => state.data.checked ?? []);
  const [at, setAt] = useState(0);
  const dump = dumps[Math.min(at, dumps.length - 1)];
  return dump ? <Dump key={at} dump={dump} dumps={dumps} at={at} setAt={setAt} /> : null;
}

function Dump({ dump, dumps, at, setAt }: { dump: CheckedDump; dumps: CheckedDump[]; at: number; setAt: (at: number) => void }): ReactNode {
  const say = useText();
  const read = useFindings();
  const data = useStore((state) => state.data);
  const [words, setWords] = useState("");
  const [only, setOnly] = useState<ReadonlySet<CheckVerdict | "weak">>(new Set());
  const [order, setOrder] = useState<Order>("effect");
  const [chosen, setChosen] = useState(0);
  const rows = useMemo(() => ordered(dump.calls, order, words, only), [dump, order, words, only]);
  const toggle = (item: CheckVerdict | "weak"): void => {
    const now = new Set(only);
    if (!now.delete(item)) now.add(item);
    setOnly(now);
  };
  return (
    <div className="columns">
      <div className="checked">
        <header className="checked-head">
          <h1 data-testid="checked-headline"><Name value={read(dump.headline)} /></h1>
          <div className="toolbar">
            {dumps.length > 1 && (
              <select aria-label={say("unit")} data-testid="checked-dump" value={at} onChange={(event) => setAt(Number(event.target.value))}>
                {dumps.map((each, i) => <option key={i} value={i}>{each.unit === null ? each.dump : unitName(data, each.unit)}{each.counts.wrong > 0 ? ` (${each.counts.wrong} ✕)` : ""}</option>)}
              </select>
            )}
            <input type="search" className="search" value={words} placeholder={say("searchHint")} aria-label={say("search")} spellCheck={false} onChange={(event) => setWords(event.target.value)} />
            <div className="filters" role="group" aria-label={say("filters")}>
              {VERDICTS.filter((verdict) => dump.counts[verdict] > 0).map((verdict) => (
                <button key={verdict} className="chip" aria-pressed={only.has(verdict)} data-filter={verdict} title={say(`verdictHint_${verdict}`)} onClick={() => toggle(verdict)}>
                  <Shape verdict={SHAPES[verdict]} size={12} /> {say(`verdictOf_${verdict}`)} <b>{dump.counts[verdict]}</b>
                </button>
              ))}
              {dump.weak > 0 && (
                <button className="chip" aria-pressed={only.has("weak")} data-filter="weak" title={say("weakHint")} onClick={() => toggle("weak")}>{say("weakOnly")} <b>{dump.weak}</b></button>
              )}
            </div>
            <Choice label={say("ordered")} value={order} onChange={setOrder} options={(Object.keys(ORDERS) as Order[]).map((value) => ({ value, text: say(ORDERS[value]) }))} />
          </div>
        </header>
        <Calls dump={dump} rows={rows} chosen={chosen} setChosen={setChosen} />
        <Reasons reasons={dump.reasons} />
      </div>
      <aside className="panel" aria-label={say("chooseCall")}>
        {dump.calls[chosen] ? <Detail key={`${at} ${chosen}`} dump={dump} call={dump.calls[chosen]} /> : <p className="empty">{say("chooseCall")}</p>}
      </aside>
    </div>
  );
}

/** Places of the calls that have all words and one of the verdicts. */
function ordered(calls: CheckedCall[], order: Order, words: string, only: ReadonlySet<CheckVerdict | "weak">): number[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = calls.map((_call, i) => i).filter((i) => {
    const call = calls[i];
    if (only.size > 0 && !only.has(call.verdict) && !(call.is_weak && only.has("weak"))) return false;
    return wanted.every((word) => call.entry.toLowerCase().includes(word));
  });
  if (order === "effect") return found;
  const keys: Record<Exclude<Order, "effect" | "name">, (call: CheckedCall) => number> = { times: sizeOf, reach: (call) => call.reach ?? -1 };
  if (order === "name") return found.sort((a, b) => calls[a].entry.localeCompare(calls[b].entry, "en", { numeric: true }));
  const sizes = calls.map(keys[order]);
  return found.sort((a, b) => sizes[b] - sizes[a] || a - b);
}

/** How far off, in units of what is allowed; -1 if it was not judged, beyond all if that is no number. */
function sizeOf(call: CheckedCall): number {
  if (call.outputs.length === 0) return -1;
  const size = toNumber(call.outputs[0].times);
  return Number.isNaN(size) ? Number.POSITIVE_INFINITY : size;
}

function Calls({ dump, rows, chosen, setChosen }: { dump: CheckedDump; rows: number[]; chosen: number; setChosen: (i: number) => void }): ReactNode {
  const say = useText();
  const scroller = useRef<HTMLDivElement>(null);
  const list = useVirtualizer({ count: rows.length, getScrollElement: () => scroller.current, estimateSize: () => ROW_HEIGHT, overscan: 10 });
  const place = rows.indexOf(chosen);
  useEffect(() => { if (place >= 0) list.scrollToIndex(place, { align: "auto" }); }, [chosen]);
  useEffect(() => list.scrollToOffset(0), [rows]);
  const move = (to: number): void => setChosen(rows[Math.max(0, Math.min(rows.length - 1, to))]);
  return (
    <>
      <div className="check-row check-titles" aria-hidden="true">
        <span /><span>{say("callColumn")}</span><span>{say("dataType")}</span><span className="number">{say("timesColumn")}</span><span className="number" title={say("reachHint")}>{say("reachColumn")}</span>
      </div>
      <div ref={scroller} className="check-rows" role="listbox" tabIndex={0} aria-label={say("checked")} data-testid="checked-rows"
        aria-activedescendant={place >= 0 ? `check-${chosen}` : undefined}
        onKeyDown={(event) => {
          const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -rows.length, End: rows.length };
          const step = steps[event.key];
          if (step === undefined || rows.length === 0) return;
          event.preventDefault();
          move((place < 0 ? 0 : place) + step);
        }}>
        {rows.length === 0 && <p className="empty">{say("noCalls")}</p>}
        <div style={{ height: list.getTotalSize(), position: "relative" }} role="presentation">
          {list.getVirtualItems().map((item) => {
            const i = rows[item.index];
            const call = dump.calls[i];
            const [first] = call.outputs;
            return (
              <div key={item.key} id={`check-${i}`} role="option" aria-selected={i === chosen} data-entry={call.entry} className={`check-row${i === chosen ? " chosen" : ""}`}
                style={{ transform: `translateY(${item.start}px)`, height: item.size }} onClick={() => setChosen(i)}>
                <Shape verdict={SHAPES[call.verdict]} size={14} label={say(`verdictOf_${call.verdict}`)} />
                <code className="check-name" title={call.entry}>{call.entry}{call.is_weak && <i className="weak-mark" title={say("weakHint")}>{say("weakOnly")}</i>}</code>
                <span className="muted">{first?.dtype ?? ""}</span>
                <Times value={first?.times ?? null} verdict={call.verdict} />
                <span className="number" title={say("reachHint")}>{call.reach ?? ""}</span>
              </div>
            );
          })}
        </div>
      </div>
    </>
  );
}

const DECADES = 4;

/** How far off, as a bar on a logarithmic scale with the limit in its middle. */
function Times({ value, verdict }: { value: Num; verdict: CheckVerdict }): ReactNode {
  if (value === null) return <span />;
  const size = toNumber(value);
  const decades = size === 0 ? -DECADES : Number.isFinite(size) ? Math.log10(size) : DECADES;
  const width = 50 + (50 * Math.max(-DECADES, Math.min(DECADES, decades))) / DECADES;
  return (
    <span className="check-times">
      <span className="check-bar" aria-hidden="true"><i className={verdict} style={{ width: `${width}%` }} /></span>
      <span className="number">{short(value)}</span>
    </span>
  );
}

function short(value: Num): string {
  const size = toNumber(value);
  if (!Number.isFinite(size)) return show(value);
  if (size === 0) return "0";
  return Math.abs(size) >= 1e5 || Math.abs(size) < 1e-3 ? size.toExponential(1).replace("e+", "e") : String(Number(size.toPrecision(2)));
}

function Reasons({ reasons }: { reasons: [CheckedDump["headline"], number][] }): ReactNode {
  const say = useText();
  const read = useFindings();
  if (reasons.length === 0) return null;
  return (
    <details className="check-reasons">
      <summary>{say("whyNotChecked")}</summary>
      <ul>{reasons.map(([reason, count], i) => <li key={i}><b>{count}</b> {read(reason)}</li>)}</ul>
    </details>
  );
}

// --- one call ---

function Detail({ dump, call }: { dump: CheckedDump; call: CheckedCall }): ReactNode {
  const say = useText();
  const read = useFindings();
  const { unit } = dump;
  const known = `checkedInputs_${call.inputs}`;
  return (
    <div className="panel-body" data-testid="checked-detail">
      <h2><Shape verdict={SHAPES[call.verdict]} size={18} /> {say(`verdictOf_${call.verdict}`)}</h2>
      <div className="full-name"><code data-testid="checked-name"><Name value={call.entry} /></code><CopyButton value={call.entry} /></div>
      <p className="muted">{say(`verdictHint_${call.verdict}`)}</p>
      {call.reason && <p className="reason none">{read(call.reason)}</p>}
      {(known === "checkedInputs_random" || known === "checkedInputs_synthetic" || known === "checkedInputs_exact") && <p className="reason warning">{say(known, call.seed ?? "–")}</p>}
      {call.outputs.map((output, i) => <Output key={i} output={output} />)}
      {call.notes.length > 0 && <ul className="notes">{call.notes.map((note, i) => <li key={i}>{read(note)}</li>)}</ul>}
      {call.reach !== null && <p className="line"><b>{call.reach}</b> {say("reachColumn")} <span className="muted">{say("reachHint")}</span></p>}
      <div className="value-actions">
        {unit === null ? <span className="muted">{say("notInPage")}</span>
          : <button className="button small" data-testid="checked-jump" onClick={() => void jump(unit, call.entry)}>{say("showInGraph")}</button>}
      </div>
      {call.verdict !== "cannot_tell" && <><h3>{say("reproduce")}</h3><Command value={dump.command.replace(/\{entry\}$/, () => shellWord(call.entry))} /></>}
    </div>
  );
}

function Output({ output }: { output: CheckedOutput }): ReactNode {
  const say = useText();
  const read = useFindings();
  const facts: [TextKey, string][] = [];
  if (output.worst !== null) facts.push(["worstAt", `[${output.worst.join(", ")}]`]);
  if (output.amplification !== null) facts.push(["amplifies", `× ${short(output.amplification)}`]);
  if (output.bias !== null) facts.push(["biasOf", say("biasUnit", short(output.bias))]);
  const published = Object.entries(output.published);
  return (
    <article className={`value ${SHAPES[output.verdict]} check-output`} data-output={output.path}>
      <header>
        <Shape verdict={SHAPES[output.verdict]} size={12} />
        <b>{output.path}</b>
        <span className="muted">{output.dtype} [{output.shape.join(", ")}]{output.side === "recorded" ? "" : ` · ${output.side}`}</span>
      </header>
      <p className="value-reason">{read(output.reason)}</p>
      <Allowance output={output} />
      {facts.length > 0 && <dl className="check-facts">{facts.map(([key, value]) => <div key={key}><dt>{say(key)}</dt><dd>{value}</dd></div>)}</dl>}
      <Power output={output} />
      {published.length > 0 && (
        <details className="published">
          <summary title={say("publishedHint")}>{say("publishedOf")}</summary>
          <p className="muted">{say("publishedHint")}</p>
          <dl className="metrics">{published.map(([key, value]) => <div key={key}><dt title={key}>{key}</dt><dd>{show(value)}</dd></div>)}</dl>
        </details>
      )}
    </article>
  );
}

const WIDTH = 300;
const EDGE = 10;

/** The error on a logarithmic line, with what is allowed shaded and what explains it marked. */
function Allowance({ output }: { output: CheckedOutput }): ReactNode {
  const say = useText();
  const marks: { key: string; value: Num; text: string }[] = [
    { key: "error", value: output.error, text: say("errorOf") },
    { key: "rounding", value: output.rounding, text: say("ofRounding") },
    { key: "condition", value: output.condition, text: say("ofCondition") },
    { key: "own", value: output.own_error, text: say("ofOwn", output.dtype) },
  ].filter(({ value }) => value !== null);
  const sizes = marks.map(({ value }) => toNumber(value)).filter((size) => Number.isFinite(size) && size > 0);
  if (toNumber(output.error) === 0 && sizes.length < 2) return <p className="muted small">{say("noError")}</p>;
  const low = Math.floor(Math.log10(Math.min(...sizes)) - 0.3);
  const high = Math.ceil(Math.log10(Math.max(...sizes)) + 0.3);
  const at = (value: Num): number => {
    const size = toNumber(value);
    const decade = size === 0 ? low : Number.isFinite(size) ? Math.log10(size) : high;
    return EDGE + ((WIDTH - 2 * EDGE) * (decade - low)) / Math.max(1, high - low);
  };
  const allowed = Math.max(toNumber(output.rounding) || 0, toNumber(output.condition) || 0);
  const every = Math.max(1, Math.ceil((high - low) / 5));
  const ticks = Array.from({ length: Math.floor((high - low) / every) + 1 }, (_item, i) => low + i * every);
  const x = at(output.error);
  return (
    <figure className="allowance" data-testid="allowance">
      <svg viewBox={`0 0 ${WIDTH} 46`} role="img" aria-label={`${say("allowance")}: ${marks.map(({ text, value }) => `${text} ${short(value)}`).join(", ")}`}>
        <rect className="track" x={EDGE} y="12" width={WIDTH - 2 * EDGE} height="12" rx="3" />
        {allowed > 0 && <rect className="allowed" x={EDGE} y="12" width={Math.max(0, at(allowed) - EDGE)} height="12" rx="3" />}
        {marks.slice(1).map(({ key, value }) => <path key={key} className={`mark ${key}`} d={`M${at(value)} 9v18`} />)}
        <path className={`mark-error ${output.verdict}`} d={`M${x} 11l7 7l-7 7l-7 -7z`} />
        {ticks.map((decade) => <text key={decade} x={at(10 ** decade)} y="42" textAnchor="middle">{`1e${decade}`}</text>)}
      </svg>
      <figcaption>
        {marks.map(({ key, value, text }) => (
          <div key={key}><i className={`key ${key} ${key === "error" ? output.verdict : ""}`} aria-hidden="true" /> <span>{text}</span> <b>{short(value)}</b></div>
        ))}
      </figcaption>
    </figure>
  );
}

function Power({ output }: { output: CheckedOutput }): ReactNode {
  const say = useText();
  if (output.applied.length === 0) return null;
  const accepted = new Set(output.accepted);
  return (
    <section className="power">
      <h3 title={say("powerHint")}>{say("powerOf")} <b>{output.applied.length - accepted.size}/{output.applied.length}</b></h3>
      <ul>
        {output.applied.map((mutant) => (
          <li key={mutant} className={accepted.has(mutant) ? "accepted" : ""} data-mutant={mutant}>
            <Shape verdict={accepted.has(mutant) ? "warning" : "pass"} size={11} label={say(accepted.has(mutant) ? "mutantAccepted" : "mutantNoticed")} />
            {mutantText(mutant, say)}{accepted.has(mutant) && <span className="muted"> – {say("mutantAccepted")}</span>}
          </li>
        ))}
      </ul>
    </section>
  );
}

const MUTANTS: Record<string, TextKey | undefined> = {
  zeros: "mutantOf_zeros", input_returned: "mutantOf_input_returned", scaled: "mutantOf_scaled",
  half_precision: "mutantOf_half_precision", shuffled: "mutantOf_shuffled", one_dropped: "mutantOf_one_dropped",
};

function mutantText(mutant: string, say: ReturnType<typeof useText>): string {
  const key = MUTANTS[mutant];
  return key ? say(key) : mutant;
}
