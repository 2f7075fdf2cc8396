// Snapshots of a source: how far they are, and their verbs.
import { call, connectorPath, get, segment } from "./api.js";
import { bytes, count, rate, seconds } from "./format.js";
import { may, useAnswer, useLive } from "./live.js";
import { Action, Answer, Card, Pill, Problem, Progress, Table, When, say } from "./parts.js";
import { html, useEffect, useState } from "./ui.js";

const ENDED = ["COMPLETED", "CANCELLED", "FAILED"];

export function SnapshotsPart({ connector, tasks }) {
  const { at } = useLive();
  const [again, setAgain] = useState(0);
  const { name } = connector;
  const path = `v1/${connectorPath(name, "/snapshots")}`;
  const found = useAnswer((signal) => get(path, {}, { signal }), [again], at);
  const [tables, setTables] = useState([]);
  useEffect(() => {
    setTables(Object.keys(tasks[0]?.metrics.table_records || {}));
  }, [tasks.length]);
  const done = () => setAgain((number) => number + 1);
  return html`
    ${may("operate", name) && html`<${NewSnapshot} ...${{ path, tables, done }} />`}
    <${Card} title="Snapshots"><${Answer} found=${found}>${(content) => html`<${List} ...${{ path, name, done }} snapshots=${[...content.snapshots].reverse()} />`}</${Answer}></${Card}>`;
}

function List({ path, name, snapshots, done }) {
  const change = (method, verb, words) => async () => {
    await call(method, `${path}/${verb}`);
    done();
    return words;
  };
  const verbs = (one) => {
    if (ENDED.includes(one.state) || one.wanted === "CANCELLED") return null;
    const id = segment(one.id);
    return html`<span class="verbs">
      ${one.wanted === "RUNNING"
        ? html`<${Action} label="Pause" title=${`Pause snapshot ${one.id}`} text="It goes on where it was when it is resumed." run=${change("PUT", `${id}/pause`, "The snapshot is being paused")} />`
        : html`<${Action} label="Resume" title=${`Resume snapshot ${one.id}`} text="It goes on where it was." run=${change("PUT", `${id}/resume`, "The snapshot is being resumed")} />`}
      <${Action} label="Cancel" tone="danger" title=${`Cancel snapshot ${one.id}`} text="Rows that were read stay in the topics." run=${change("DELETE", id, "The snapshot is being cancelled")} />
    </span>`;
  };
  const columns = [
    { title: "Snapshot", of: (one) => html`${one.id} <span class="quiet">${one.origin}</span>` },
    { title: "State", of: (one) => html`<${Pill} state=${one.state} />${one.waits_for ? ` waits for ${one.waits_for}` : ""}` },
    { title: "Tables", of: (one) => html`${one.tables_total ? html`<${Progress} done=${one.tables_done ?? 0} total=${one.tables_total} label=${`Tables of snapshot ${one.id}`} /> ${one.tables_done ?? 0} of ${one.tables_total}` : "–"}
      <span class="quiet"> ${one.tables.join(", ")}</span>` },
    { title: "Rows", number: true, of: (one) => html`${count(one.rows)}${one.rows_estimate ? ` of about ${count(one.rows_estimate)}` : ""}` },
    { title: "Bytes", number: true, of: (one) => bytes(one.bytes) },
    { title: "Pace", number: true, of: (one) => (ENDED.includes(one.state) ? "–" : rate(one.rows_per_s)) },
    { title: "Left", number: true, of: (one) => (ENDED.includes(one.state) ? "–" : seconds(one.eta_s)) },
    { title: "Began", of: (one) => html`<${When} ms=${one.started_ms ?? one.created_ms} />` },
  ];
  if (may("operate", name) && snapshots.some((one) => !ENDED.includes(one.state))) columns.push({ title: "Verbs", of: verbs });
  return html`<${Table} caption="Snapshots" rows=${snapshots} keyOf=${(one) => one.id} columns=${columns} />
    ${snapshots.filter((one) => one.error).map((one) => html`<${Problem} key=${one.id} title=${`Snapshot ${one.id}`} error=${one.error} />`)}`;
}

function NewSnapshot({ path, tables, done }) {
  const [text, setText] = useState("");
  const [limit, setLimit] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    const body = { tables: text.split(/[\s,]+/).filter(Boolean) };
    if (limit) body.rows_per_s = Number(limit);
    try {
      await call("POST", path, { body });
      setText("");
      say("The snapshot begins");
      done();
    } catch (failed) {
      setError(failed);
    } finally {
      setBusy(false);
    }
  };
  return html`<${Card} title="Read tables again"><form class="row" onSubmit=${submit}>
    <label class="grow">Tables, as <code>schema.table</code> or expressions<input required list="known-tables" autocapitalize="off" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
    <datalist id="known-tables">${tables.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>
    <label>Rows a second, at most<input type="number" min="1" value=${limit} onInput=${(event) => setLimit(event.target.value)} /></label>
    <button class="primary" disabled=${busy}>Begin</button>
  </form><${Problem} error=${error} /></${Card}>`;
}
