/** A map of many cells on a canvas, of which only the part in sight is painted; mouse and keys choose a cell. */
import { type KeyboardEvent, type MouseEvent, type ReactNode, useEffect, useLayoutEffect, useRef, useState } from "react";
import { useStore } from "./store";

export interface Band {
  from: number;
  to: number;
  text: string;
}

export interface HeatMapProps {
  rows: number;
  columns: number;
  colour: (row: number, column: number) => string;
  describe: (row: number, column: number) => string;
  rowLabel: (row: number) => string;
  columnLabel: (column: number) => string;
  bands?: Band[][];
  onPick?: (row: number, column: number) => void;
  label: string;
  cell: { width: [number, number]; height: [number, number] };
  gutter?: number;
  mark?: [number, number] | null;
  /** Cells with a dot: "row,column", and whether the dot is a large one. */
  dots?: ReadonlyMap<string, boolean>;
  maxHeight?: number;
  testid?: string;
}

const BAND = 20;

export function HeatMap(props: HeatMapProps): ReactNode {
  const { rows, columns, bands = [], gutter = 150, maxHeight = 620 } = props;
  const theme = useStore((state) => state.theme);
  const host = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [at, setAt] = useState<[number, number] | null>(null);
  const [pointer, setPointer] = useState<{ x: number; y: number } | null>(null);
  const hasLabels = gutter > 0;
  const top = bands.length * BAND + (hasLabels ? BAND : 0);
  const clamp = (value: number, [low, high]: [number, number]): number => Math.min(high, Math.max(low, value));
  const cellWidth = clamp(Math.floor((width - gutter) / Math.max(1, columns)), props.cell.width);
  const cellHeight = clamp(Math.floor((maxHeight - top) / Math.max(1, rows)), props.cell.height);
  const fullWidth = gutter + columns * cellWidth;
  const fullHeight = top + rows * cellHeight;
  const seenHeight = Math.min(maxHeight, fullHeight);

  useLayoutEffect(() => {
    const element = host.current;
    if (!element) return undefined;
    const watch = new ResizeObserver(() => setWidth(element.clientWidth));
    watch.observe(element);
    setWidth(element.clientWidth);
    return () => watch.disconnect();
  }, []);

  const paint = (): void => {
    const [element, scroller] = [canvas.current, host.current];
    const pen = element?.getContext("2d");
    if (!element || !scroller || !pen || width === 0) return;
    const ratio = window.devicePixelRatio || 1;
    const [seenWidth, height] = [Math.min(width, fullWidth), seenHeight];
    element.width = Math.round(seenWidth * ratio);
    element.height = Math.round(height * ratio);
    element.style.width = `${seenWidth}px`;
    element.style.height = `${height}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(scroller);
    const [ink, faint, surface] = [style.getPropertyValue("--ink"), style.getPropertyValue("--muted"), style.getPropertyValue("--surface")];
    const [left, down] = [scroller.scrollLeft, scroller.scrollTop];
    const gap = cellWidth >= 6 && cellHeight >= 6 ? 1 : 0;
    const firstColumn = Math.max(0, Math.floor(left / cellWidth));
    const lastColumn = Math.min(columns - 1, Math.ceil((left + seenWidth - gutter) / cellWidth));
    const firstRow = Math.max(0, Math.floor(down / cellHeight));
    const lastRow = Math.min(rows - 1, Math.ceil((down + height - top) / cellHeight));
    for (let row = firstRow; row <= lastRow; row++) {
      for (let column = firstColumn; column <= lastColumn; column++) {
        pen.fillStyle = props.colour(row, column);
        pen.fillRect(gutter + column * cellWidth - left, top + row * cellHeight - down, cellWidth - gap, cellHeight - gap);
      }
    }
    for (const [key, isLarge] of props.dots ?? []) {
      const [row, column] = key.split(",").map(Number);
      if (row < firstRow || row > lastRow || column < firstColumn || column > lastColumn) continue;
      const [x, y] = [gutter + (column + 0.5) * cellWidth - left - gap / 2, top + (row + 0.5) * cellHeight - down - gap / 2];
      pen.beginPath();
      pen.arc(x, y, isLarge ? 4.5 : Math.max(2, Math.min(3.5, cellHeight / 5)), 0, 2 * Math.PI);
      pen.fillStyle = ink;
      pen.fill();
      pen.strokeStyle = surface;
      pen.lineWidth = 1;
      pen.stroke();
    }
    const frame = (place: [number, number], colour: string): void => {
      pen.strokeStyle = colour;
      pen.lineWidth = 2;
      pen.strokeRect(gutter + place[1] * cellWidth - left - 0.5, top + place[0] * cellHeight - down - 0.5, cellWidth + 1 - gap, cellHeight + 1 - gap);
    };
    if (props.mark) frame(props.mark, ink);
    if (at) frame(at, ink);
    if (!hasLabels) return;
    pen.fillStyle = surface;
    pen.fillRect(0, 0, gutter, height);
    pen.fillRect(0, 0, seenWidth, top);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    pen.fillStyle = ink;
    const every = Math.max(1, Math.ceil(13 / cellHeight));
    for (let row = firstRow; row <= lastRow; row++) {
      if (row % every !== 0) continue;
      const y = top + row * cellHeight - down + cellHeight / 2;
      if (y > top) pen.fillText(fitted(pen, props.rowLabel(row), gutter - 14), gutter - 8, y);
    }
    pen.textAlign = "left";
    pen.fillStyle = faint;
    let busyTo = 0;
    for (let column = firstColumn; column <= lastColumn; column++) {
      const x = gutter + column * cellWidth - left;
      const text = props.columnLabel(column);
      if (x < gutter - 1 || x < busyTo) continue;
      pen.fillText(text, x + 1, top - BAND / 2);
      busyTo = x + pen.measureText(text).width + 8;
    }
    bands.forEach((line, level) => {
      for (const band of line) {
        const from = Math.max(gutter, gutter + band.from * cellWidth - left);
        const to = gutter + band.to * cellWidth - left - 2;
        if (to <= gutter || from > seenWidth) continue;
        pen.fillStyle = style.getPropertyValue("--line");
        pen.fillRect(from, level * BAND + 1, Math.max(1, to - from), BAND - 4);
        pen.fillStyle = ink;
        if (to - from > 12) pen.fillText(fitted(pen, band.text, to - from - 6), from + 4, level * BAND + BAND / 2 - 1);
      }
    });
    pen.fillStyle = surface;
    pen.fillRect(0, 0, gutter, top);
  };

  useEffect(paint);
  const markKey = props.mark?.join(",");
  useEffect(() => {
    const element = host.current;
    if (!element || !props.mark || width === 0) return;
    const [y, x] = [props.mark[0] * cellHeight, props.mark[1] * cellWidth];
    const [seenDown, seenAcross] = [seenHeight - top, element.clientWidth - gutter];
    if (y < element.scrollTop || y + cellHeight > element.scrollTop + seenDown) element.scrollTop = y - seenDown / 2;
    if (x < element.scrollLeft || x + cellWidth > element.scrollLeft + seenAcross) element.scrollLeft = x - seenAcross / 2;
  }, [markKey, props.label, width > 0]); // not when there is more of it: whoever has scrolled away looks elsewhere
  const place = (event: MouseEvent): [number, number] | null => {
    const element = host.current;
    if (!element) return null;
    const bounds = element.getBoundingClientRect();
    const column = Math.floor((event.clientX - bounds.left + element.scrollLeft - gutter) / cellWidth);
    const row = Math.floor((event.clientY - bounds.top + element.scrollTop - top) / cellHeight);
    if (event.clientX - bounds.left < gutter || event.clientY - bounds.top < top) return null;
    return row >= 0 && row < rows && column >= 0 && column < columns ? [row, column] : null;
  };
  const onKey = (event: KeyboardEvent): void => {
    const [row, column] = at ?? [0, 0];
    const moves: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    if (move) {
      const next: [number, number] = at
        ? [Math.min(rows - 1, Math.max(0, row + move[0])), Math.min(columns - 1, Math.max(0, column + move[1]))] : [0, 0];
      setAt(next);
      const element = host.current;
      if (element) {
        const [x, y] = [next[1] * cellWidth, next[0] * cellHeight];
        if (x < element.scrollLeft) element.scrollLeft = x;
        else if (x + cellWidth > element.scrollLeft + element.clientWidth - gutter) element.scrollLeft = x + cellWidth - element.clientWidth + gutter;
        if (y < element.scrollTop) element.scrollTop = y;
        else if (y + cellHeight > element.scrollTop + seenHeight - top) element.scrollTop = y + cellHeight - seenHeight + top;
      }
    } else if ((event.key === "Enter" || event.key === " ") && at) props.onPick?.(row, column);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const told = at ? props.describe(at[0], at[1]) : "";
  return (
    <div className="heat" data-theme-now={theme}>
      <div className="heat-scroll" ref={host} tabIndex={0} role="application" aria-label={props.label} data-testid={props.testid}
        data-cell={`${gutter},${top},${cellWidth},${cellHeight}`} style={{ height: seenHeight + (fullWidth > width ? 12 : 0) }}
        onScroll={paint} onKeyDown={onKey}
        onMouseMove={(event) => { setAt(place(event)); setPointer({ x: event.clientX, y: event.clientY }); }}
        onMouseLeave={() => { setAt(null); setPointer(null); }}
        onClick={(event) => { const found = place(event); if (found) props.onPick?.(found[0], found[1]); }}>
        <div style={{ width: fullWidth, height: fullHeight }}>
          <canvas ref={canvas} />
        </div>
      </div>
      <div className="sr" role="status">{told}</div>
      {at && pointer && <div className="tip" style={{ left: Math.min(pointer.x + 14, innerWidth - 340), top: Math.min(pointer.y + 16, innerHeight - 90) }}>{told}</div>}
    </div>
  );
}

function fitted(pen: CanvasRenderingContext2D, text: string, width: number): string {
  if (pen.measureText(text).width <= width) return text;
  let short = text;
  while (short.length > 1 && pen.measureText(`…${short}`).width > width) short = short.slice(1);
  return `…${short}`;
}
