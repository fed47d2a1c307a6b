/** The frame: tabs, tools of the graph, and keys that work everywhere. */
import { type ReactNode, useEffect, useMemo, useRef } from "react";
import { Canvas } from "./canvas";
import { Checked } from "./checked";
import { Configuration } from "./configuration";
import { Shape, Symbol } from "./icons";
import { type Match, mappingFile, readMapping } from "./mapping";
import { Monitor } from "./monitor";
import { Outline, moveByKey, visibleNodes } from "./outline";
import { Overview } from "./overview";
import { Panel } from "./panel";
import { Choice, Legend } from "./parts";
import {
  NO_NODES, type Tab, collapseAll, nextDifference, select, setLanguage, setMatches, setTheme, showUnit, tabsOf, unitName, useStore,
  useText, useTree, watch,
} from "./store";
import { RLTab } from "./rl";
import { SensitivityTab } from "./sensitivity";
import { Summary, stateText } from "./summary";
import { Tensors } from "./tensors";
import { Trends } from "./trends";
import { type PhaseChoice, type Tree, suspectsIn } from "./tree";

/** How often a server is asked for what is new of a training. */
const WATCH_MS = 3000;

export function App(): ReactNode {
  const tab = useStore((state) => state.tab);
  const { language, theme, message } = useStore();
  const say = useText();
  const searchBox = useRef<HTMLInputElement>(null);
  const canvas = useRef<{ fit: () => void; zoom: (by: number) => void } | null>(null);
  useEffect(() => {
    document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
    document.documentElement.dataset.theme = theme;
  }, [language, theme]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => onGlobalKey(event, searchBox.current, canvas.current);
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
  const isWatched = useStore((state) => state.live !== null);
  useEffect(() => {
    if (!isWatched) return undefined;
    const timer = setInterval(() => void watch(), WATCH_MS);
    return () => clearInterval(timer);
  }, [isWatched]);
  return (
    <div className="app">
      <Header />
      {message && <div className="message" role="alert">{message} <button className="link" onClick={() => useStore.setState({ message: "" })}>{say("close")}</button></div>}
      <div className="main" role="tabpanel" id={`panel-${tab}`} aria-labelledby={`tab-${tab}`}>
        {tab === "summary" && <Summary />}
        {tab === "rl" && <RLTab />}
        {tab === "configuration" && <Configuration />}
        {tab === "checked" && <Checked />}
        {tab === "sensitivity" && <SensitivityTab />}
        {tab === "graph" && <GraphTab searchBox={searchBox} canvas={canvas} />}
        {tab === "overview" && <Overview />}
        {tab === "monitor" && <Monitor />}
        {tab === "trends" && <Trends />}
        {tab === "tensors" && <Tensors />}
      </div>
    </div>
  );
}

function onGlobalKey(event: KeyboardEvent, searchBox: HTMLInputElement | null, canvas: { fit: () => void; zoom: (by: number) => void } | null): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement || event.target instanceof HTMLTextAreaElement;
  if (event.key === "Escape") {
    const { matching, words, selected } = useStore.getState();
    if (matching >= 0) useStore.setState({ matching: -1 });
    else if (words) useStore.setState({ words: "" });
    else if (selected >= 0 && !typing) select(-1);
    if (typing) (event.target as HTMLElement).blur();
    return;
  }
  if (typing) return;
  const keys: Record<string, () => void> = {
    n: () => nextDifference(1),
    p: () => nextDifference(-1),
    f: () => canvas?.fit(),
    "+": () => canvas?.zoom(1.3),
    "-": () => canvas?.zoom(1 / 1.3),
    s: () => { if (useStore.getState().data.sides.golden) useStore.setState({ sideBySide: !useStore.getState().sideBySide, shows: useStore.getState().shows + 1 }); },
    "/": () => {
      if (searchBox?.isConnected) {
        searchBox.focus();
        return;
      }
      useStore.setState({ tab: useStore.getState().data.units.length > 0 ? "graph" : tabsOf(useStore.getState().data).at(-1) });
      requestAnimationFrame(() => (searchBox ?? document.querySelector<HTMLInputElement>(".search"))?.focus());
    },
  };
  tabsOf(useStore.getState().data).forEach((tab, i) => { keys[String(i + 1)] = () => useStore.setState({ tab }); });
  const action = keys[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function Header(): ReactNode {
  const say = useText();
  const { data, tab, language, theme } = useStore();
  const state = data.verdict.state;
  const tabs = useRef<HTMLDivElement>(null);
  const shown = tabsOf(data);
  return (
    <header className="header">
      <div className="brand"><b>msprobe</b><span className="title" title={data.title}>{data.title}</span></div>
      {(data.kind === "comparison" || state === "fault") && (
        <button className={`pill ${state}`} onClick={() => useStore.setState({ tab: "summary" })}>
          <Shape verdict={state === "fault" ? "error" : state === "agree" ? "pass" : "warning"} size={13} />
          {say(stateText(data))}
        </button>
      )}
      <div className="tabs" role="tablist" ref={tabs} onKeyDown={(event) => {
        const move = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
        if (move === 0) return;
        const next = shown[(shown.indexOf(tab) + move + shown.length) % shown.length];
        useStore.setState({ tab: next });
        tabs.current?.querySelector<HTMLElement>(`#tab-${next}`)?.focus();
      }}>
        {shown.map((item: Tab) => (
          <button key={item} id={`tab-${item}`} role="tab" aria-selected={item === tab} aria-controls={`panel-${item}`} tabIndex={item === tab ? 0 : -1}
            onClick={() => useStore.setState({ tab: item })}>{say(item)}</button>
        ))}
      </div>
      <div className="header-tools">
        <button className="button small" data-testid="language" lang={language === "en" ? "zh-CN" : "en"} onClick={() => setLanguage(language === "en" ? "zh" : "en")}>{say("language")}</button>
        <button className="button small icon-only" data-testid="theme" aria-label={say("theme")} title={say("theme")} onClick={() => setTheme(theme === "light" ? "dark" : "light")}><Symbol name="theme" /></button>
      </div>
    </header>
  );
}

type CanvasCommands = { current: { fit: () => void; zoom: (by: number) => void } | null };

function GraphTab({ searchBox, canvas }: { searchBox: { current: HTMLInputElement | null }; canvas: CanvasCommands }): ReactNode {
  const tree = useTree();
  const say = useText();
  const matching = useStore((state) => state.matching);
  const comparison = useStore((state) => state.data.kind === "comparison");
  const open = useStore((state) => state.open.get(state.unit) ?? NO_NODES);
  const { phase, micro, selected } = useStore();
  const unit = useStore((state) => state.unit);
  const culprits = useStore((state) => state.data.culprits);
  const suspects = useMemo(() => (tree ? suspectsIn(tree, unit, culprits) : new Map<number, number>()), [tree, unit, culprits]);
  if (!tree) return <p className="empty">{say("loading")}</p>;
  return (
    <div className="columns">
      <Outline tree={tree} searchBox={searchBox} suspects={suspects} />
      <div className="middle">
        <GraphTools tree={tree} />
        {matching >= 0 && <div className="hint" role="status">{say("matchChoose", tree.label(matching))}</div>}
        <div className="canvas-place" tabIndex={0} role="group" aria-label={say("canvas")} data-testid="canvas"
          onKeyDown={(event) => moveByKey(event, tree, visibleNodes(tree, open, phase, micro), false)}>
          <Canvas commands={canvas} suspects={suspects} />
          <div className="canvas-tools">
            <button className="button small icon-only" title={say("collapseAll")} aria-label={say("collapseAll")} onClick={collapseAll}><Symbol name="fold" /></button>
            <button className="button small icon-only" title={say("zoomOut")} aria-label={say("zoomOut")} onClick={() => canvas.current?.zoom(1 / 1.3)}><Symbol name="minus" /></button>
            <button className="button small icon-only" title={say("zoomIn")} aria-label={say("zoomIn")} onClick={() => canvas.current?.zoom(1.3)}><Symbol name="plus" /></button>
            <button className="button small icon-only" title={say("fit")} aria-label={say("fit")} data-testid="fit" onClick={() => canvas.current?.fit()}><Symbol name="fit" /></button>
          </div>
        </div>
        <div className="sr" role="status">{selected >= 0 ? tree.name(selected) : ""}</div>
        <footer className="graph-foot">{comparison && <Legend />} <span className="muted keys" title={say("keysText")}><Symbol name="keys" /> {say("keysText")}</span></footer>
      </div>
      <Panel tree={tree} />
    </div>
  );
}

function GraphTools({ tree }: { tree: Tree }): ReactNode {
  const say = useText();
  const { data, unit, phase, micro, sideBySide, matches, selected } = useStore();
  const differences = useMemo(() => tree.differences.filter((node) => tree.shown(node, phase, micro)), [tree, phase, micro]);
  const at = differences.indexOf(selected);
  const phases: PhaseChoice[] = ["all", "forward", "backward", "update"];
  const present = phases.filter((item) => item === "all" || tree.roots.some((root) => tree.shown(root, item, null)));
  return (
    <div className="toolbar graph-tools">
      {data.units.length > 1 && (
        <select aria-label={say("unit")} data-testid="unit" value={unit} onChange={(event) => void showUnit(Number(event.target.value))}>
          {data.units.map((item, i) => <option key={i} value={i}>{unitName(data, i)}{item.flagged > 0 ? ` (${item.flagged} ✕)` : ""}</option>)}
        </select>
      )}
      {present.length > 2 && (
        <Choice label={say("phase")} value={phase} onChange={(value) => useStore.setState({ phase: value, shows: useStore.getState().shows + 1 })}
          options={present.map((item) => ({ value: item, text: say(item) }))} />
      )}
      {tree.microSteps.length > 1 && (
        <label className="field">{say("microStep")} <select value={micro ?? ""} onChange={(event) => useStore.setState({ micro: event.target.value === "" ? null : Number(event.target.value) })}>
          <option value="">{say("all")}</option>{tree.microSteps.map((step) => <option key={step}>{step}</option>)}
        </select></label>
      )}
      {data.sides.golden && (
        <Choice label={say("view")} value={sideBySide ? "two" : "one"} onChange={(value) => useStore.setState({ sideBySide: value === "two", shows: useStore.getState().shows + 1 })}
          options={[{ value: "one", text: say("merged") }, { value: "two", text: say("sideBySide") }]} />
      )}
      {data.kind === "comparison" && (
        <div className="stepper">
          <button className="button small icon-only" title={say("previous")} aria-label={say("previous")} disabled={differences.length === 0} onClick={() => nextDifference(-1)}><Symbol name="up" /></button>
          <span data-testid="differences">{differences.length === 0 ? say("noDifferences") : at >= 0 ? say("differenceOf", at + 1, differences.length) : say("differences", differences.length)}</span>
          <button className="button small icon-only" title={say("next")} aria-label={say("next")} disabled={differences.length === 0} onClick={() => nextDifference(1)}><Symbol name="down" /></button>
        </div>
      )}
      {matches.length > 0 && <Mappings matches={matches} />}
    </div>
  );
}

function Mappings({ matches }: { matches: Match[] }): ReactNode {
  const say = useText();
  const trees = useStore((state) => state.trees);
  const unit = useStore((state) => state.unit);
  const file = useRef<HTMLInputElement>(null);
  const download = (): void => {
    const address = URL.createObjectURL(new Blob([mappingFile(matches, (index) => trees.get(index))], { type: "text/yaml" }));
    const link = document.createElement("a");
    link.href = address;
    link.download = "mapping.yaml";
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };
  return (
    <details className="mappings">
      <summary className="button small">{say("mappings")} ({matches.length})</summary>
      <div className="mappings-list">
        <p className="muted">{say("mappingHow")}</p>
        <ul>{matches.map((match) => (
          <li key={`${match.unit} ${match.target} ${match.golden ?? ""}`}><code>{match.target}</code> {match.golden === null ? say("unmatchedByHand") : <>→ <code>{match.golden}</code></>}
            {" "}<button className="link" onClick={() => setMatches(matches.filter((other) => other !== match))}>{say("remove")}</button></li>
        ))}</ul>
        <button className="button small strong" data-testid="download" onClick={download}>{say("download")}</button>{" "}
        <button className="button small" onClick={() => file.current?.click()}>{say("loadMapping")}</button>
        <input ref={file} type="file" accept=".yaml,.yml" hidden onChange={(event) => {
          void event.target.files?.[0]?.text().then((content) => setMatches([...matches, ...readMapping(content, unit)]));
        }} />
      </div>
    </details>
  );
}
