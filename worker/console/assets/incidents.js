// What was wrong with connectors for longer than a moment, who was told, and how fresh connectors were.
import { get } from "./api.js";
import { count, isNumber } from "./format.js";
import { useAnswer, useLive } from "./live.js";
import { Answer, Card, Code, Pill, Table, When, href } from "./parts.js";
import { html } from "./ui.js";

const percent = (value, digits) => (isNumber(value) ? `${(value * 100).toFixed(digits)} %` : "–");
const connector = (name) => html`<a href=${href("connectors", name)}>${name}</a>`;

function IncidentTable({ rows }) {
  return html`<${Table} caption="Incidents" rows=${rows} keyOf=${(row) => row.id} empty="There was no incident in the last 30 days." columns=${[
    { title: "Since", of: (row) => html`<${When} ms=${row.opened} />` },
    { title: "Until", of: (row) => (row.resolved === null ? html`<${Pill} state=${row.severity} title="It is not over." />` : html`<${When} ms=${row.resolved} />`) },
    { title: "Connector", of: (row) => connector(row.connector) },
    { title: "What", wide: true, of: (row) => html`${row.summary} <${Code} name=${row.code} /> ${row.tables.length > 0 && html`<span class="quiet">${row.tables.join(", ")}</span>`}` },
    { title: "Told", of: (row) => Object.entries(row.told).map(([name, stage]) => `${name}: ${stage === "wanted" ? "not yet" : stage}`).join(", ") || "nobody" },
  ]} />`;
}

function ObjectiveTable({ rows }) {
  return html`<${Table} caption="Objectives" rows=${rows} keyOf=${(row) => `${row.objective} ${row.connector}`} empty="No objective has a target." columns=${[
    { title: "Objective", of: (row) => row.objective },
    { title: "Connector", of: (row) => connector(row.connector) },
    { title: "Target", number: true, of: (row) => percent(row.target, 3) },
    { title: "Held", number: true, of: (row) => percent(row.held, 3) },
    { title: "Budget left", number: true, of: (row) => percent(row.budget_left, 1) },
    { title: "Late", number: true, of: (row) => `${count(row.late_s)} s` },
  ]} />`;
}

export function Incidents() {
  const { at } = useLive();
  const found = useAnswer((signal) => get("v1/incidents", {}, { signal }), [], at);
  if (found.error?.status === 501) {
    return html`<h1>Incidents</h1><p>This cluster tells nobody of trouble: the worker property <code>alerts.file</code> is not set.</p>`;
  }
  return html`<h1>Incidents</h1><${Answer} found=${found}>${({ incidents, objectives, receivers }) => html`
    ${Object.entries(receivers).map(([name, why]) => html`<p class="problem" key=${name}>The receiver ${name} takes no messages: ${why}.</p>`)}
    <${Card} title="What was wrong"><${IncidentTable} rows=${incidents} /></${Card}>
    <${Card} title="How fresh connectors were in 30 days"><${ObjectiveTable} rows=${objectives} /></${Card}>`}</${Answer}>`;
}
