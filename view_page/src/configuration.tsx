/** How the two runs were configured: which settings differ, and whether they explain the fault. */
import { type ReactNode, useState } from "react";
import type { ConfigDifference, ConfigSection, Configured, Degree } from "./data";
import type { Said } from "./findings";
import { Shape } from "./icons";
import { Name } from "./parts";
import { useFindings, useStore, useText } from "./store";
import { TEXTS_OF_SECTIONS } from "./texts";
import type { Verdict } from "./tree";

const SHAPES: Record<Degree, Verdict> = { yes: "error", maybe: "warning", no: "none" };

/** The name of a section, as it is if the page does not know it. */
function useSection(): (name: string) => string {
  const say = useText();
  return (name) => {
    const key = TEXTS_OF_SECTIONS[name];
    return key ? say(key) : name;
  };
}

export function Configuration(): ReactNode {
  const found = useStore((state) => state.data.configured);
  return found ? <Compared found={found} /> : null;
}

function Compared({ found }: { found: Configured }): ReactNode {
  const say = useText();
  const [only, setOnly] = useState<ReadonlySet<string>>(new Set());
  const [harmless, setHarmless] = useState(false);
  const matter = found.sections.reduce((sum, section) => sum + section.matter, 0);
  const compared = found.sections.reduce((sum, section) => sum + section.compared, 0);
  const shown = found.differences.filter(({ section, severity }) => (only.size === 0 || only.has(section)) && (harmless || severity !== "info"));
  const isExplained = found.differences.some(({ explains }) => explains !== null);
  const toggle = (name: string): void => {
    const now = new Set(only);
    if (!now.delete(name)) now.add(name);
    setOnly(now);
  };
  return (
    <div className="summary configuration">
      <section className="card wide">
        <h1 data-testid="config-headline">{matter === 0 ? say("configHeadAgree") : matter === 1 ? say("configHeadDifferOne") : say("configHeadDiffer", matter)}</h1>
        <p className="muted">{found.ranks > 1 ? say("configHint", found.ranks, compared) : say("configHintOne", compared)}</p>
        <h2 className="section">{say("sectionsOf")}</h2>
        <Sections sections={found.sections} only={only} toggle={toggle} />
        {found.different > 0 && (
          <label className="field"><input type="checkbox" data-testid="harmless" checked={harmless} onChange={(event) => setHarmless(event.target.checked)} /> {say("showHarmless")}</label>
        )}
        {shown.length === 0 && <p className="empty">{say(found.different === 0 || only.size === 0 ? "configNone" : "configFiltered")}</p>}
        {shown.length > 0 && (
          <table className="evidence config-table" data-testid="config-table">
            <thead><tr>
              {isExplained && <th>{say("explainsColumn")}</th>}
              <th>{say("settingColumn")}</th><th>{say("target")}</th><th>{say("golden")}</th><th>{say("sectionColumn")}</th>
            </tr></thead>
            <tbody>{shown.map((each, i) => <Row key={i} difference={each} isExplained={isExplained} />)}</tbody>
          </table>
        )}
        {found.different > found.differences.length && <p className="muted">{say("configMore", found.differences.length, found.different)}</p>}
      </section>
    </div>
  );
}

/** Each section with its state; pressed, only its differences are shown. */
function Sections({ sections, only, toggle }: { sections: ConfigSection[]; only: ReadonlySet<string>; toggle: (name: string) => void }): ReactNode {
  const say = useText();
  const read = useFindings();
  const nameOf = useSection();
  return (
    <div className="filters" role="group" aria-label={say("sectionsOf")}>
      {sections.map(({ name, compared, different, matter, unknown }) => {
        const state = unknown && different === 0 ? say("notCompared") : different > 0 ? say("differentCount", different) : say("equalCount", compared);
        const verdict: Verdict = unknown && different === 0 ? "none" : matter > 0 ? "error" : "pass";
        return (
          <button key={name} className="chip" data-section={name} data-state={verdict} aria-pressed={only.has(name)} disabled={different === 0}
            title={unknown ? read(unknown) : undefined} onClick={() => toggle(name)}>
            <Shape verdict={verdict} size={12} /> {nameOf(name)} <span className="muted">{state}</span>
          </button>
        );
      })}
    </div>
  );
}

function Row({ difference, isExplained }: { difference: ConfigDifference; isExplained: boolean }): ReactNode {
  const say = useText();
  const read = useFindings();
  const nameOf = useSection();
  const { path, golden_path, target, golden, explains, because, count, ranks, severity, section, message } = difference;
  const places = [count > 1 ? say("inPlaces", count) : "", ranks.length > 0 ? `${say(ranks.length > 1 ? "ranks" : "rank")} ${ranks.join(", ")}` : ""].filter(Boolean);
  return (
    <tr data-path={path} data-explains={explains ?? ""}>
      {isExplained && (
        <td>{explains && <span className="degree"><Shape verdict={SHAPES[explains]} size={13} /> <b>{say(`explainsOf_${explains}`)}</b></span>}
          {because && <div className="muted">{read(reasonAlone(because))}</div>}</td>
      )}
      <td title={read(message)}><code><Name value={path} /></code>{golden_path && <div className="muted"><code><Name value={golden_path} /></code></div>}
        {places.length > 0 && <div className="muted">{places.join(" · ")}</div>}</td>
      <td><Value value={target} /></td>
      <td><Value value={golden} /></td>
      <td>{nameOf(section)}{severity === "info" && <div className="muted">{say("harmless")}</div>}</td>
    </tr>
  );
}

/** Why, without the answer, which has its own words in the table. */
function reasonAlone(because: Said): Said {
  return typeof because === "string" ? because : (because.fields.why as Said | undefined) ?? because;
}

function Value({ value }: { value: string | null }): ReactNode {
  const say = useText();
  return value === null ? <span className="muted">{say("notSet")}</span> : <code><Name value={value} /></code>;
}

/** The configuration of a single run, in short. */
export function Manifest(): ReactNode {
  const say = useText();
  const nameOf = useSection();
  const facts = useStore((state) => state.data.manifest);
  if (!facts?.length) return null;
  return (
    <section className="card" data-testid="manifest">
      <h2>{say("manifestTitle")}</h2>
      <dl className="manifest">
        {facts.map(({ name, value }) => <div key={name} data-fact={name}><dt>{nameOf(name)}</dt><dd>{value}</dd></div>)}
      </dl>
    </section>
  );
}
