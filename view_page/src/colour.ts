/**
 * Colours of severities: from blue over yellow to red-brown. Their lightness falls in the same order, so that they can be
 * distinguished with any colour vision (tests/unit/test_view_bundle.py simulates three kinds); shapes say the same (icons.tsx).
 */
import type { Severity } from "./data";

type Rgb = [number, number, number];
type Stop = [number, Rgb];

const LIGHT: Stop[] = [
  [0, [198, 223, 244]], [0.4, [222, 237, 246]], [0.5, [247, 240, 211]], [0.62, [246, 205, 114]],
  [0.8, [231, 139, 78]], [1, [178, 48, 12]],
];
const DARK: Stop[] = [
  [0, [20, 62, 98]], [0.4, [26, 54, 78]], [0.5, [62, 56, 34]], [0.62, [140, 102, 16]], [0.8, [208, 110, 56]],
  [1, [255, 150, 112]],
];
const NONE: Record<Theme, string> = { light: "rgb(222, 222, 222)", dark: "rgb(62, 62, 62)" };

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

/** Relative luminance of sRGB, as WCAG 2.2 defines it. */
function luminance(colour: Rgb): number {
  const [red, green, blue] = colour.map((channel) => {
    const part = channel / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Black or white, whichever is read better on the fill. */
export function ink(severity: Severity, theme: Theme): string {
  if (severity === null) return theme === "dark" ? "#f2f5f8" : "#17202b";
  const back = luminance(mix(theme === "light" ? LIGHT : DARK, severity));
  return (1.05 / (back + 0.05)) > (back + 0.05) / 0.05 ? "#ffffff" : "#000000";
}

/** From blue over white to red, for values of both signs; `at` from -1 to 1. */
export function diverging(at: number, theme: Theme): string {
  if (Number.isNaN(at)) return "rgb(150, 60, 160)";
  const middle: Rgb = theme === "light" ? [246, 246, 244] : [30, 35, 43];
  const end: Rgb = at < 0 ? [33, 102, 172] : [190, 70, 20];
  const part = Math.min(1, Math.abs(at));
  return `rgb(${middle.map((channel, i) => Math.round(channel + (end[i] - channel) * part)).join(", ")})`;
}

/** From the surface to deep blue, for magnitudes; `at` from 0 to 1. */
export function sequential(at: number, theme: Theme): string {
  const [low, high]: [Rgb, Rgb] = theme === "light" ? [[240, 244, 247], [8, 48, 107]] : [[29, 35, 43], [150, 200, 255]];
  const part = Math.min(1, Math.max(0, at));
  return `rgb(${low.map((channel, i) => Math.round(channel + (high[i] - channel) * part)).join(", ")})`;
}

/** NaN and Inf, which are on no scale. */
export const NOT_FINITE: Record<Theme, string> = { light: "rgb(150, 30, 160)", dark: "rgb(226, 110, 240)" };

export const LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d00", "#6a4fb3"];
