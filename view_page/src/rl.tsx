/** A whole run of an RL trainer: stages over steps, measures of the mismatch, the worst tokens in their text. */
import { type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import type uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { LINES, fill } from "./colour";
import { type Num, type RLCurve, type RLFinding, type RLToken, type RLTraining, show, toNumber } from "./data";
import { HeatMap } from "./heatmap";
import { Command, Legend, Name } from "./parts";
import { markStep, mountPlot } from "./plot";
import { useFindings, useStore, useText } from "./store";
import { TEXTS_OF_GROUPS, TEXTS_OF_STAGES, type TextKey } from "./texts";

const NUM_LISTED = 60;

/** A cell of the map; a step of -1 stands for all steps. */
type Cell = { row: number; step: number };

export function RLTab(): ReactNode {
  const found = useStore((state) => state.data.rl);
  return found ? <Training key={found.steps.join()} run={found} /> : null;
}

function Training({ run }: { run: RLTraining }): ReactNode {
  const say = useText();
  const read = useFindings();
  const theme = useStore((state) => state.theme);
  const verdict = useStore((state) => state.data.verdict);
  const first = run.findings.find(({ level, step }) => level === "error" && step !== null);
  const [cell, setCell] = useState<Cell | null>(first ? { row: first.row, step: run.steps.indexOf(first.step ?? -1) } : null);
  const counts = useMemo(() => countsOf(run), [run]);
  const key = (row: number, column: number): string => `${row},${column}`;
  const describe = (row: number, column: number): string => {
    const [severity, count] = [run.severity[row][column], counts.get(key(row, column)) ?? 0];
    const what = severity === null ? say("rlNotRecorded") : count > 0 ? say("rlFindingsHere", count) : say("rlNoFinding");
    return `${rowName(run.rows[row], say)}\n${say("step")} ${run.steps[column]}: ${what}`;
  };
  const dots = useMemo(() => new Map([...counts.keys()].map((place) => [place, place === (first ? key(first.row, run.steps.indexOf(first.step ?? -1)) : "")])), [counts]);
  return (
    <div className="page-scroll rl">
      <section className="card wide">
        <h1 data-testid="rl-sentence"><Name value={read(verdict.sentence)} /></h1>
        <p className="muted">{say("rlHint")}</p>
        <HeatMap rows={run.rows.length} columns={run.steps.length} label={say("rlMap")} testid="rl-map" gutter={210} maxHeight={420}
          cell={{ width: [5, 56], height: [22, 30] }} mark={cell ? [cell.row, cell.step] : null} dots={dots}
          colour={(row, column) => fill(run.severity[row][column], theme)} describe={describe}
          rowLabel={(row) => rowName(run.rows[row], say)} columnLabel={(column) => String(run.steps[column])}
          onPick={(row, step) => setCell({ row, step })} />
        <Legend none={false} />
      </section>
      <Findings run={run} cell={cell} onCell={setCell} />
      <Tokens run={run} step={cell ? run.steps[cell.step] : null} />
      <Curves run={run} step={cell ? run.steps[cell.step] : null} onStep={(step) => setCell({ row: cell?.row ?? 0, step: run.steps.indexOf(step) })} />
    </div>
  );
}

function countsOf(run: RLTraining): Map<string, number> {
  const found = new Map<string, number>();
  for (const { row, step } of run.findings) {
    const column = step === null ? -1 : run.steps.indexOf(step);
    if (column >= 0) found.set(`${row},${column}`, (found.get(`${row},${column}`) ?? 0) + 1);
  }
  return found;
}

function rowName(row: string, say: (key: TextKey) => string): string {
  const known = TEXTS_OF_STAGES[row];
  return known ? say(known) : row.includes("→") ? `${say("rlWeights")} ${row}` : row;
}

/** Those of the chosen cell first, and then the others; a click goes to the cell. */
function Findings({ run, cell, onCell }: { run: RLTraining; cell: Cell | null; onCell: (cell: Cell) => void }): ReactNode {
  const say = useText();
  const read = useFindings();
  const [isAll, setAll] = useState(false);
  const isOfCell = (found: RLFinding): boolean => cell !== null && found.row === cell.row && found.step === run.steps[cell.step];
  const own = run.findings.filter(isOfCell);
  const listed = isAll || cell === null ? run.findings : own;
  const command = own[0]?.command;
  return (
    <section className="card wide">
      <div className="line-head">
        <h2>{say("rlFindings")}{cell !== null && !isAll && <span className="muted"> · {rowName(run.rows[cell.row], say)}, {say("step")} {run.steps[cell.step]}</span>}</h2>
        <label className="field"><input type="checkbox" data-testid="rl-all" checked={isAll} onChange={(event) => setAll(event.target.checked)} /> {say("rlAll", run.findings.length)}</label>
      </div>
      {listed.length === 0 && <p className="muted" data-testid="rl-none">{say(cell !== null && run.severity[cell.row][cell.step] === null ? "rlNotRecorded" : "rlNoFinding")}</p>}
      <ol className="events" data-testid="rl-findings">
        {listed.slice(0, NUM_LISTED).map((found, i) => (
          <li key={i} className={`event${found.level === "error" ? " first" : ""}${isOfCell(found) ? " chosen" : ""}`} data-row={run.rows[found.row]} data-step={found.step ?? ""}>
            <button className="event-body" disabled={found.step === null} onClick={() => onCell({ row: found.row, step: run.steps.indexOf(found.step ?? -1) })}>
              <span className="event-kind">{rowName(run.rows[found.row], say)} {found.step !== null && <span className="muted">{say("step")} {found.step}</span>}</span>
              <span className="event-text"><Name value={read(found.text)} /></span>
            </button>
          </li>
        ))}
      </ol>
      {listed.length > NUM_LISTED && <p className="muted">{say("rlMore", listed.length - NUM_LISTED)}</p>}
      {command && <Command value={command} />}
    </section>
  );
}

function Curves({ run, step, onStep }: { run: RLTraining; step: number | null; onStep: (step: number) => void }): ReactNode {
  const say = useText();
  const [words, setWords] = useState("");
  const groups = useMemo(() => grouped(run.curves), [run]);
  const metrics = run.curves.filter(({ group }) => group === "metrics");
  const terms = words.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = metrics.filter(({ name }) => terms.every((term) => name.toLowerCase().includes(term)));
  if (run.curves.length === 0) return null;
  return (
    <section className="card wide">
      <h2>{say("rlCurves")}</h2>
      <p className="muted">{say("rlCurvesHint")}</p>
      <div className="rl-curves">
        {groups.map(([group, curves]) => <Plot key={group} name={group} title={say(TEXTS_OF_GROUPS[group] ?? "rlCurves")} steps={run.steps} curves={curves} step={step} onStep={onStep} />)}
      </div>
      {metrics.length > 0 && (
        <>
          <div className="line-head"><h2>{say("rlMetrics")}</h2><input type="search" className="search" value={words} placeholder={say("search")} aria-label={say("search")} onChange={(event) => setWords(event.target.value)} /></div>
          <div className="rl-curves">{shown.map((curve) => <Plot key={curve.name} name={curve.name} title={curve.name} steps={run.steps} curves={[curve]} step={step} onStep={onStep} />)}</div>
        </>
      )}
    </section>
  );
}

function grouped(curves: RLCurve[]): [string, RLCurve[]][] {
  const found = new Map<string, RLCurve[]>();
  for (const curve of curves) if (curve.group !== "metrics") found.set(curve.group, [...(found.get(curve.group) ?? []), curve]);
  return [...found];
}

/** Solid for the target, dashed for golden, dotted for a limit; a limit far above is left out, as it would flatten the curve. */
function Plot({ name, title, steps, curves, step, onStep }: {
  name: string; title: string; steps: number[]; curves: RLCurve[]; step: number | null; onStep: (step: number) => void;
}): ReactNode {
  const host = useRef<HTMLDivElement>(null);
  const theme = useStore((state) => state.theme);
  const language = useStore((state) => state.language);
  const say = useText();
  useEffect(() => {
    const element = host.current;
    if (!element) return undefined;
    const style = getComputedStyle(element);
    const [muted, line, ink] = ["--muted", "--line", "--ink"].map((each) => style.getPropertyValue(each));
    const series: uPlot.Series[] = [{ label: say("step") }];
    const data: (number | null)[][] = [steps];
    const largest = Math.max(...curves.flatMap(({ target }) => target.map((each) => Math.abs(toNumber(each))).filter(Number.isFinite)), 0);
    const add = (label: string, values: Num[], look: Partial<uPlot.Series>): void => {
      data.push(values.map((each) => (Number.isFinite(toNumber(each)) ? toNumber(each) : null)));
      series.push({ label, spanGaps: true, points: { show: steps.length < 60, size: 4 }, value: (_plot, each) => show(each), ...look });
    };
    curves.forEach((curve, i) => {
      const stroke = LINES[i % LINES.length];
      const label = curves.length > 1 || curve.group !== "metrics" ? curve.name : say("target");
      add(label, curve.target, { stroke, width: 1.8 });
      if (curve.golden) add(`${label}, ${say("golden")}`, curve.golden, { stroke, width: 1.6, dash: [7, 4], points: { show: false } });
      const limit = curve.limit?.filter((each): each is number => typeof each === "number") ?? [];
      if (curve.limit && limit.length > 0 && Math.min(...limit) < 4 * largest) add(`${label}, ${say("rlLimit")}`, curve.limit, { stroke, width: 1, dash: [2, 4], points: { show: false } });
    });
    const draw = (plot: uPlot): void => {
      if (step === null || steps.length < 2) return;
      markStep(plot, step, ink);
    };
    const axis = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui, sans-serif" };
    return mountPlot(element, {
      height: 150, series, legend: { show: true }, hooks: { draw: [draw] }, scales: { x: { time: false } },
      axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }, { ...axis, size: 68, values: (_plot, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick))) }],
    }, data, onStep);
  }, [steps, curves, step, theme, language]);
  const notFinite = curves.flatMap(({ target }) => target.flatMap((each, i) => (typeof each === "string" ? [steps[i]] : [])));
  return (
    <figure data-testid="rl-curve" data-curve={name} data-lines={curves.length}>
      <figcaption><Name value={title} />{notFinite.length > 0 && <span className="over"> {say("notFinite")}: {notFinite.slice(0, 5).join(", ")}</span>}</figcaption>
      <div className="plot" ref={host} />
    </figure>
  );
}

/** A number at an axis: a power where it would be long. */
function short(tick: number): string {
  const size = Math.abs(tick);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? tick.toExponential(1).replace(".0e", "e").replace("e+", "e") : String(Number(tick.toPrecision(6)));
}

/** The worst tokens of the chosen step, or of all steps, in the text around them. */
function Tokens({ run, step }: { run: RLTraining; step: number | null }): ReactNode {
  const say = useText();
  if (run.tokens.length === 0) return null;
  const own = run.tokens.filter((token) => token.step === step);
  const size = (token: RLToken): number => { const gap = Math.abs(toNumber(token.training) - toNumber(token.rollout)); return Number.isNaN(gap) ? Infinity : gap; };
  const listed = own.length > 0 ? own : [...run.tokens].sort((a, b) => size(b) - size(a)).slice(0, 12);
  return (
    <section className="card wide">
      <h2>{say("rlTokens")}{own.length > 0 && <span className="muted"> · {say("step")} {step}</span>}</h2>
      <p className="muted">{say("rlTokensHint")}</p>
      <table className="evidence rl-tokens" data-testid="rl-tokens">
        <thead><tr><th>{say("step")}</th><th>{say("rlSample")}</th><th className="number">{say("rlPosition")}</th><th className="number">{say("rlDifference")}</th><th>{say("rlText")}</th></tr></thead>
        <tbody>
          {listed.map((token, i) => (
            <tr key={i} data-step={token.step} data-position={token.position}>
              <td>{token.step}</td><td title={token.id}>{token.sample}</td><td className="number">{token.position}</td>
              <td className="number" title={`${show(token.training)} / ${show(token.rollout)}`}>{show(toNumber(token.training) - toNumber(token.rollout))}</td>
              <td><TokenText token={token} scale={toNumber(run.scale)} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function TokenText({ token, scale }: { token: RLToken; scale: number }): ReactNode {
  const theme = useStore((state) => state.theme);
  return (
    <span className="token-text">
      {token.texts.map((text, i) => {
        const gap = Math.abs(toNumber(token.differences[i]));
        const severity = Number.isNaN(gap) || !(scale > 0) ? null : Math.min(1, Math.max(0, 0.5 + 0.5 * Math.log10(Math.max(gap, 1e-300) / scale) / (gap > scale ? 3 : 4)));
        const isMarked = severity !== null && severity > 0.5 || i === token.at;
        return <span key={i} className={i === token.at ? "at" : undefined} title={Number.isNaN(gap) ? undefined : show(token.differences[i])}
          style={isMarked ? { background: fill(severity, theme) } : undefined}>{visible(text)}</span>;
      })}
    </span>
  );
}

/** Ends of lines and other control characters as symbols. */
function visible(text: string): string {
  return text.replace(/\n/g, "↵\n").replace(/[\u0000-\u0009\u000b-\u001f\u007f]/g, (each) => (each === "\u007f" ? "␡" : String.fromCharCode(0x2400 + each.charCodeAt(0))));
}
