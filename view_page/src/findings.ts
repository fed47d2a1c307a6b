/**
 * What msprobe has found, in words: by the templates that Python has, from the same files, see msprobe_core/findings.py.
 * Numbers are written as Python writes them.
 */
import ENGLISH from "../../msprobe_core/wording/en.json";
import CHINESE from "../../msprobe_core/wording/zh.json";
import type { Language } from "./texts";

export type Field = string | number | boolean | null | Finding | Field[];

export interface Finding {
  code: string;
  level: string;
  fields: Record<string, Field>;
}

/** A finding, or a text that is the same in every language. */
export type Said = Finding | string;

const WORDINGS: Record<Language, { findings: Record<string, string>; words: Record<string, string> }> = { en: ENGLISH, zh: CHINESE };
const UNKNOWN: Record<Language, string> = { en: "unknown", zh: "未知" };
const COMMA: Record<Language, string> = { en: ", ", zh: "、" };
const BETWEEN: Record<string, Record<Language, string>> = { ";": { en: "; ", zh: ";" }, " ": { en: " ", zh: "" } };
const PLACE = /\{(\w+)(?::([^{}]*))?\}/g;
const SAID = "row.said";

/** What was found, in a language; a code that the page does not know as it is. */
export function worded(language: Language, said: Said): string {
  if (typeof said === "string") return said;
  const template = WORDINGS[language].findings[said.code] ?? said.code;
  return template.replace(PLACE, (_whole, name: string, spec: string | undefined) => asText(language, said.fields[name] ?? null, spec ?? ""));
}

/** What was found of one value, each with its level. */
export function wordedWithLevels(language: Language, found: Said[]): string {
  const said = found.map((each) => (typeof each === "string" || each.code === SAID ? each : { code: SAID, level: each.level, fields: { level: each.level, finding: each } }));
  return said.map((each) => worded(language, each)).join(BETWEEN[" "][language]);
}

/** What was found without its level. */
export function withoutLevel(said: Said): Said {
  return typeof said !== "string" && said.code === SAID ? said.fields.finding as Said : said;
}

/** A word of a closed set, such as the kind of a fault. */
export function word(language: Language, text: string): string {
  return WORDINGS[language].words[text] ?? text;
}

function asText(language: Language, value: Field, spec: string): string {
  if (value === null) return UNKNOWN[language];
  if (Array.isArray(value)) return value.map((each) => asText(language, each, spec)).join((BETWEEN[spec] ?? COMMA)[language]);
  if (typeof value === "object") return worded(language, value);
  if (typeof value === "string") return spec === "word" ? word(language, value) : value;
  const number = Number(value);
  if (spec.includes("|")) {
    const [one, several] = spec.split("|");
    return `${formatted(number, ",")} ${number === 1 ? one : several}`;
  }
  return formatted(number, spec === "times" ? multiple(number) : spec);
}

function multiple(value: number): string {
  return value >= 1e6 ? ".1e" : value < 10 ? ".2g" : ",.0f";
}

/** A number in a format of Python's: "", ",", and a precision followed by g, f or e. */
export function formatted(value: number, format: string): string {
  const match = /^(,?)(?:\.(\d+))?([gfe]?)$/.exec(format);
  if (!match) return String(value);
  const [, comma, digits, kind] = match;
  let text: string;
  if (!kind && Number.isInteger(value)) text = whole(Math.abs(value));
  else if (kind === "f") text = fixed(Math.abs(value), Number(digits ?? 6));
  else if (kind === "e") text = power(...scientific(Math.abs(value), Number(digits ?? 6)));
  else text = general(Math.abs(value), Math.max(1, Number(digits ?? (kind ? 6 : 3))));
  if (comma) text = text.replace(/^\d+/, (part) => part.replace(/\B(?=(\d{3})+$)/g, ","));
  return value < 0 || Object.is(value, -0) && kind ? `-${text}` : text;
}

const whole = (value: number): string => (value < 1e21 ? String(value) : BigInt(value).toString());

/** Python rounds halves to even digits, and JavaScript up. */
function fixed(value: number, digits: number): string {
  if (value >= 1e21) return whole(value) + (digits ? `.${"0".repeat(digits)}` : "");
  const exact = value.toFixed(100);
  const end = exact.indexOf(".") + (digits ? digits + 1 : 0);
  return isHalf(exact.slice(end)) && isEven(exact.slice(0, end)) ? exact.slice(0, end) : value.toFixed(digits);
}

function scientific(value: number, digits: number): [mantissa: string, exponent: number] {
  const [exact, exponent] = value.toExponential(100).split("e");
  const end = digits ? digits + 2 : 1;
  if (isHalf(exact.slice(end)) && isEven(exact.slice(0, end))) return [exact.slice(0, end), Number(exponent)];
  const [mantissa, own] = value.toExponential(digits).split("e");
  return [mantissa, Number(own)];
}

const isHalf = (rest: string): boolean => /^\.?50*$/.test(rest);
const isEven = (text: string): boolean => /[02468]\.?$/.test(text);

function general(value: number, digits: number): string {
  const [mantissa, exponent] = scientific(value, digits - 1);
  if (exponent < -4 || exponent >= digits) return power(stripped(mantissa), exponent);
  return stripped(fixed(Number(`${mantissa}e${exponent}`), digits - 1 - exponent));
}

const stripped = (text: string): string => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

function power(mantissa: string, exponent: number): string {
  return `${mantissa}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
}
