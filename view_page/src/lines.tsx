/** One value over steps, a line for each rank; one of them is emphasised, and non-finite values are marked at the top. */
import { type ReactNode, useEffect, useRef, useState } from "react";
import type uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { LINES, NOT_FINITE } from "./colour";
import { type Num, show, toNumber } from "./data";
import { markStep, mountPlot } from "./plot";
import { useStore, useText } from "./store";

const MOST_COLOURS = 6;

export function RankLines({ steps, ranks, value, usual, golden, rank, step, log, onStep }: {
  steps: number[]; ranks: number[]; value: Num[][]; usual: Num[][]; golden: Num[][] | null; rank: number; step: number; log: boolean;
  onStep: (step: number) => void;
}): ReactNode {
  const host = useRef<HTMLDivElement>(null);
  const theme = useStore((state) => state.theme);
  const language = useStore((state) => state.language);
  const say = useText();
  const [pointed, setPointed] = useState<string>("");
  useEffect(() => {
    const element = host.current;
    if (!element) return undefined;
    const style = getComputedStyle(element);
    const [muted, line, ink] = ["--muted", "--line", "--ink"].map((name) => style.getPropertyValue(name));
    const number = (each: Num): number | null => {
      const found = toNumber(each);
      return Number.isFinite(found) && (!log || found > 0) ? found : null;
    };
    const isMany = ranks.length > MOST_COLOURS;
    const series: uPlot.Series[] = [{ label: say("step") }];
    const data: (number | null)[][] = [steps];
    const add = (label: string, values: Num[], look: Partial<uPlot.Series>): void => {
      data.push(values.map(number));
      series.push({ label, points: { show: steps.length < 40, size: 5 }, spanGaps: true, value: (_plot, each) => show(each), ...look });
    };
    // What is drawn last is on top.
    const order = [...ranks.keys()].sort((a, b) => Number(ranks[a] === rank) - Number(ranks[b] === rank));
    for (const i of order) {
      const own = ranks[i] === rank;
      const stroke = own ? LINES[1] : isMany ? muted : LINES[(i * 2 + (i % LINES.length === 0 ? 0 : 2)) % LINES.length];
      add(ranks.length > 1 ? `${say("rank")} ${ranks[i]}` : say("target"), value[i] ?? [], { stroke, width: own ? 2.6 : isMany ? 1 : 1.4, alpha: own || !isMany ? 1 : ranks.length > 24 ? 0.25 : 0.5, points: { show: own && steps.length < 100, size: 5 } });
      if (golden && own) add(say("golden"), golden[i] ?? [], { stroke: LINES[0], width: 2, dash: [7, 4], points: { show: false } });
      if (own && !golden) add(say("usual"), usual[i] ?? [], { stroke: muted, width: 1.4, dash: [3, 4], points: { show: false } });
    }
    const marks = ranks.flatMap((each, i) => (value[i] ?? []).flatMap((found, at) => (typeof found === "string" ? [{ at, own: each === rank }] : [])));
    const draw = (plot: uPlot): void => {
      if (steps.length > 1) markStep(plot, step, ink);
      const pen = plot.ctx;
      const ratio = devicePixelRatio || 1;
      pen.save();
      pen.setLineDash([]);
      pen.lineWidth = 2 * ratio;
      for (const { at, own } of marks) {
        const [left, top, size] = [plot.valToPos(steps[at], "x", true), plot.bbox.top + 8 * ratio, (own ? 4.5 : 3) * ratio];
        pen.strokeStyle = NOT_FINITE[theme];
        pen.globalAlpha = own ? 1 : 0.5;
        pen.beginPath();
        pen.moveTo(left - size, top - size);
        pen.lineTo(left + size, top + size);
        pen.moveTo(left + size, top - size);
        pen.lineTo(left - size, top + size);
        pen.stroke();
      }
      pen.restore();
    };
    const axisStyle = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    return mountPlot(element, {
      height: 300, series, legend: { show: !isMany, markers: { dash: (_plot, i) => (series[i].dash ? "dashed" : "solid") } },
      scales: { x: { time: false }, y: log ? { distr: 3 } : {} }, focus: { alpha: isMany ? 0.5 : 1 }, cursor: { focus: { prox: 24 } },
      hooks: { draw: [draw], setSeries: [(_plot, i) => setPointed(i === null ? "" : String(series[i].label ?? ""))] },
      axes: [{ ...axisStyle, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000] }, { ...axisStyle, size: 76, values: (_plot, ticks) => ticks.map((tick) => (tick === null ? "" : show(tick))) }],
    }, data, onStep);
  }, [steps, ranks, value, golden, rank, step, log, theme, language]);
  return (
    <>
      <div className="plot" ref={host} data-testid="lines" data-rank={rank} data-lines={value.length} />
      {ranks.length > MOST_COLOURS && <p className="muted small">{say("lineOthers", rank, ranks.length - 1)}{pointed && <b> · {pointed}</b>}</p>}
    </>
  );
}
