/** Small things that several views use. */
import { Fragment, type ReactNode, useState } from "react";
import { type Num, times, toNumber } from "./data";
import { Shape } from "./icons";
import { useStore, useText } from "./store";
import { fill } from "./colour";
import type { TextKey } from "./texts";
import type { Tree, Verdict } from "./tree";

async function toClipboard(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea"); // files have no clipboard in some browsers
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

export function CopyButton({ value }: { value: string }): ReactNode {
  const say = useText();
  const [done, setDone] = useState(false);
  return (
    <button className="button small" onClick={() => {
      void toClipboard(value).then(() => {
        setDone(true);
        setTimeout(() => setDone(false), 1500);
      });
    }}>{say(done ? "copied" : "copy")}</button>
  );
}

export function Command({ value }: { value: string }): ReactNode {
  return (
    <div className="command">
      <code>{value}</code>
      <CopyButton value={value} />
    </div>
  );
}

/** A word as a POSIX shell takes it, whatever is in it. */
export function shellWord(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, "'\\''")}'`;
}

/** How sure: three bars, and the word. */
export function Strength({ strength }: { strength: string }): ReactNode {
  const say = useText();
  const count = strength === "strong" ? 3 : strength === "moderate" ? 2 : 1;
  const word = strength === "strong" || strength === "moderate" || strength === "weak" ? say(strength) : strength;
  return (
    <span className="strength">
      <span className="bars" aria-hidden="true">{[1, 2, 3].map((bar) => <i key={bar} className={bar <= count ? "on" : ""} />)}</span>
      {say("strengthLong", word)}
    </span>
  );
}

/** A name that may break over lines after its dots and underscores. */
export function Name({ value }: { value: string }): ReactNode {
  const parts = value.split(/(?<=[._/])(?=\w)/);
  return parts.map((part, i) => <Fragment key={i}>{i > 0 && <wbr />}{part}</Fragment>);
}

export function Over({ score, limit }: { score: Num; limit: Num }): ReactNode {
  const say = useText();
  const ratio = times(score, limit);
  return ratio === null || !(toNumber(score) > toNumber(limit)) ? null : <span className="over">{say("timesLimit", ratio)}</span>;
}

export function Legend({ none }: { none?: boolean }): ReactNode {
  const say = useText();
  const theme = useStore((state) => state.theme);
  const stops = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.56, 0.62, 0.7, 0.8, 0.9, 1];
  return (
    <div className="legend">
      <Shape verdict="pass" size={12} /> {say("legendRight")}
      <span className="ramp" aria-hidden="true">{stops.map((stop) => <i key={stop} style={{ background: fill(stop, theme) }} />)}</span>
      <Shape verdict="error" size={12} /> {say("legendWorst")}
      {none !== false && <span className="legend-none"><Shape verdict="none" size={12} /> {say("filterNone")}</span>}
    </div>
  );
}

export function Choice<T extends string>({ label, value, options, onChange }: {
  label: string; value: T; options: { value: T; text: string; title?: string }[]; onChange: (value: T) => void;
}): ReactNode {
  return (
    <div className="choice" role="radiogroup" aria-label={label}>
      {options.map((option) => (
        <button key={option.value} role="radio" aria-checked={option.value === value} title={option.title} data-value={option.value}
          onClick={() => onChange(option.value)}>{option.text}</button>
      ))}
    </div>
  );
}

export const VERDICT_TEXT: Record<Verdict, TextKey> = { error: "farBeyond", warning: "beyond", pass: "right", none: "notJudged" };

/** Which direction a root belongs to, where its label does not say. */
export function phaseText(tree: Tree, node: number, say: (key: TextKey) => string): string {
  const phase = tree.isGroup(node) ? "" : tree.graph.phase[node];
  if (phase === "backward" || phase === "parameters_grad") return say("backward");
  if (phase === "optimizer") return say("update");
  return phase === "forward" && tree.phases.some((bits) => (bits & 2) !== 0) ? say("forward") : "";
}
