/**
 * Colours of severities: blue over yellow to red-brown, in order of lightness too, which is told apart with any colour
 * vision; a shape says the same (icons.tsx).
 */
import type { Severity } from "./data";

type Rgb = [number, number, number];
type Stop = [number, Rgb];

const LIGHT: Stop[] = [
  [0, [214, 232, 246]], [0.4, [231, 241, 246]], [0.5, [247, 240, 211]], [0.62, [246, 205, 114]],
  [0.8, [231, 139, 78]], [1, [178, 48, 12]],
];
const DARK: Stop[] = [
  [0, [28, 58, 84]], [0.4, [32, 50, 66]], [0.5, [66, 60, 34]], [0.62, [132, 96, 20]], [0.8, [184, 88, 34]],
  [1, [232, 84, 40]],
];
const NONE: Record<Theme, string> = { light: "rgb(228, 231, 235)", dark: "rgb(48, 55, 65)" };

export type Theme = "light" | "dark";

function mix(stops: Stop[], at: number): Rgb {
  const value = Math.min(1, Math.max(0, at));
  let low = stops[0];
  for (const high of stops) {
    if (value <= high[0]) {
      const part = high[0] === low[0] ? 0 : (value - low[0]) / (high[0] - low[0]);
      return low[1].map((channel, i) => Math.round(channel + (high[1][i] - channel) * part)) as Rgb;
    }
    low = high;
  }
  return low[1];
}

export function fill(severity: Severity, theme: Theme): string {
  if (severity === null || Number.isNaN(severity)) return NONE[theme];
  return `rgb(${mix(theme === "light" ? LIGHT : DARK, severity).join(", ")})`;
}

/** Black or white, whichever is read better on the fill. */
export function ink(severity: Severity, theme: Theme): string {
  if (theme === "dark") return severity !== null && severity > 0.93 ? "#140703" : "#f2f5f8";
  return severity !== null && severity > 0.86 ? "#ffffff" : "#17202b";
}

/** From blue over white to red, for values of both signs; `at` from -1 to 1. */
export function diverging(at: number, theme: Theme): string {
  if (Number.isNaN(at)) return "rgb(150, 60, 160)";
  const middle: Rgb = theme === "light" ? [246, 246, 244] : [30, 35, 43];
  const end: Rgb = at < 0 ? [33, 102, 172] : [190, 70, 20];
  const part = Math.min(1, Math.abs(at));
  return `rgb(${middle.map((channel, i) => Math.round(channel + (end[i] - channel) * part)).join(", ")})`;
}

export const LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d00", "#6a4fb3"];
