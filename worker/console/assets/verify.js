// The comparison of a sink's warehouse with its source.
import { call, connectorPath, get } from "./api.js";
import { count, plural, seconds } from "./format.js";
import { useAnswer, useLive } from "./live.js";
import { Action, Card, Facts, Pill, Problem, Progress, Table, When } from "./parts.js";
import { html, useState } from "./ui.js";

export function VerifyPart({ connector }) {
  const { at } = useLive();
  const { name } = connector;
  const path = `v1/${connectorPath(name, "/verify")}`;
  const [again, setAgain] = useState(0);
  const [runs, setRuns] = useState(true);
  const found = useAnswer(
    (signal) => get(path, {}, { signal }).then(
      (one) => { setRuns(one.state === "running"); return one; },
      (error) => { if (error.status === 404) setRuns(false); throw error; },
    ),
    [again], runs ? at : 0,
  );
  const begin = async () => {
    await call("POST", path);
    setRuns(true);
    setAgain((number) => number + 1);
    return "The comparison begins";
  };
  const actions = html`<${Action} label="Compare now" tone="primary" title=${`Compare ${name} with its source`} run=${begin}
    text="Every row is read on both sides, while changes go on. That costs both databases time." />`;
  const never = found.error?.status === 404;
  return html`<${Card} title="Comparison with the source" actions=${actions}>
    ${never && html`<p class="quiet">It has not been compared yet.</p>`}
    ${found.error && !never && html`<${Problem} error=${found.error} />`}
    ${!never && found.content && html`<${Result} comparison=${found.content} />`}
  </${Card}>`;
}

function Result({ comparison }) {
  const { state, progress, result, error } = comparison;
  return html`<${Facts} items=${[
      ["State", html`<${Pill} state=${state} />`],
      ["Verdict", result && html`<${Pill} state=${result.verdict} />`],
      ["Source", comparison.source],
      ["Began", html`<${When} ms=${comparison.started} />`],
      ["Took", result && seconds(result.seconds)],
      ["Progress", state === "running" && html`<${Progress} done=${progress.rows ?? 0} total=${progress.rows_expected ?? 0} label="Rows compared" />`],
      ["Differences", result && count(result.differences)],
      ["Undecided", result && count(result.undecided)],
    ]} />
    <${Problem} error=${error} />
    ${(result?.notes || []).map((note) => html`<p class="small" key=${note}>${note}</p>`)}
    ${result && html`<${Table} caption="Tables compared" rows=${result.tables} keyOf=${(one) => one.table} columns=${[
      { title: "Table", wide: true, of: (one) => one.table },
      { title: "Verdict", of: (one) => html`<${Pill} state=${one.verdict} />${one.reason ? ` ${one.reason}` : ""}` },
      { title: "Rows: source / warehouse", number: true, of: (one) => `${count(one.rows?.source)} / ${count(one.rows?.warehouse)}` },
      { title: "Differences", of: (one) => Object.entries(one.differences || {}).filter(([, number]) => number).map(([kind, number]) => `${plural(number, kind, kind)}`).join(", ") || "none" },
    ]} />`}
    ${result?.verdict === "different" && html`<p>What to do: <code>cdcworker verify ${comparison.connector} --repair</code> has the source send these rows again.</p>`}`;
}
