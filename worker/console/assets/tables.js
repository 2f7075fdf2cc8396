// Tables of a source and topics of a sink, with their counts and lags.
import { connectorPath, get } from "./api.js";
import { bytes, count, seconds } from "./format.js";
import { useAnswer } from "./live.js";
import { Answer, Card, Pill, Table } from "./parts.js";
import { html } from "./ui.js";

function joined(tasks, names) {
  const found = new Map();
  for (const task of tasks) {
    for (const [column, metric] of Object.entries(names)) {
      for (const [name, value] of Object.entries(task.metrics[metric] || {})) {
        if (!found.has(name)) found.set(name, { name });
        const row = found.get(name);
        row[column] = column === "lag_s" ? Math.max(row[column] ?? 0, value ?? 0) : (row[column] ?? 0) + (value ?? 0);
      }
    }
    for (const held of task.metrics.quarantine || []) {
      const name = typeof held === "string" ? held : held.table;
      found.set(name, { ...(found.get(name) || { name }), held: true });
    }
    for (const name of Object.keys(task.metrics.paused || {})) found.set(name, { ...(found.get(name) || { name }), held: true });
  }
  return [...found.values()].sort((one, two) => (two.held ? 1 : 0) - (one.held ? 1 : 0) || one.name.localeCompare(two.name));
}

export function TablesPart({ connector, tasks }) {
  const topics = useAnswer((signal) => get(connectorPath(connector.name, "/topics"), { details: true }, { signal }), [connector.version, tasks.length]);
  const isSink = connector.type === "sink";
  const names = isSink
    ? { lag_s: "topic_lag_s", records: "topic_lag_records", bytes: "topic_lag_bytes" }
    : { total: "table_records", lag_s: "table_lag_s", bytes: "table_lag_bytes" };
  const state = (row) => (row.held ? html`<${Pill} state="degraded" title="Held back while the others go on" /> held back` : html`<${Pill} state="ok" />`);
  const columns = [
    { title: isSink ? "Topic" : "Table", wide: true, of: (row) => row.name },
    { title: "State", of: state },
    ...(isSink
      ? [{ title: "Not applied yet", number: true, of: (row) => count(row.records) }]
      : [{ title: "Records", number: true, of: (row) => count(row.total) }]),
    { title: "Lag", number: true, of: (row) => seconds(row.lag_s) },
    { title: "Behind", number: true, of: (row) => bytes(row.bytes) },
  ];
  const written = joined(tasks, { rows: "tables" });
  return html`
    <${Card} title=${isSink ? "Topics" : "Tables"}><${Table} caption=${isSink ? "Topics" : "Tables"} columns=${columns}
      rows=${joined(tasks, names)} keyOf=${(row) => row.name} empty="Nothing is known yet: its tasks have not told." /></${Card}>
    ${isSink && written.length > 0 && html`<${Card} title="Tables written"><${Table} caption="Tables written" rows=${written} keyOf=${(row) => row.name}
      columns=${[{ title: "Table", wide: true, of: (row) => row.name }, { title: "Rows", number: true, of: (row) => count(row.rows) }]} /></${Card}>`}
    <${Card} title="Topics in use"><${Answer} found=${topics}>${(content) => {
      const used = content[connector.name]?.topics || [];
      return used.length ? html`<ul class="columns">${used.map((topic) => html`<li key=${topic}>${topic}</li>`)}</ul>` : html`<p class="quiet">None yet.</p>`;
    }}</${Answer}></${Card}>`;
}
