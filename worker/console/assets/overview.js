// The cluster at a glance: what needs attention first, then connectors and workers.
import { Chart, Sparkline } from "./chart.js";
import { bytes, count, isNumber, plural, rate, seconds } from "./format.js";
import { historyOf, maySomewhere, useLive } from "./live.js";
import { Card, Code, Pill, Table, TaskStates, href } from "./parts.js";
import { html, useState } from "./ui.js";

const SLOT_BYTES = 2 ** 30;
const ATTENTION_MAX = 100;
const LINKS_MAX = 50;

export function Overview() {
  const { cluster, connectors } = useLive();
  if (!cluster) return html`<h1>Overview</h1><p class="loading" role="status">Loading …</p>`;
  return html`<h1>Overview</h1>
    <${Tiles} ...${{ cluster, connectors }} />
    <${Attention} ...${{ cluster, connectors }} />
    ${connectors.length > 0 && html`<${Charts} connectors=${connectors} />`}
    <${Connectors} connectors=${connectors} />
    <${Workers} cluster=${cluster} />`;
}

function Tiles({ cluster, connectors }) {
  const alive = cluster.workers.filter((worker) => worker.alive).length;
  const healthy = connectors.filter((connector) => connector.health === "healthy").length;
  const running = cluster.tasks.filter((task) => task.state === "RUNNING").length;
  const lags = connectors.map((connector) => connector.lag_s).filter(isNumber);
  const rates = connectors.map((connector) => connector.per_s).filter(isNumber);
  const tiles = [
    ["Connectors healthy", `${healthy} of ${connectors.length}`, healthy < connectors.length],
    ["Tasks running", `${running} of ${cluster.tasks.length}`, running < cluster.tasks.length],
    ["Workers", alive < cluster.workers.length ? `${alive} of ${cluster.workers.length}` : count(alive), alive < cluster.workers.length],
    ["Leader", cluster.leader ? cluster.leader.id : "none", !cluster.leader],
    ["Highest lag", lags.length ? seconds(Math.max(...lags)) : "–", false],
    ["Records", rates.length ? rate(rates.reduce((sum, one) => sum + one, 0)) : "–", false],
  ];
  return html`<dl class="tiles">${tiles.map(([name, value, bad]) => html`<div class=${bad ? "tile bad" : "tile"} key=${name}>
    <dt>${name}</dt><dd>${value}${bad && html`<span class="hidden"> (needs attention)</span>`}</dd>
  </div>`)}</dl>`;
}

function attention(cluster, connectors) {
  const found = [];
  const add = (key, state, text, code) => found.push({ key, state, text, code });
  if (!cluster.leader) add("leader", "failed", "No worker leads: nothing can be changed at this moment.");
  const errors = new Map();
  for (const task of cluster.tasks) if (task.error && !errors.has(task.connector)) errors.set(task.connector, task.error);
  for (const { name, health, reason } of connectors) {
    if (health === "healthy") continue;
    const words = errors.get(name)?.message || "";
    add(name, health, html`<a href=${href("connectors", name)}>${name}</a>: ${reason}${words && ` – ${words}`}`, errors.get(name)?.code);
  }
  for (const worker of cluster.workers) {
    const had = worker.tasks ? ` It had ${plural(worker.tasks, "task")}.` : "";
    if (!worker.alive) add(worker.id, "gone", `Worker ${worker.id} is gone.${had}`);
    else if (worker.draining) add(worker.id, "draining", `Worker ${worker.id} hands its tasks over.`);
  }
  for (const task of cluster.tasks) {
    const { slot_retained_bytes: retained, slot_lost_in_s: lost } = task.metrics;
    const name = `${task.connector}-${task.task}`;
    if (isNumber(lost)) add(`${name} lost`, "warning", `The slot of ${name} will be lost in about ${seconds(lost)}.`);
    else if (retained > SLOT_BYTES) add(`${name} slot`, "warning", `The slot of ${name} keeps ${bytes(retained)} of the database's log.`);
  }
  for (const warning of cluster.warnings || []) add(warning, "note", warning);
  return found;
}

function Attention({ cluster, connectors }) {
  const found = attention(cluster, connectors);
  if (!found.length) return html`<p class="fine"><${Pill} state="healthy" /> Nothing needs attention.</p>`;
  return html`<${Card} title="Needs attention"><ul class="attention">
    ${found.slice(0, ATTENTION_MAX).map(({ key, state, text, code }) => html`<li key=${key}><${Pill} state=${state} /> <span>${text} <${Code} name=${code} /></span></li>`)}
    ${found.length > ATTENTION_MAX && html`<li key="more"><span>And ${count(found.length - ATTENTION_MAX)} more.</span></li>`}
  </ul></${Card}>`;
}

function Charts({ connectors }) {
  const histories = connectors.map(({ name }) => historyOf(name));
  const longest = histories.reduce((one, two) => (two[0].length > one[0].length ? two : one))[0];
  // Each history ends with the newest time; one of a newer connector begins later.
  const byTime = (column, join) => longest.map((_, index) => {
    const values = histories.map((history) => history[column][index - longest.length + history[0].length]).filter(isNumber);
    return values.length ? join(values) : null;
  });
  return html`<div class="charts">
    <${Chart} title="Highest lag" times=${longest} values=${byTime(1, (values) => Math.max(...values))} format=${seconds} stroke="--warm" />
    <${Chart} title="Records of all connectors" times=${longest} values=${byTime(2, (values) => values.reduce((sum, one) => sum + one, 0))} format=${rate} />
  </div>`;
}

function Connectors({ connectors }) {
  const [filter, setFilter] = useState("");
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (one) => [one.name, one.class, one.type, one.state, one.health, ...Object.entries(one.labels).flat()].join(" ").toLowerCase();
  const rows = connectors.filter((one) => words.every((word) => text(one).includes(word)));
  const actions = maySomewhere("admin") && html`<a class="button primary" href="#/new">New connector</a>`;
  return html`<${Card} title="Connectors" actions=${actions}>
    ${connectors.length > 5 && html`<label class="filter">Filter by name, class, state or label
      <input type="search" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></label>`}
    <${Table} caption="Connectors" rows=${rows} keyOf=${(row) => row.name}
      empty=${connectors.length ? "No connector is like this." : "There is no connector yet."}
      columns=${[
        { title: "Name", wide: true, of: (row) => html`<a href=${href("connectors", row.name)}>${row.name}</a>
          ${Object.entries(row.labels).map(([key, value]) => html` <span class="label">${key}=${value}</span>`)}` },
        { title: "Class", of: (row) => html`${row.class} <span class="quiet">${row.type}</span>` },
        { title: "Health", of: (row) => html`<${Pill} state=${row.health} />${row.reason && html` <span class="small">${row.reason}</span>`}` },
        { title: "State", of: (row) => html`<${Pill} state=${row.state} />` },
        { title: "Tasks", of: (row) => html`<${TaskStates} tasks=${row.tasks} />` },
        { title: "Lag", number: true, of: (row) => html`<${Sparkline} values=${historyOf(row.name)[1]} label=${`Lag of ${row.name} over the last minutes`} /> ${seconds(row.lag_s)}` },
        { title: "Records", number: true, of: (row) => rate(row.per_s) },
      ]} />
  </${Card}>`;
}

function Workers({ cluster }) {
  const own = (worker) => cluster.tasks.filter((task) => task.worker === worker.id);
  const links = (tasks) => html`${tasks.slice(0, LINKS_MAX).map((task) => html`<a class="label" href=${href("connectors", task.connector)}>${task.connector}-${task.task}</a> `)}
    ${tasks.length > LINKS_MAX && `and ${count(tasks.length - LINKS_MAX)} more`}`;
  return html`<${Card} title="Workers">
    <${Table} caption="Workers" rows=${cluster.workers} keyOf=${(row) => row.id} columns=${[
      { title: "Worker", wide: true, of: (row) => html`${row.id} ${cluster.leader?.id === row.id && html`<${Pill} state="leader" />`}` },
      { title: "State", of: (row) => html`<${Pill} state=${!row.alive ? "gone" : row.draining ? "draining" : "alive"} />` },
      { title: "Tasks", of: (row) => links(own(row)) },
      { title: "Version", of: (row) => row.version || "–" },
      { title: "Address", of: (row) => row.url || "–" },
    ]} />
  </${Card}>`;
}
