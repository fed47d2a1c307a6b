/** Where in a tensor an error sits. */
import { type ReactNode, useMemo } from "react";
import { diverging, fill } from "./colour";
import { type Num, type TensorMap, show, toNumber } from "./data";
import { HeatMap } from "./heatmap";
import { jump, unitName, useStore, useText } from "./store";

export function Tensors(): ReactNode {
  const say = useText();
  const { data, tensor } = useStore();
  if (data.tensors.length === 0) return <div className="page-scroll"><p className="empty">{say("tensorNone")}</p></div>;
  const map = data.tensors[tensor] ?? data.tensors[0];
  return (
    <div className="page-scroll">
      <section className="card wide">
        <div className="toolbar">
          <select aria-label={say("tensors")} value={data.tensors.indexOf(map)} onChange={(event) => useStore.setState({ tensor: Number(event.target.value) })}>
            {data.tensors.map((item, i) => <option key={`${item.unit} ${item.node} ${item.slot}`} value={i}>{[unitName(data, item.unit), `${item.node}.${item.slot}`].filter((part) => part !== "–").join(" · ")}</option>)}
          </select>
          <button className="button small" onClick={() => void jump(map.unit, map.node)}>{say("showNode")}</button>
        </div>
        <h2><code>{map.node}</code> <span className="muted">{map.slot}</span></h2>
        <p className="muted">{say("tensorBins", map.shape[0], map.shape[1], map.sizes?.[0] ?? map.shape[0], map.sizes?.[1] ?? map.shape[1])}
          {map.worst.length > 0 && <> · {say("tensorWorst", map.worst.join(", "))}</>}</p>
        {map.tokens && <Tokens title={say("tensorTokens")} map={map} tokens={map.tokens} />}
        <div className="tensor-maps">
          <Map title={say("tensorError")} map={map} values={map.error} error />
          {map.target && <Map title={say("target")} map={map} values={map.target} />}
          {map.golden && <Map title={say("golden")} map={map} values={map.golden} />}
        </div>
      </section>
    </div>
  );
}

function Map({ title, map, values, error = false }: { title: string; map: TensorMap; values: Num[][]; error?: boolean }): ReactNode {
  const theme = useStore((state) => state.theme);
  const top = useMemo(() => {
    let most = 0;
    for (const set of error ? [values] : [map.target, map.golden]) {
      for (const line of set ?? []) for (const value of line) {
        const size = Math.abs(toNumber(value));
        if (Number.isFinite(size) && size > most) most = size;
      }
    }
    return most || 1;
  }, [map, values, error]);
  const colour = (row: number, column: number): string => {
    const value = toNumber(values[row]?.[column]);
    if (!error) return diverging(value / top, theme);
    return fill(Number.isNaN(value) ? 1 : Math.sqrt(Math.min(1, value / top)), theme);
  };
  const size = Math.max(map.shape[0], map.shape[1]);
  const each = Math.max(3, Math.min(26, Math.floor(390 / size)));
  const tall = map.shape[0] <= 4 ? 34 : each;
  return (
    <figure>
      <figcaption><b>{title}</b> <span className="muted">{map.axes[0]} ↓ × {map.axes[1]} → · max {show(Number(top.toPrecision(4)))}</span></figcaption>
      <HeatMap rows={map.shape[0]} columns={map.shape[1]} label={`${title} ${map.node}`} gutter={0} maxHeight={460} testid={error ? "tensor-error" : undefined}
        cell={{ width: [each, each], height: [tall, tall] }} colour={colour}
        describe={(row, column) => `${map.axes[0]} ${span(map, 0, row)} · ${map.axes[1]} ${span(map, 1, column)} · ${show(values[row]?.[column])}`}
        rowLabel={String} columnLabel={String} />
    </figure>
  );
}

/** A strip with a cell for each token, and a line for each sequence. */
function Tokens({ title, map, tokens }: { title: string; map: TensorMap; tokens: Num[][] }): ReactNode {
  const theme = useStore((state) => state.theme);
  const [rows, columns] = [tokens.length, tokens[0]?.length ?? 0];
  const [sequences, places] = map.token_sizes ?? [rows, columns];
  const top = useMemo(() => tokens.flat().map(toNumber).filter(Number.isFinite).reduce((a, b) => Math.max(a, b), 0) || 1, [tokens]);
  return (
    <figure>
      <figcaption><b>{title}</b> <span className="muted">sequence ↓ × token → · max {show(Number(top.toPrecision(4)))}</span></figcaption>
      <HeatMap rows={rows} columns={columns} label={`${title} ${map.node}`} gutter={0} maxHeight={200} testid="token-error"
        cell={{ width: [2, 26], height: rows === 1 ? [34, 34] : [6, 26] }}
        colour={(row, column) => fill(Math.sqrt(Math.min(1, toNumber(tokens[row]?.[column]) / top)), theme)}
        describe={(row, column) => `sequence ${bin(sequences, rows, row)} · token ${bin(places, columns, column)} · ${show(tokens[row]?.[column])}`}
        rowLabel={String} columnLabel={String} />
    </figure>
  );
}

/** The places of a tensor's axis that a bin covers. */
function span(map: TensorMap, axis: 0 | 1, index: number): string {
  return bin(map.sizes?.[axis] ?? map.shape[axis], map.shape[axis], index);
}

function bin(places: number, bins: number, index: number): string {
  const first = Math.ceil((index * places) / bins);
  const last = Math.max(first, Math.ceil(((index + 1) * places) / bins) - 1);
  return first === last ? String(first) : `${first}–${last}`;
}
