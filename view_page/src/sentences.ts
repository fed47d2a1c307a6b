/**
 * The sentences that msprobe writes, in Chinese. They come in English, as the terminal has them; each is known again by its
 * template, of which `sentences.json` has the translation, and what is in none stays as it is. In a translation, {0} is the
 * text in the first place as it stands, {0|t} that text translated, {0|k} a word, and {0|w} step and ranks.
 */
import CATALOGUE from "./sentences.json";
import type { Language } from "./texts";

interface Template {
  parts: string[];
  chinese: string;
}

const EXACT = new Map<string, string>();
const TEMPLATES: Template[] = [];
/** Not the number of places but what stands between them says how much a template tells. */
const weight = (template: string): number => template.replaceAll("{}", "").length;

for (const [english, chinese] of Object.entries(CATALOGUE.sentences).sort(([a], [b]) => weight(b) - weight(a))) {
  if (!english.includes("{}")) EXACT.set(english, chinese);
  else TEMPLATES.push({ parts: english.split("{}"), chinese });
}

/** What stands in the places of a template; null if the text is not of it. Each place ends as early as it can: texts may be hostile. */
function places(parts: string[], text: string): string[] | null {
  const [first, last] = [parts[0], parts[parts.length - 1]];
  if (!text.startsWith(first) || !text.endsWith(last) || text.length < first.length + last.length) return null;
  const end = text.length - last.length;
  const found: string[] = [];
  let at = first.length;
  for (const part of parts.slice(1, -1)) {
    const next = text.indexOf(part, at);
    if (next < 0 || next + part.length > end) return null;
    found.push(text.slice(at, next));
    at = next + part.length;
  }
  return [...found, text.slice(at, end)];
}

const known = new Map<string, string>();
const MOST_KNOWN = 5000;
const LONGEST = 4000;

function words(value: string): string {
  const found = (CATALOGUE.words as Record<string, string>)[value];
  if (found) return found;
  const [head, ...rest] = value.split(": ");
  return rest.length > 0 ? `${words(head)}:${words(rest.join(": "))}` : value;
}

function place(value: string): string {
  const told = value.replace(/^ in /, "").replace(/micro step (\d+)/, "微步 $1").replace(/step (\d+)/, "第 $1 步").replace(/ranks /, "rank ");
  return told ? `(${told})` : "";
}

function filled(chinese: string, values: string[]): string {
  return chinese.replace(/\{(\d)(?:\|(\w))?\}/g, (_whole, index: string, kind: string | undefined) => {
    const value = values[Number(index)] ?? "";
    return kind === "t" ? translated(value) ?? value : kind === "k" ? words(value) : kind === "w" ? place(value) : value;
  });
}

function whole(text: string): string | null {
  const exact = EXACT.get(text);
  if (exact !== undefined) return exact;
  for (const { parts, chinese } of TEMPLATES) {
    const values = places(parts, text);
    if (values) return filled(chinese, values);
  }
  return null;
}

/** What was said of one row, one behind the other. */
const LEVELS = /(?<=\.) (?=(?:error|warning|note|unmatched): )/;
/** What became of a value, and what a sentence has added to it. */
const CLAUSES = /; /;

function several(text: string, between: RegExp, join: string): string | null {
  const parts = text.split(between);
  if (parts.length < 2) return null;
  const told = parts.map(whole);
  return told.some((part) => part !== null) ? told.map((part, i) => part ?? parts[i]).join(join) : null;
}

/** A value's place, and what is wrong with it, without its level. */
function placed(text: string): string | null {
  const match = /^(\S+): ([^]*)$/.exec(text);
  if (!match) return null;
  const said = several(`error: ${match[2]}`, LEVELS, "") ?? whole(`error: ${match[2]}`);
  return said === null ? null : `${match[1]}:${said.replace(/^错误:/, "")}`;
}

function translated(text: string): string | null {
  return text.length > LONGEST ? null : several(text, LEVELS, "") ?? whole(text) ?? several(text, CLAUSES, ";") ?? placed(text);
}

/** A sentence in the language of the page. */
export function sentence(language: Language, text: string): string {
  if (language !== "zh" || !text) return text;
  let found = known.get(text);
  if (found === undefined) {
    found = translated(text) ?? text;
    if (known.size > MOST_KNOWN) known.clear();
    known.set(text, found);
  }
  return found;
}

/** A word of a closed set, such as the kind of a fault. */
export function word(language: Language, text: string): string {
  return language === "zh" ? words(text) : text;
}

/** What is wrong with a value, without saying that it is wrong. */
export function withoutLevel(message: string): string {
  return message.replace(/^(error: |错误:)/, "");
}
