/** What a step is sensitive to: how calls amplify last-bit changes, or which modules explain its loss. */
import { type ReactNode, useState } from "react";
import { sequential } from "./colour";
import { type RaisedPart, type SensitiveCall, show, toNumber } from "./data";
import { Name } from "./parts";
import { useFindings, useStore, useText } from "./store";

const NUM_LISTED = 20;

export function SensitivityTab(): ReactNode {
  const read = useFindings();
  const say = useText();
  const found = useStore((state) => state.data.sensitivity);
  if (!found) return null;
  return (
    <div className="summary sensitivity">
      <section className="card wide">
        <h1 data-testid="sensitivity-headline"><Name value={read(found.headline)} /></h1>
        {found.num_pairs > 0 && <p className="muted">{say("pairsTaken", found.num_pairs)}</p>}
        {found.notes.map((note, i) => <p key={i} className="muted">{read(note)}</p>)}
        {found.parts.length > 0 && <Parts parts={found.parts} />}
        {found.calls.length > 0 && <Conditions calls={found.calls} />}
      </section>
    </div>
  );
}

/** Sets of modules by their share of the difference, with a bar for each. */
function Parts({ parts }: { parts: RaisedPart[] }): ReactNode {
  const say = useText();
  const theme = useStore((state) => state.theme);
  const largest = Math.max(...parts.map(({ share }) => Math.abs(toNumber(share))), 1e-30);
  return (
    <table className="evidence" data-testid="raised-parts">
      <thead><tr><th>{say("modulesColumn")}</th><th colSpan={2}>{say("shareColumn")}</th><th className="number">{say("timesNoise")}</th><th className="number">{say("lossColumn")}</th></tr></thead>
      <tbody>
        {parts.map((part, i) => {
          const at = Math.abs(toNumber(part.share)) / largest;
          return (
            <tr key={i} data-share={toNumber(part.share)}>
              <td><Name value={part.modules} />{part.is_joint && <span className="muted"> {say("onlyTogether")}</span>}</td>
              <td className="share-bar"><span style={{ width: `${100 * at}%`, background: sequential(at, theme) }} /></td>
              <td className="number">{(100 * toNumber(part.share)).toPrecision(3)} %</td>
              <td className="number">{show(part.times)}</td>
              <td className="number">{part.loss === null ? "" : toNumber(part.loss).toPrecision(8)}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

/** One bar per call, in the order of the step, and the calls that amplify most. */
function Conditions({ calls }: { calls: SensitiveCall[] }): ReactNode {
  const say = useText();
  const theme = useStore((state) => state.theme);
  const heights = calls.map(({ amplification }) => heightOf(toNumber(amplification)));
  const largest = Math.max(...heights, 1);
  const [chosen, setChosen] = useState(heights.indexOf(Math.max(...heights)));
  const ranked = calls.map((_call, i) => i).sort((a, b) => heights[b] - heights[a] || a - b).slice(0, NUM_LISTED);
  return (
    <>
      <p className="muted">{say("conditionHint")}</p>
      <div className="condition-map" role="listbox" aria-label={say("sensitivity")} data-testid="condition-map">
        {calls.map((call, i) => (
          <button key={i} role="option" aria-selected={i === chosen} data-call={call.entry} title={`${call.entry}: ${show(call.amplification)}`}
            style={{ height: `${Math.max(3, 100 * heights[i] / largest)}%`, background: sequential(heights[i] / largest, theme) }} onClick={() => setChosen(i)} />
        ))}
      </div>
      <table className="evidence" data-testid="conditions">
        <thead><tr><th>{say("callColumn")}</th><th>{say("dataType")}</th><th className="number">{say("amplifiesColumn")}</th><th className="number">{say("noiseColumn")}</th></tr></thead>
        <tbody>
          {[chosen, ...ranked.filter((i) => i !== chosen)].map((i) => (
            <tr key={i} className={i === chosen ? "chosen" : undefined} onClick={() => setChosen(i)}>
              <td><Name value={calls[i].entry} /></td><td>{calls[i].tensors}</td>
              <td className="number">{show(calls[i].amplification)}</td><td className="number">{show(calls[i].times)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

/** Binary logarithm of one more than a factor; infinite ones count as very large. */
function heightOf(factor: number): number {
  return Number.isFinite(factor) ? Math.log2(1 + Math.max(0, factor)) : 64;
}
