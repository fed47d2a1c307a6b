/** A statistic of a node over steps and ranks, of both sides. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { LINES, diverging, fill } from "./colour";
import { Shape } from "./icons";
import { type Num, type Trend, type ViewData, show, toNumber } from "./data";
import { HeatMap } from "./heatmap";
import { Choice } from "./parts";
import { jump, useStore, useText } from "./store";
import type { Tree } from "./tree";

type Axis = "step" | "rank";

interface Series {
  name: string;
  slot: string;
  phase: string;
  micro: number | null;
  byStatistic: Map<string, Trend>;
}

function grouped(trends: Trend[]): Series[] {
  const found = new Map<string, Series>();
  for (const trend of trends) {
    const key = `${trend.name}\n${trend.slot}\n${trend.phase}\n${trend.micro_step ?? ""}`;
    let series = found.get(key);
    if (!series) {
      series = { name: trend.name, slot: trend.slot, phase: trend.phase, micro: trend.micro_step ?? null, byStatistic: new Map() };
      found.set(key, series);
    }
    series.byStatistic.set(trend.statistic, trend);
  }
  return [...found.values()];
}

const FOLLOWED = ["norm", "max", "min", "mean", "num_nan", "num_inf"];

/** The statistics of any value over the units whose graphs are at hand: in the file, or fetched already. */
function trendsOf(data: ViewData, trees: ReadonlyMap<number, Tree>, name: string, slot: string): Trend[] {
  const steps = [...new Set(data.units.map((unit) => unit.step ?? 0))].sort((a, b) => a - b);
  const found = new Map<string, Trend>();
  data.units.forEach((unit, i) => {
    const graph = trees.get(i)?.graph ?? unit.graph;
    const node = graph?.name.indexOf(name) ?? -1;
    const row = graph?.rows[node]?.find((candidate) => graph.values.slot[candidate] === slot);
    if (!graph || row === undefined) return;
    const rank = unit.rank === null ? "-" : String(unit.rank);
    const put = (statistic: string, side: "target" | "golden", column: Num[] | undefined): void => {
      const value = column?.[row];
      if (value === null || value === undefined) return;
      let trend = found.get(statistic);
      if (!trend) {
        trend = { name, slot, statistic, phase: graph.phase[node], steps, target: {}, golden: data.sides.golden ? {} : null };
        found.set(statistic, trend);
      }
      const series = trend[side];
      if (!series) return;
      series[rank] ??= steps.map(() => null);
      (series[rank] as Num[])[steps.indexOf(unit.step ?? 0)] = value;
    };
    for (const statistic of FOLLOWED) {
      put(statistic, "target", graph.values.target[statistic]);
      put(statistic, "golden", graph.values.golden?.[statistic]);
    }
    for (const metric of ["error", "score"]) put(metric, "target", graph.values.metrics[metric]);
  });
  return [...found.values()].filter((trend) => Object.keys(trend.target).length > 0)
    .map((trend) => (trend.golden && Object.keys(trend.golden).length === 0 ? { ...trend, golden: null } : trend));
}

/** A monitor's names are short, and one quantity is of many. */
function isMonitored(series: Series): boolean {
  return [...series.byStatistic.values()][0]?.origin === "monitor";
}

export function Trends(): ReactNode {
  const say = useText();
  const data = useStore((state) => state.data);
  const asked = useStore((state) => state.trend);
  const [words, setWords] = useState("");
  const [statistic, setStatistic] = useState("norm");
  const [log, setLog] = useState(false);
  const trees = useStore((state) => state.trees);
  const all = useMemo(() => {
    const isThere = !asked || data.trends.some((trend) => trend.name === asked.name && trend.slot === asked.slot);
    return grouped(isThere ? data.trends : [...trendsOf(data, trees, asked.name, asked.slot), ...data.trends]);
  }, [data, trees, asked]);
  const listed = useMemo(() => {
    const terms = words.toLowerCase().split(/\s+/).filter(Boolean);
    return all.filter((series) => terms.every((term) => `${series.name} ${series.slot}`.toLowerCase().includes(term)));
  }, [all, words]);
  const chosen = all.find((series) => asked && series.name === asked.name && series.slot === asked.slot && (asked.micro === undefined || asked.micro === series.micro)) ?? listed[0] ?? all[0];
  const scroller = useRef<HTMLDivElement>(null);
  const list = useVirtualizer({ count: listed.length, getScrollElement: () => scroller.current, estimateSize: () => 44, overscan: 8 });
  if (all.length === 0 || !chosen) return <div className="page-scroll"><p className="empty">{say("trendNone")}</p></div>;
  const statistics = [...chosen.byStatistic.keys()];
  const shown = chosen.byStatistic.get(statistic) ?? chosen.byStatistic.get(statistics[0]);
  const choose = (series: Series | undefined): void => { if (series) useStore.setState({ trend: { name: series.name, slot: series.slot, micro: series.micro } }); };
  const slotText = (series: Series): string => `${series.slot || series.phase}${series.micro === null ? "" : ` · ${say("microStep")} ${series.micro}`}`;
  return (
    <div className="columns">
      <aside className="outline">
        <div className="outline-head">
          <input type="search" className="search" value={words} placeholder={say("search")} aria-label={say("search")} onChange={(event) => setWords(event.target.value)} />
          <div className="found" role="status">{say("found", listed.length)}</div>
        </div>
        <div className="rows" ref={scroller} role="listbox" tabIndex={0} aria-label={say("trendChoose")} onKeyDown={(event) => {
          const at = listed.indexOf(chosen);
          if (event.key === "ArrowDown" || event.key === "ArrowUp") {
            const next = Math.min(listed.length - 1, Math.max(0, at + (event.key === "ArrowDown" ? 1 : -1)));
            choose(listed[next]);
            list.scrollToIndex(next);
            event.preventDefault();
          }
        }}>
          <div style={{ height: list.getTotalSize(), position: "relative" }} role="presentation">
            {list.getVirtualItems().map((item) => {
              const series = listed[item.index];
              return (
                <div key={item.key} role="option" aria-selected={series === chosen} className={`row two${series === chosen ? " chosen" : ""}`}
                  style={{ transform: `translateY(${item.start}px)`, height: item.size }} title={series.name} onClick={() => choose(series)}>
                  <span className="row-text"><span className="row-label">{isMonitored(series) ? series.name : slotText(series)}</span><span className="row-path">{isMonitored(series) ? slotText(series) : series.name}</span></span>
                </div>
              );
            })}
          </div>
        </div>
      </aside>
      <main className="page-scroll">
        {shown && (
          <section className="card wide">
            <h2><code>{chosen.name}</code> <span className="muted">{slotText(chosen)}</span></h2>
            <div className="toolbar">
              <Choice label={say("statistic")} value={shown.statistic} onChange={setStatistic} options={statistics.map((key) => ({ value: key, text: key }))} />
              <label className="field"><input type="checkbox" checked={log} onChange={(event) => setLog(event.target.checked)} /> {say("logScale")}</label>
              {shown.origin !== "monitor" && <button className="button small" onClick={() => void jump(unitFor(data.units, shown), shown.name)}>{say("showNode")}</button>}
            </div>
            <TrendView key={`${chosen.name} ${chosen.slot} ${chosen.micro ?? ""} ${shown.statistic} ${log}`} trend={shown} log={log} />
          </section>
        )}
      </main>
    </div>
  );
}

function unitFor(units: { rank: number | null }[], trend: Trend): number {
  const rank = Object.keys(trend.target)[0];
  return Math.max(0, units.findIndex((unit) => rank === "-" || String(unit.rank) === rank));
}

function TrendView({ trend, log }: { trend: Trend; log: boolean }): ReactNode {
  const say = useText();
  const theme = useStore((state) => state.theme);
  const ranks = Object.keys(trend.target).sort((a, b) => Number(a) - Number(b));
  const steps = trend.steps;
  const [axis, setAxis] = useState<Axis>(steps.length > 1 || ranks.length < 2 ? "step" : "rank");
  const [rank, setRank] = useState<string>("");
  const [step, setStep] = useState(0);
  const both = ranks.length > 1 && steps.length > 1;
  const scale = useMemo(() => {
    const values = ranks.flatMap((key) => trend.target[key].map(toNumber)).filter(Number.isFinite);
    const middle = values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
    return { middle, spread: Math.max(1e-30, ...values.map((value) => Math.abs(value - middle))) };
  }, [trend]);
  const notFinite = useMemo(() => nonFinite(trend, ranks, say("rank"), say("step")), [trend, say("rank")]);
  return (
    <>
      <div className="toolbar">
        {both && <Choice label={say("over")} value={axis} onChange={setAxis} options={[{ value: "step", text: say("step") }, { value: "rank", text: say("rank") }]} />}
        {axis === "step" && ranks.length > 1 && (
          <label className="field">{say("rank")} <select value={rank} onChange={(event) => setRank(event.target.value)}>
            <option value="">{say("allRanks")}</option>{ranks.map((key) => <option key={key}>{key}</option>)}
          </select></label>
        )}
        {axis === "rank" && steps.length > 1 && (
          <label className="field">{say("step")} <select value={step} onChange={(event) => setStep(Number(event.target.value))}>
            {steps.map((item, i) => <option key={item} value={i}>{item}</option>)}
          </select></label>
        )}
      </div>
      {notFinite && <p className="not-finite" data-testid="not-finite"><Shape verdict="error" /> {say("notFiniteAt", notFinite)}</p>}
      <Plot trend={trend} axis={axis} ranks={axis === "step" && rank ? [rank] : ranks} step={step} log={log} />
      {both && (
        <>
          <h3>{trend.golden ? say("offGolden") : `${say("rank")} × ${say("step")}`}</h3>
          <HeatMap rows={ranks.length} columns={steps.length} label={`${say("rank")} × ${say("step")}`} gutter={70} maxHeight={320}
            cell={{ width: [8, 60], height: [10, 24] }}
            colour={(r, c) => trend.golden ? fill(distance(trend.target[ranks[r]][c], trend.golden[ranks[r]]?.[c]), theme) : trend.target[ranks[r]][c] === null ? fill(null, theme) : diverging((toNumber(trend.target[ranks[r]][c]) - scale.middle) / scale.spread, theme)}
            describe={(r, c) => `${say("rank")} ${ranks[r]} · ${say("step")} ${steps[c]} · ${show(trend.target[ranks[r]][c])}${trend.golden ? ` · ${say("golden")} ${show(trend.golden[ranks[r]]?.[c])}` : ""}`}
            rowLabel={(r) => ranks[r]} columnLabel={(c) => String(steps[c])}
            onPick={(r, c) => { setRank(ranks[r]); setStep(c); }} />
        </>
      )}
    </>
  );
}

/** The relative difference as a severity: a thousandth is hardly seen, all of it is the worst. */
function distance(target: Num, golden: Num | undefined): number | null {
  const [left, right] = [toNumber(target), toNumber(golden)];
  if (target === null || golden === null || golden === undefined) return null;
  if (left === right || (Number.isNaN(left) && Number.isNaN(right))) return 0;
  const part = Math.abs(left - right) / Math.max(Math.abs(left), Math.abs(right));
  return Number.isFinite(part) ? Math.min(1, Math.max(0, 1 + Math.log10(part) / 4)) : 1;
}

/** Where values are NaN or infinite, which no line shows. */
function nonFinite(trend: Trend, ranks: string[], rankWord: string, stepWord: string): string {
  const found = ranks.flatMap((rank) => {
    const steps = trend.steps.filter((_step, i) => typeof trend.target[rank][i] === "string");
    if (steps.length === 0) return [];
    const place = rank === "-" ? "" : `${rankWord} ${rank}, `;
    return [`${place}${stepWord} ${steps.slice(0, 6).join(", ")}${steps.length > 6 ? ", …" : ""}`];
  });
  return found.slice(0, 4).join("; ") + (found.length > 4 ? "; …" : "");
}

const MOST_LINES = 16;

function Plot({ trend, axis, ranks, step, log }: { trend: Trend; axis: Axis; ranks: string[]; step: number; log: boolean }): ReactNode {
  const host = useRef<HTMLDivElement>(null);
  const theme = useStore((state) => state.theme);
  const say = useText();
  useEffect(() => {
    const element = host.current;
    if (!element) return undefined;
    const number = (value: number): number | null => (Number.isFinite(value) && (!log || value > 0) ? value : null);
    const colour = getComputedStyle(element).getPropertyValue("--muted");
    const line = getComputedStyle(element).getPropertyValue("--line");
    const x = axis === "step" ? trend.steps : ranks.map((rank, i) => (rank === "-" ? i : Number(rank)));
    const data: (number | null)[][] = [x];
    const series: uPlot.Series[] = [{ label: say(axis) }];
    const add = (label: string, values: (number | null)[], i: number, golden: boolean): void => {
      data.push(values);
      series.push({ label, stroke: LINES[i % LINES.length], width: golden ? 1.4 : 2, dash: golden ? [6, 5] : undefined, points: { show: x.length < 60, size: golden ? 4 : 6 }, value: (_plot, value) => show(value) });
    };
    if (axis === "step") {
      ranks.slice(0, MOST_LINES).forEach((rank, i) => {
        const suffix = ranks.length > 1 ? ` ${say("rank")} ${rank}` : "";
        add(say("target") + suffix, trend.target[rank].map((value) => number(toNumber(value))), i, false);
        const golden = trend.golden?.[rank];
        if (golden) add(say("golden") + suffix, golden.map((value) => number(toNumber(value))), i, true);
      });
    } else {
      add(say("target"), ranks.map((rank) => number(toNumber(trend.target[rank][step]))), 1, false);
      if (trend.golden) add(say("golden"), ranks.map((rank) => number(toNumber(trend.golden?.[rank]?.[step]))), 0, true);
    }
    const axisStyle = { stroke: colour, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    const plot = new uPlot({
      width: element.clientWidth, height: 320, series, legend: { markers: { dash: (_plot, i) => (series[i].dash ? "dashed" : "solid") } }, scales: { x: { time: false }, y: log ? { distr: 3 } : {} },
      axes: [{ ...axisStyle, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }, { ...axisStyle, size: 76, values: (_plot, ticks) => ticks.map((tick) => (tick === null ? "" : show(tick))) }],
    }, data as uPlot.AlignedData, element);
    const watch = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: 320 }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  }, [trend, axis, ranks.join(), step, log, theme, say("target")]);
  return <div className="plot" ref={host} data-testid="plot" />;
}
