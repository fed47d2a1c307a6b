/** Curves over steps: what all of them do, whatever they show. */
import uPlot from "uplot";

/** Draw curves into an element, as wide as it is; a click on a step chooses it. Returns what takes them away. */
export function mountPlot(element: HTMLElement, options: Omit<uPlot.Options, "width">, data: (number | null)[][], onStep: (step: number) => void): () => void {
  const { height } = options;
  const plot = new uPlot({ ...options, width: element.clientWidth }, data as uPlot.AlignedData, element);
  plot.over.addEventListener("click", () => {
    const at = plot.cursor.idx;
    if (at !== null && at !== undefined) onStep(data[0][at] as number);
  });
  const watcher = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height }));
  watcher.observe(element);
  return () => {
    watcher.disconnect();
    plot.destroy();
  };
}

/** Draw the line of the chosen step. */
export function markStep(plot: uPlot, step: number, ink: string): void {
  const [pen, ratio] = [plot.ctx, devicePixelRatio || 1];
  const x = Math.round(plot.valToPos(step, "x", true));
  if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) return;
  pen.save();
  pen.strokeStyle = ink;
  pen.globalAlpha = 0.45;
  pen.setLineDash([2 * ratio, 3 * ratio]);
  pen.beginPath();
  pen.moveTo(x, plot.bbox.top);
  pen.lineTo(x, plot.bbox.top + plot.bbox.height);
  pen.stroke();
  pen.restore();
}
