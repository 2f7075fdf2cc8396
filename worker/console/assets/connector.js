// One connector: its parts as pages of their own, and its verbs.
import { call, connectorPath, get } from "./api.js";
import { ConfigPart } from "./config.js";
import { DeadLettersPart } from "./letters.js";
import { DoctorPart } from "./doctor.js";
import { ExplainPart, TailPart } from "./rows.js";
import { JournalTable } from "./journal.js";
import { OffsetsPart } from "./offsets.js";
import { SnapshotsPart } from "./snapshots.js";
import { StatePart } from "./state.js";
import { TablesPart } from "./tables.js";
import { VerifyPart } from "./verify.js";
import { may, refresh, useAnswer, useLive } from "./live.js";
import { Action, Answer, Card, Pill, href } from "./parts.js";
import { html } from "./ui.js";

// Classes without tables: they take no snapshots, keep no dead letters and are not compared.
const PLAIN = /file|datagen/i;

function partsOf(connector) {
  const { name, type } = connector;
  const operates = may("operate", name);
  const hasTables = !PLAIN.test(connector.class);
  return [
    ["state", "State", StatePart, true],
    ["tables", type === "sink" ? "Topics" : "Tables", TablesPart, true],
    ["snapshots", "Snapshots", SnapshotsPart, type === "source" && hasTables],
    ["config", "Config", ConfigPart, true],
    ["offsets", "Offsets", OffsetsPart, true],
    ["letters", "Dead letters", DeadLettersPart, type === "sink" && hasTables],
    ["verify", "Verify", VerifyPart, type === "sink" && hasTables && operates],
    ["tail", "Tail", TailPart, operates],
    ["explain", "Explain", ExplainPart, operates],
    ["doctor", "Doctor", DoctorPart, operates],
    ["journal", "Journal", JournalPart, true],
  ].filter((part) => part[3]);
}

export function ConnectorPage({ name, part }) {
  const { connectors, cluster } = useLive();
  if (!connectors) return html`<h1>${name}</h1><p class="loading" role="status">Loading …</p>`;
  const connector = connectors.find((one) => one.name === name);
  if (!connector) {
    return html`<h1>${name}</h1><p>There is no connector of this name, or you may not see it. <a href="#/">Overview</a></p>`;
  }
  const parts = partsOf(connector);
  const [id, label, Part] = parts.find((one) => one[0] === part) || parts[0];
  const tasks = cluster.tasks.filter((task) => task.connector === name);
  return html`<div class="title">
      <h1>${name}</h1>
      <p><${Pill} state=${connector.state} /> <${Pill} state=${connector.health} /> <span class="quiet">${connector.class} ${connector.type}</span>
        ${connector.reason && html` <span>${connector.reason}</span>`}</p>
      <${Verbs} connector=${connector} />
    </div>
    <nav class="tabs" aria-label="Parts of the connector">${parts.map(([to, text]) => html`<a key=${to} href=${href("connectors", name, to)}
      aria-current=${to === id ? "page" : undefined}>${text}</a>`)}</nav>
    <div aria-label=${label} role="region"><${Part} key=${id} ...${{ connector, tasks }} /></div>`;
}

function Verbs({ connector }) {
  const { name, state } = connector;
  const to = (verb, done, query = {}, method = "PUT") => async () => {
    await call(method, connectorPath(name, `/${verb}`), { query: { ...query, details: true } });
    refresh();
    return `${name} ${done}`;
  };
  if (!may("operate", name)) return html`<p class="quiet small">You may look at this connector and not operate it.</p>`;
  return html`<div class="verbs" role="group" aria-label="Operate the connector">
    ${state === "RUNNING" && html`<${Action} label="Pause" title=${`Pause ${name}`} run=${to("pause", "is being paused")}
      text="Its tasks stay where they are and do nothing. A database keeps its log for them meanwhile." />`}
    ${state !== "RUNNING" && state !== "FAILED" && html`<${Action} label="Resume" tone="primary" title=${`Resume ${name}`} run=${to("resume", "is being resumed")}
      text="Its tasks go on from where they were." />`}
    ${state !== "STOPPED" && html`<${Action} label="Restart" title=${`Restart ${name}`} fields=${[{ name: "onlyFailed", label: "Only what has failed" }]}
      run=${(values) => to("restart", "is being restarted", { includeTasks: true, onlyFailed: Boolean(values.onlyFailed) }, "POST")()}
      text="Its tasks end and start again, from their stored positions." />`}
    ${state !== "STOPPED" && html`<${Action} label="Stop" title=${`Stop ${name}`} run=${to("stop", "is being stopped")}
      text="Its tasks end. The config and the positions stay. A database keeps its log until the connector is resumed or deleted." />`}
    ${may("admin", name) && html`<${Delete} connector=${connector} />`}
  </div>`;
}

function Delete({ connector }) {
  const { name } = connector;
  const drops = (values) => ["slot", "publication"].filter((kind) => values[kind]);
  const fields = /postgres/i.test(connector.class)
    ? [{ name: "slot", label: "Drop its slot in the database" }, { name: "publication", label: "Drop its publication in the database" }]
    : [];
  const query = (values) => (drops(values).length ? { drop: drops(values).join(","), details: true } : { details: true });
  const preview = async (values) => {
    const found = await call("DELETE", connectorPath(name), { query: { ...query(values), dry_run: true } });
    const dropped = (found.drop || []).map((item) => `${item.kind} ${item.name}`).join(", ");
    return `Tasks that end: ${found.tasks?.stop?.length ?? 0}.${dropped ? ` Dropped in the database: ${dropped}.` : ""}`;
  };
  const run = async (values) => {
    const answer = await call("DELETE", connectorPath(name), { query: query(values) });
    location.hash = "#/";
    refresh();
    const refused = (answer?.refused || []).map((item) => `${item.kind} ${item.name}: ${item.error.message}`);
    return refused.length ? { text: `${name} is deleted. Not dropped: ${refused.join("; ")}`, bad: true } : `${name} is deleted`;
  };
  return html`<${Action} label="Delete" tone="danger" title=${`Delete ${name}`} confirm=${name} ...${{ fields, preview, run }}
    text="The config is gone for good. Topics and tables stay. A connector of the same name goes on from the stored positions." />`;
}

function JournalPart({ connector }) {
  const { cluster } = useLive();
  const found = useAnswer((signal) => get("v1/cluster/journal", { limit: 500 }, { signal }), [cluster?.version]);
  return html`<${Card} title="Why its tasks moved"><${Answer} found=${found}>${(content) => html`<${JournalTable}
    entries=${content.entries.map((entry) => ({ ...entry, moves: entry.moves.filter((move) => move.connector === connector.name) })).filter((entry) => entry.moves.length)} />`}
  </${Answer}></${Card}>`;
}

