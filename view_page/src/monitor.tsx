/** A monitored training at a glance: maps of layers, ranks and steps, what is unusual in them, and how much was seen. */
import { type ReactNode, useEffect, useMemo, useState } from "react";
import { NOT_FINITE, diverging, fill, sequential } from "./colour";
import { type CoverageRow, type Dashboard, type MonitorEvent, type MonitorMap, fetchPart, show, toNumber } from "./data";
import { HeatMap } from "./heatmap";
import { Shape } from "./icons";
import { RankLines } from "./lines";
import {
  type Cell, FACTORS, Lines, type MapView, type RowPart, type Shown, distance, factorOf, logRatio, namesOf, nearest, ofRank, ofRow, ofStep, rangeOf,
  rowOfMap, rowOfTrend, usualOf, worstOfRanks,
} from "./monitor_data";
import { Choice, Command, Name } from "./parts";
import { jump, useFindings, useStore, useText } from "./store";
import { type TextKey, TEXTS_OF_QUANTITIES } from "./texts";

type ColourBy = "usual" | "golden" | "value";

interface Chosen {
  quantity: string;
  statistic: string;
  /** Null: the rank that is furthest from usual. */
  rank: number | null;
  micro: number | null;
  view: MapView;
}

interface Place {
  row: number;
  rank: number;
  step: number;
}

const KINDS: Record<MonitorEvent["kind"], TextKey> = { divergence: "kindDivergence", "not-finite": "kindNotFinite", anomaly: "kindAnomaly", alarm: "kindAlarm" };

export function Monitor(): ReactNode {
  const board = useStore((state) => state.data.monitor);
  const say = useText();
  return board && board.rows.name.length > 0 ? <Board board={board} /> : <div className="page-scroll"><p className="empty">{say("trendNone")}</p></div>;
}

function firstPlace(board: Dashboard): Place {
  const event = board.events.find((each) => each.row >= 0);
  return event ? placeOf(event, board) : { row: 0, rank: board.ranks[0], step: board.steps[0] };
}

const placeOf = (event: MonitorEvent, board: Dashboard): Place => ({ row: Math.max(0, event.row), rank: event.ranks[0] ?? board.ranks[0], step: event.step });

function sameRow(before: Dashboard, now: Dashboard, row: number): number {
  const [old, rows] = [before.rows, now.rows];
  return Math.max(0, rows.name.findIndex((name, i) => name === old.name[row] && rows.quantity[i] === old.quantity[row] && rows.micro_step[i] === old.micro_step[row]));
}

function Board({ board }: { board: Dashboard }): ReactNode {
  const say = useText();
  const { data, live, source } = useStore();
  const hasGolden = data.sides.golden !== null;
  const [wanted, setPlace] = useState<Place>(() => firstPlace(board));
  const [chosen, setChosen] = useState<Chosen>(() => ({
    quantity: board.rows.quantity[wanted.row], statistic: board.events.find((each) => each.row >= 0)?.statistic ?? board.maps[0]?.statistic ?? "norm",
    rank: null, micro: null, view: "model",
  }));
  const [held, setHeld] = useState(board);
  if (held !== board) { // newer data, in which the same value may be another row
    setHeld(board);
    setPlace({ ...wanted, row: sameRow(held, board, wanted.row) });
  }
  const [colourBy, setColourBy] = useState<ColourBy>(hasGolden ? "golden" : "usual");
  const [factor, setFactor] = useState(0);
  const [log, setLog] = useState(false);
  const statistic = board.maps.some((map) => map.statistic === chosen.statistic) ? chosen.statistic : board.maps[0].statistic;
  const lines = useMemo(() => new Lines(data.trends, board), [data.trends, board]);
  const names = useMemo(() => namesOf(board, chosen.quantity, chosen.micro), [board, chosen.quantity, chosen.micro]);
  const stepsHeld = useMemo(() => (source?.monitor ? board.steps : lines.steps(names, statistic)), [source, board, lines, names, statistic]);
  const place = chosen.view === "step" ? { ...wanted, step: nearest(stepsHeld, wanted.step) } : wanted;
  const row = useRow(board, lines, place.row, statistic);
  const { shown, waits } = useShown(board, lines, { ...chosen, statistic }, place, row);
  const choose = (event: MonitorEvent): void => {
    setPlace(placeOf(event, board));
    setChosen({ ...chosen, quantity: board.rows.quantity[event.row], statistic: event.statistic, rank: null, micro: null, view: "model" });
  };
  const quantities = [...new Set(board.rows.quantity)];
  const micros = [...new Set(board.rows.micro_step.filter((micro, i) => micro !== null && board.rows.quantity[i] === chosen.quantity))];
  const setQuantity = (quantity: string): void => {
    const [first] = namesOf(board, quantity, null);
    const same = namesOf(board, quantity, null).find(({ name }) => name === board.rows.name[place.row]);
    setPlace({ ...place, row: (same ?? first).rows[0] });
    setChosen({ ...chosen, quantity, micro: null });
  };
  const views: MapView[] = ["model", ...(board.ranks.length > 1 ? ["ranks" as const, "step" as const] : [])];
  return (
    <div className="page-scroll monitor">
      <div className="monitor-main">
        <section className="card">
          <div className="toolbar monitor-tools">
            <label className="field">{say("quantity")} <select data-testid="quantity" value={chosen.quantity} onChange={(event) => setQuantity(event.target.value)}>
              {quantities.map((quantity) => <option key={quantity} value={quantity}>{quantity}{TEXTS_OF_QUANTITIES[quantity] ? ` – ${say(TEXTS_OF_QUANTITIES[quantity])}` : ""}</option>)}
            </select></label>
            <Choice label={say("statistic")} value={statistic} onChange={(value) => setChosen({ ...chosen, statistic: value })} options={board.maps.map((map) => ({ value: map.statistic, text: map.statistic }))} />
            {views.length > 1 && <Choice label={say("monitorView")} value={chosen.view} onChange={(view) => setChosen({ ...chosen, view })}
              options={views.map((view) => ({ value: view, text: say(view === "model" ? "viewModel" : view === "ranks" ? "viewRanks" : "viewStep") }))} />}
            {board.ranks.length > 1 && chosen.view === "model" && (
              <label className="field">{say("rank")} <select data-testid="rank" value={chosen.rank ?? ""} onChange={(event) => setChosen({ ...chosen, rank: event.target.value === "" ? null : Number(event.target.value) })}>
                <option value="">{say("worstRank", board.ranks.length)}</option>{board.ranks.map((rank) => <option key={rank} value={rank}>{rank}</option>)}
              </select></label>
            )}
            {chosen.view === "ranks" && (
              <select data-testid="of-row" aria-label={say("trendChoose")} value={place.row} onChange={(event) => setPlace({ ...place, row: Number(event.target.value) })}>
                {names.flatMap(({ name, rows }) => rows.map((each) => <option key={each} value={each}>{name}{rows.length > 1 ? ` · ${say("microStep")} ${board.rows.micro_step[each] ?? ""}` : ""}</option>))}
              </select>
            )}
            {chosen.view === "step" && (
              <label className="field">{say("step")} <select data-testid="of-step" value={place.step} onChange={(event) => setPlace({ ...place, step: Number(event.target.value) })}>
                {stepsHeld.map((step) => <option key={step} value={step}>{step}</option>)}
              </select></label>
            )}
            {micros.length > 1 && chosen.view !== "ranks" && (
              <label className="field">{say("microStep")} <select data-testid="micro" value={chosen.micro ?? ""} onChange={(event) => setChosen({ ...chosen, micro: event.target.value === "" ? null : Number(event.target.value) })}>
                <option value="">{say("worstMicro")}</option>{micros.map((micro) => <option key={micro} value={micro ?? ""}>{micro}</option>)}
              </select></label>
            )}
          </div>
          {shown ? (
            <ValueMap shown={shown} board={board} chosen={{ ...chosen, statistic }} place={place} colourBy={colourBy} factor={factor}
              onPick={setPlace} setColourBy={setColourBy} setFactor={setFactor} hasGolden={hasGolden} />
          ) : <p className="empty" data-testid="map-lacks">{say(waits ? "loading" : "noPart")}</p>}
        </section>
        <section className="card" data-testid="line-card">
          <div className="line-head">
            <h2><code><Name value={board.rows.name[place.row]} /></code> <span className="muted">{board.rows.quantity[place.row]} · {statistic}{board.rows.micro_step[place.row] === null ? "" : ` · ${say("microStep")} ${board.rows.micro_step[place.row]}`}</span></h2>
            <div className="toolbar">
              {board.ranks.length > 1 && row && row !== "waits" && <label className="field">{say("rank")} <select data-testid="line-rank" value={place.rank} onChange={(event) => setPlace({ ...place, rank: Number(event.target.value) })}>
                {board.ranks.map((rank) => <option key={rank} value={rank}>{rank}</option>)}
              </select></label>}
              <label className="field"><input type="checkbox" checked={log} onChange={(event) => setLog(event.target.checked)} /> {say("logScale")}</label>
            </div>
          </div>
          <PlaceLines board={board} row={row} place={place} statistic={statistic} log={log} setPlace={setPlace} />
        </section>
      </div>
      <aside className="monitor-side">
        {live && <p className="live" role="status" data-testid="live"><i /> {say("liveNow", board.steps.at(-1) ?? "–", new Date(live.at).toLocaleTimeString())}</p>}
        <Events board={board} place={place} statistic={statistic} choose={choose} />
        {board.coverage.length > 0 && <Coverage rows={board.coverage} />}
        <Notes />
      </aside>
    </div>
  );
}

// --- where values come from ---

/** All ranks of one row: from the page, from the server, or not at hand. */
function useRow(board: Dashboard, lines: Lines, row: number, statistic: string): RowPart | "waits" | null {
  const source = useStore((state) => state.source);
  const trend = lines.of(row, statistic);
  const here = useMemo(() => (trend ? rowOfTrend(trend, board) : null), [trend, board]);
  const fetched = useFetched(here || !source?.monitor ? null : `row/${row}/${encodeURIComponent(statistic)}/-`, board);
  return useMemo(() => here ?? (fetched && fetched !== "waits" ? rowOfMap(fetched, board) : fetched), [here, fetched, board]);
}

function useFetched(part: string | null, board: Dashboard): MonitorMap | "waits" | null {
  const source = useStore((state) => state.source);
  const [found, setFound] = useState<{ part: string; board: Dashboard; map: MonitorMap | null } | null>(null);
  useEffect(() => {
    if (!part || !source) return undefined;
    let isWanted = true;
    void fetchPart(source, part).catch(() => null).then((map) => { if (isWanted) setFound({ part, board, map }); });
    return () => { isWanted = false; };
  }, [part, board, source]);
  if (!part) return null;
  // While newer values are on their way, those of before stay.
  return found?.part === part && (found.board === board || found.map?.value.length === board.ranks.length) ? found.map : "waits";
}

function useShown(board: Dashboard, lines: Lines, chosen: Chosen, place: Place, row: RowPart | "waits" | null): { shown: Shown | null; waits: boolean } {
  const source = useStore((state) => state.source);
  const { quantity, statistic, rank, micro, view } = chosen;
  const at = view === "model" ? rank : view === "step" ? place.step : null;
  const kind = view === "model" ? "rank" : "step";
  const fetched = useFetched(at !== null && source?.monitor ? `${kind}/${at}/${encodeURIComponent(statistic)}/${encodeURIComponent(quantity)}` : null, board);
  const shown = useMemo(() => {
    const names = namesOf(board, quantity, micro);
    const map = board.maps.find((each) => each.statistic === statistic);
    if (view === "ranks") return row && row !== "waits" ? ofRow(board, place.row, row) : null;
    if (view === "model" && rank === null) return map ? worstOfRanks(board, map, names) : null;
    if (fetched === "waits") return null;
    const held = fetched ? namesOf(board, quantity, null).flatMap(({ rows }) => rows).sort((a, b) => a - b) : [];
    const rowIn = new Map(held.map((each, i) => [each, i]));
    const ofFetched = (each: number, steps: number[]): { steps: number[]; value: MonitorMap["value"][0]; usual: MonitorMap["usual"][0]; golden: MonitorMap["value"][0] | null } | null => {
      const i = rowIn.get(each);
      const value = i === undefined || !fetched ? undefined : fetched.value[i];
      return i === undefined || !fetched || !value || value.length !== steps.length ? null : { steps, value, usual: fetched.usual[i], golden: fetched.golden?.[i] ?? null };
    };
    if (view === "model") {
      return ofRank(board, names, rank ?? 0, (each) => {
        if (fetched) return ofFetched(each, board.steps);
        const trend = lines.of(each, statistic);
        const value = trend?.target[String(rank)];
        return trend && value ? { steps: trend.steps, value, usual: usualOf(value), golden: trend.golden && (trend.golden[String(rank)] ?? trend.steps.map(() => null)) } : null;
      });
    }
    return ofStep(board, names, place.step, (each) => {
      if (fetched) return ofFetched(each, board.ranks);
      const trend = lines.of(each, statistic);
      const c = trend?.steps.indexOf(place.step) ?? -1;
      if (!trend || c < 0) return null;
      const value = board.ranks.map((own) => trend.target[String(own)]?.[c] ?? null);
      const begin = Math.max(0, c - 60);
      const usual = board.ranks.map((own) => usualOf((trend.target[String(own)] ?? []).slice(begin, Math.max(c + 1, 10)))[c - begin] ?? null);
      return { value, usual, golden: trend.golden && board.ranks.map((own) => trend.golden?.[String(own)]?.[c] ?? null) };
    });
  }, [board, lines, quantity, statistic, rank, micro, view, view === "ranks" ? place.row : view === "step" ? place.step : 0, row, fetched]);
  return { shown: shown && shown.rows.length > 0 ? shown : null, waits: fetched === "waits" || row === "waits" };
}

// --- the map ---

function ValueMap({ shown, board, chosen, place, colourBy, factor, onPick, setColourBy, setFactor, hasGolden }: {
  shown: Shown; board: Dashboard; chosen: Chosen; place: Place; colourBy: ColourBy; factor: number; onPick: (place: Place) => void;
  setColourBy: (by: ColourBy) => void; setFactor: (factor: number) => void; hasGolden: boolean;
}): ReactNode {
  const say = useText();
  const theme = useStore((state) => state.theme);
  const auto = useMemo(() => factorOf(shown), [shown]);
  const range = useMemo(() => rangeOf(shown), [shown]);
  const full = Math.log(factor || auto);
  const colour = (r: number, c: number): string => {
    const cell = shown.cells[r][c];
    if (!cell || cell.value === null) return fill(null, theme);
    if (colourBy === "golden") return fill(distance(cell.value, cell.golden), theme);
    if (!Number.isFinite(toNumber(cell.value))) return NOT_FINITE[theme];
    if (colourBy === "value") return sequential((Math.log(Math.abs(toNumber(cell.value))) - range[0]) / Math.max(1e-9, range[1] - range[0]), theme);
    const part = logRatio(cell) / full;
    return diverging(Number.isNaN(part) ? 0 : Math.sign(part) * Math.min(1, Math.abs(part)) ** 0.8, theme);
  };
  const describe = (r: number, c: number): string => {
    const cell = shown.cells[r][c];
    if (!cell || cell.value === null) return `${shown.rows[r]} · ${shown.columns[c]}: ${say("noValue")}`;
    return [`${board.rows.name[cell.row]} · ${board.rows.quantity[cell.row]}`, where(cell, board, say), ...values(cell, chosen.statistic, say)].join("\n");
  };
  const rowOf = (row: number): number => (chosen.view === "ranks" ? -1 : shown.rows.indexOf(board.rows.name[row]));
  const columnOf = (step: number): number => {
    if (chosen.view === "step") return -1;
    const found = shown.columns.length === board.columns.length ? board.columns.findIndex(([first, last]) => first <= step && step <= last) : -1;
    return found >= 0 ? found : shown.columns.indexOf(String(step));
  };
  const spot = (at: Place): [number, number] | null => {
    const found: [number, number] = chosen.view === "ranks" ? [at.row === place.row ? board.ranks.indexOf(at.rank) : -1, columnOf(at.step)]
      : chosen.view === "step" ? [rowOf(at.row), at.step === place.step ? board.ranks.indexOf(at.rank) : -1]
        : [rowOf(at.row), columnOf(at.step)];
    return found[0] >= 0 && found[1] >= 0 && found[0] < shown.rows.length ? found : null;
  };
  const isShown = (row: number): boolean => board.rows.quantity[row] === chosen.quantity && (chosen.micro === null || board.rows.micro_step[row] === null || board.rows.micro_step[row] === chosen.micro);
  const dots = useMemo(() => {
    const found: [string, boolean][] = [];
    board.events.forEach((event, i) => {
      if (event.row < 0 || !isShown(event.row) || event.statistic !== chosen.statistic) return;
      for (const rank of chosen.view === "model" ? event.ranks.slice(0, 1) : event.ranks) {
        if (chosen.view === "model" && chosen.rank !== null && !event.ranks.includes(chosen.rank)) continue;
        const at = spot({ row: event.row, rank, step: event.step });
        if (at) found.push([at.join(), i === 0]);
      }
    });
    return new Map(found.sort((a, b) => Number(a[1]) - Number(b[1])));
  }, [shown, board, chosen, place.row, place.step]);
  const mark = isShown(place.row) ? spot(place) : null;
  const gutter = chosen.view === "ranks" ? 76 : Math.min(300, 30 + 6.6 * Math.max(...shown.rows.map((name) => name.length)));
  return (
    <>
      <HeatMap rows={shown.rows.length} columns={shown.columns.length} label={say(chosen.view === "model" ? "viewModel" : chosen.view === "ranks" ? "viewRanks" : "viewStep")}
        gutter={Math.round(gutter)} maxHeight={Math.max(290, window.innerHeight - 500)} cell={{ width: [4, 44], height: [12, 26] }} testid="monitor-map"
        colour={colour} describe={describe} rowLabel={(r) => shown.rows[r]} columnLabel={(c) => shown.columns[c]}
        mark={mark} dots={dots} onPick={(r, c) => { const cell = shown.cells[r][c]; if (cell) onPick({ row: cell.row, rank: cell.rank, step: cell.step }); }} />
      <div className="map-foot">
        <Choice label={say("colourBy")} value={colourBy} onChange={setColourBy}
          options={(hasGolden ? ["golden" as const, "usual" as const, "value" as const] : ["usual" as const, "value" as const]).map((by) => ({ value: by, text: say(by === "golden" ? "byGolden" : by === "usual" ? "byUsual" : "byValue"), title: by === "usual" ? say("usualHint") : undefined }))} />
        {colourBy === "golden" && <Ramp from="≤ 0.01 %" to="100 %" colour={(at) => fill(at, theme)} />}
        {colourBy === "usual" && <Ramp from={`÷${factor || auto}`} middle={say("usual")} to={`×${factor || auto}`} colour={(at) => diverging(Math.sign(2 * at - 1) * Math.abs(2 * at - 1) ** 0.8, theme)} />}
        {colourBy === "value" && <Ramp from={show(Number(Math.exp(range[0]).toPrecision(3)))} to={show(Number(Math.exp(range[1]).toPrecision(3)))} colour={(at) => sequential(at, theme)} />}
        {colourBy === "usual" && (
          <label className="field">{say("scale")} <select value={factor} onChange={(event) => setFactor(Number(event.target.value))}>
            <option value={0}>{say("scaleAuto", auto)}</option>{FACTORS.map((each) => <option key={each} value={each}>×{each}</option>)}
          </select></label>
        )}
        {colourBy !== "golden" && <span className="legend"><i className="legend-cell" style={{ background: NOT_FINITE[theme] }} /> {say("notFinite")}</span>}
        <span className="legend"><i className="legend-cell" style={{ background: fill(null, theme) }} /> {say("noValue")}</span>
        {dots.size > 0 && <span className="legend"><i className="legend-dot" /> {say("marked")}</span>}
      </div>
      <p className="muted small">{say("pickHint")} {shown.lacks.rows && say("partOfRows", ...shown.lacks.rows)} {shown.lacks.steps && say("someSteps", ...shown.lacks.steps)}</p>
    </>
  );
}

type Say = ReturnType<typeof useText>;

function where(cell: Cell, board: Dashboard, say: Say): string {
  const micro = board.rows.micro_step[cell.row];
  return [`${say("step")} ${cell.step}`, board.ranks.length > 1 ? `${say("rank")} ${cell.rank}` : "", micro === null ? "" : `${say("microStep")} ${micro}`].filter(Boolean).join(" · ");
}

function values(cell: Cell, statistic: string, say: Say): string[] {
  const ratio = Math.exp(logRatio(cell));
  const times = Number.isFinite(ratio) && ratio > 0 ? ` (${say("ofUsual", Number(ratio.toPrecision(3)))})` : "";
  const found = [`${statistic} ${show(cell.value)}`, `${say("usual")} ${show(cell.usual)}${times}`];
  if (cell.golden !== undefined) {
    const off = Math.abs(toNumber(cell.value) - toNumber(cell.golden)) / Math.abs(toNumber(cell.golden));
    found.push(`${say("golden")} ${show(cell.golden)}${Number.isFinite(off) ? ` (${say("offBy", Number((100 * off).toPrecision(3)))})` : ""}`);
  }
  return found;
}

function Ramp({ from, middle, to, colour }: { from: string; middle?: string; to: string; colour: (at: number) => string }): ReactNode {
  return (
    <span className="legend">{from}<span className="ramp" aria-hidden="true">{[...Array(15).keys()].map((i) => <i key={i} style={{ background: colour(i / 14) }} title={i === 7 ? middle : undefined} />)}</span>{to}</span>
  );
}

// --- the lines of a place ---

function PlaceLines({ board, row, place, statistic, log, setPlace }: { board: Dashboard; row: RowPart | "waits" | null; place: Place; statistic: string; log: boolean; setPlace: (place: Place) => void }): ReactNode {
  const say = useText();
  const map = board.maps.find((each) => each.statistic === statistic);
  const worst = useMemo(() => (map ? { steps: board.columns.map(([first]) => first), value: [map.value[place.row]], usual: [map.usual[place.row]], golden: map.golden && [map.golden[place.row]] } : null), [map, place.row, board]);
  const alone = useMemo(() => [place.rank], [place.rank]);
  if (row === "waits") return <p className="empty">{say("loading")}</p>;
  const part = row ?? worst;
  if (!part) return null;
  return (
    <>
      {!row && <p className="muted small" data-testid="no-lines">{say("noLines")}</p>}
      <RankLines key={`${place.row} ${statistic}`} {...part} ranks={row ? board.ranks : alone} rank={place.rank} step={place.step} log={log} onStep={(step) => setPlace({ ...place, step })} />
      {row && part.steps.length < board.steps.length && <p className="muted small">{say("someSteps", part.steps.length, board.steps.length)}</p>}
    </>
  );
}

// --- beside the map ---

function Events({ board, place, statistic, choose }: { board: Dashboard; place: Place; statistic: string; choose: (event: MonitorEvent) => void }): ReactNode {
  const say = useText();
  const listed = board.events.reduce((sum, event) => sum + (event.kind === "anomaly" || event.kind === "alarm" ? event.count : 0), 0);
  return (
    <section className="card" data-testid="events">
      <h2>{say("lookAt")}</h2>
      <p className="muted small">
        {board.num_anomalies > 0 ? say("numAnomalies", board.num_anomalies.toLocaleString("en"), board.num_judged.toLocaleString("en")) : say(board.num_judged > 0 ? "noAnomalies" : "notEnough", board.num_judged.toLocaleString("en"))}
        {board.num_alarms > 0 && <> · {say("numAlarms", board.num_alarms.toLocaleString("en"))}</>}
        {listed < board.num_anomalies + board.num_alarms && <> · {say("listedOf")}</>}
      </p>
      <ol className="events">{board.events.map((event, i) => (
        <EventItem key={i} event={event} board={board} isFirst={i === 0} choose={choose}
          isChosen={event.row === place.row && event.step === place.step && event.statistic === statistic} />
      ))}</ol>
    </section>
  );
}

function EventItem({ event, board, isFirst, isChosen, choose }: { event: MonitorEvent; board: Dashboard; isFirst: boolean; isChosen: boolean; choose: (event: MonitorEvent) => void }): ReactNode {
  const say = useText();
  const read = useFindings();
  const data = useStore((state) => state.data);
  const micro = event.row >= 0 ? board.rows.micro_step[event.row] : null;
  const ranks = `${say(event.ranks.length > 1 ? "ranks" : "rank")} ${event.ranks.slice(0, 6).join(", ")}${event.ranks.length > 6 ? ", …" : ""}`;
  const facts = [`${say("step")} ${event.step}`, board.ranks.length > 1 ? ranks : "", micro === null ? "" : `${say("microStep")} ${micro}`, event.count > 1 ? say("eventCount", event.count) : ""].filter(Boolean).join(" · ");
  return (
    <li className={`event ${event.kind}${isFirst ? " first" : ""}${isChosen ? " chosen" : ""}`} data-kind={event.kind}>
      <button className="event-body" disabled={event.row < 0} aria-pressed={isChosen} onClick={() => choose(event)}>
        <span className="event-kind"><Shape verdict={event.kind === "alarm" ? "warning" : "error"} size={13} /> {say(KINDS[event.kind])} <span className="muted">{facts}</span></span>
        {event.row >= 0 && <span className="event-name"><code><Name value={board.rows.name[event.row]} /></code> <span className="muted">{board.rows.quantity[event.row]}</span></span>}
        <span className="event-text">{read(event.text)}</span>
      </button>
      {event.unit !== null && data.units[event.unit] && <button className="link small" data-testid="open-dump" onClick={() => void jump(event.unit ?? 0, null)}>{say("openDump", event.step)}</button>}
      {event.command && (isChosen || event.kind === "alarm") && <div className="event-dump"><span className="muted small">{say("dumpBeside", event.step)}</span><Command value={event.command} /></div>}
    </li>
  );
}

function Coverage({ rows }: { rows: CoverageRow[] }): ReactNode {
  const say = useText();
  const ranks = Math.max(...rows.map((row) => row.ranks));
  return (
    <section className="card" data-testid="coverage">
      <h2>{say("coverage")}</h2>
      <p className="muted small">{ranks > 1 ? say("coverageHint", ranks) : say("coverageHintOne")}</p>
      <table className="coverage">
        <thead><tr>{(["quantity", "expected", "seen", "finite", "firstStep"] as const).map((key) => <th key={key}>{say(key)}</th>)}</tr></thead>
        <tbody>{rows.flatMap((row) => [
          <tr key={row.quantity}>
            <td><code>{row.quantity}</code></td><td>{row.expected ?? "–"}</td>
            <td className={row.expected !== null && row.seen < row.expected ? "short" : ""}>{row.seen}</td>
            <td className={row.finite < row.seen ? "short" : ""}>{row.finite}</td><td>{row.first_step ?? "–"}</td>
          </tr>,
          ...(row.missing.length > 0 ? [<tr key={`${row.quantity} missing`} className="missing"><td colSpan={5}>{say("missingNames", row.missing.join(", "))}</td></tr>] : []),
        ])}</tbody>
      </table>
    </section>
  );
}

function Notes(): ReactNode {
  const say = useText();
  const read = useFindings();
  const notes = useStore((state) => state.data.notes);
  if (notes.length === 0) return null;
  return <section className="card" data-testid="monitor-notes"><h2>{say("notes")}</h2><ul className="notes">{notes.map((note, i) => <li key={i}>{read(note)}</li>)}</ul></section>;
}
