/** Shapes that say what the colours say, and the few symbols of buttons. */
import type { ReactNode } from "react";
import type { Verdict } from "./tree";

function Svg({ children, size = 14, label }: { children: ReactNode; size?: number; label?: string }): ReactNode {
  return (
    <svg className="icon" width={size} height={size} viewBox="0 0 16 16" role={label ? "img" : undefined}
      aria-label={label} aria-hidden={label ? undefined : true}>
      {children}
    </svg>
  );
}

/** Right: a circle. Beyond: a triangle. Far beyond: a diamond with a cross. No partner: a broken ring. */
export function Shape({ verdict, size, label }: { verdict: Verdict; size?: number; label?: string }): ReactNode {
  if (verdict === "error") {
    return (
      <Svg size={size} label={label}>
        <path className="shape-error" d="M8 .8 15.2 8 8 15.2.8 8Z" />
        <path className="shape-cut" d="M5.7 5.7 10.3 10.3M10.3 5.7 5.7 10.3" />
      </Svg>
    );
  }
  if (verdict === "warning") {
    return (
      <Svg size={size} label={label}>
        <path className="shape-warning" d="M8 1.5 15.2 14.3H.8Z" />
        <path className="shape-cut" d="M8 6v4M8 11.6v1" />
      </Svg>
    );
  }
  if (verdict === "pass") {
    return (
      <Svg size={size} label={label}>
        <circle className="shape-pass" cx="8" cy="8" r="6.6" />
        <path className="shape-cut" d="M5 8.2 7.2 10.4 11.2 5.8" />
      </Svg>
    );
  }
  return (
    <Svg size={size} label={label}>
      <circle className="shape-none" cx="8" cy="8" r="6" />
    </Svg>
  );
}

export function Chevron({ open }: { open: boolean }): ReactNode {
  return <Svg size={12}><path className="stroke" d={open ? "M3 5.5 8 10.5 13 5.5" : "M5.5 3 10.5 8 5.5 13"} /></Svg>;
}

const PATHS = {
  up: "M3 10.5 8 5.5 13 10.5",
  down: "M3 5.5 8 10.5 13 5.5",
  fit: "M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  fold: "M3 3 8 7 13 3M3 13 8 9 13 13",
  theme: "M8 1.8a6.2 6.2 0 1 0 0 12.4ZM8 1.8a6.2 6.2 0 0 1 0 12.4",
  close: "M4 4 12 12M12 4 4 12",
  link: "M2 6h10M9 3l3 3-3 3M14 10H4M7 7l-3 3 3 3",
  keys: "M1.5 4h13v8h-13ZM4 7h.01M7 7h.01M10 7h.01M12.5 7h.01M5 9.7h6",
  arrow: "M3 8h10M9 4l4 4-4 4",
  match: "M6 5H4a3 3 0 0 0 0 6h2M10 5h2a3 3 0 0 1 0 6h-2M5.5 8h5",
};

export function Symbol({ name }: { name: keyof typeof PATHS }): ReactNode {
  return <Svg><path className="stroke" d={PATHS[name]} /></Svg>;
}
