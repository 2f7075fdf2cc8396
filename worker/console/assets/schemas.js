// The schema log: subjects, and how their schemas changed.
import { get, segment } from "./api.js";
import { useAnswer, useLive } from "./live.js";
import { Answer, Card, Table, href } from "./parts.js";
import { html, useState } from "./ui.js";

export function Schemas() {
  const { cluster } = useLive();
  const [filter, setFilter] = useState("");
  const found = useAnswer((signal) => get("v1/schemas", {}, { signal }), [cluster?.version]);
  return html`<h1>Topics and schemas</h1><${Card} title="Subjects"><${Answer} found=${found}>${({ subjects }) => {
    const rows = subjects.filter((one) => one.subject.toLowerCase().includes(filter.toLowerCase()));
    return html`${subjects.length > 5 && html`<label class="filter">Filter<input type="search" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></label>`}
      <${Table} caption="Subjects" rows=${rows} keyOf=${(one) => one.subject} empty="No schema has been registered yet." columns=${[
        { title: "Subject", wide: true, of: (one) => html`<a href=${href("schemas", one.subject)}>${one.subject}</a>` },
        { title: "Table", of: (one) => one.table || "–" },
        { title: "Versions", number: true, of: (one) => one.versions },
        { title: "Last change", of: (one) => one.change || "–" },
      ]} />`;
  }}</${Answer}></${Card}>`;
}

function columnsOf(version, before) {
  const gone = version.removed.map((name) => ({ name, type: before?.columns[name] || "", mark: "removed" }));
  const own = Object.entries(version.columns).map(([name, type]) => ({
    name, type, was: before?.columns[name], mark: version.added.includes(name) ? "added" : version.retyped.includes(name) ? "other type" : "",
  }));
  return [...own, ...gone];
}

const TONE = { __proto__: null, added: "good", removed: "bad", "other type": "warn" };

export function SchemaHistory({ subject }) {
  const found = useAnswer((signal) => get(`v1/schemas/${segment(subject)}/history`, {}, { signal }), [subject]);
  return html`<h1>${subject}</h1><p><a href="#/schemas">All subjects</a></p>
    <${Answer} found=${found}>${({ versions }) => [...versions].reverse().map((version) => {
      const before = versions.find((one) => one.version === version.version - 1);
      return html`<${Card} key=${version.version} title=${`Version ${version.version}`}>
        <p class="small"><span class="quiet">id</span> ${version.id ?? "–"} <span class="quiet">change</span> ${version.change || "–"}
          ${version.table && html` <span class="quiet">table</span> ${version.table.path.join(".")}`}
          ${version.effective && html` <span class="quiet">from LSN</span> ${version.effective.commit_lsn}`}</p>
        ${version.ddl && html`<pre>${version.ddl}</pre>`}
        <${Table} caption=${`Columns of version ${version.version}`} rows=${columnsOf(version, before)} keyOf=${(one) => one.name} columns=${[
          { title: "Column", of: (one) => one.name },
          { title: "Type", wide: true, of: (one) => html`<code>${one.type}</code>` },
          { title: "Change", of: (one) => (one.mark ? html`<span class="pill ${TONE[one.mark]}">${one.mark}</span>${one.mark === "other type" ? html` was <code>${one.was}</code>` : ""}` : "–") },
        ]} /></${Card}>`;
    })}</${Answer}>`;
}

