// State, tasks and errors of a connector, with lag and rate over the last minutes.
import { call, connectorPath, get } from "./api.js";
import { Chart } from "./chart.js";
import { bytes, count, isNumber, plural, rate, seconds } from "./format.js";
import { historyOf, may, refresh, useAnswer, useLive } from "./live.js";
import { Action, Card, Facts, Lag, Pill, Problem, Table, When } from "./parts.js";
import { html } from "./ui.js";

export function StatePart({ connector, tasks }) {
  const { cluster } = useLive();
  const { name } = connector;
  const status = useAnswer((signal) => get(connectorPath(name, "/status"), { details: true }, { signal }), [cluster?.version, connector.health, connector.reason]);
  const own = status.content?.connector?.error;
  const [times, lags, rates] = historyOf(name);
  return html`
    ${own && html`<${Problem} title="The connector" error=${own} />`}
    ${tasks.filter((task) => task.error).map((task) => html`<${Problem} key=${task.task} title=${`Task ${task.task}`} error=${task.error} />`)}
    ${tasks.filter((task) => task.retrying).map((task) => html`<${Problem} key=${task.task} title=${`Task ${task.task} tries again`} error=${{
      code: task.retrying.code, message: `${plural(task.retrying.count, "try", "tries")} in a row failed` }} />`)}
    <div class="charts">
      <${Chart} title="Lag" times=${times} values=${lags} format=${seconds} stroke="--warm" />
      <${Chart} title="Records" times=${times} values=${rates} format=${rate} />
    </div>
    <${Card} title="Tasks"><${Tasks} ...${{ name, tasks }} /></${Card}>
    ${tasks.map((task) => html`<${Numbers} key=${task.task} task=${task} several=${tasks.length > 1} />`)}
    <${Card} title="About">
      <${Facts} items=${[
        ["Class", connector.class], ["Created", html`<${When} ms=${connector.created} />`],
        ["Last change", html`<${When} ms=${connector.updated} />`], ["Version", connector.version],
        ["Labels", Object.entries(connector.labels).map(([key, value]) => `${key}=${value}`).join(", ")],
        ["Topics begin with", connector.topic_prefixes.join(", ")],
      ]} />
    </${Card}>`;
}

function Tasks({ name, tasks }) {
  const restart = (task) => async () => {
    await call("POST", connectorPath(name, `/tasks/${task.task}/restart`), { query: { details: true } });
    refresh();
    return `Task ${task.task} is being restarted`;
  };
  const columns = [
    { title: "Task", of: (task) => task.task },
    { title: "State", of: (task) => html`<${Pill} state=${task.state} />${isNumber(task.waits_s) ? ` waits, for ${seconds(task.waits_s)} at most` : ""}` },
    { title: "Worker", of: (task) => task.worker || "–" },
    { title: "Lag", number: true, of: (task) => html`<${Lag} seconds=${task.metrics.lag_s} bytes=${task.metrics.lag_bytes} />` },
    { title: "Records", number: true, of: (task) => rate(task.per_s) },
    { title: "CPU", number: true, of: (task) => (isNumber(task.metrics.cpu_cores) ? task.metrics.cpu_cores.toFixed(2) : "–") },
    { title: "Memory", number: true, of: (task) => bytes(task.metrics.rss_bytes) },
  ];
  if (may("operate", name)) {
    columns.push({ title: "Restart", of: (task) => html`<${Action} label="Restart" title=${`Restart task ${task.task} of ${name}`}
      text="The task ends and starts again from its stored position." run=${restart(task)} />` });
  }
  return html`<${Table} caption="Tasks" rows=${tasks} keyOf=${(task) => task.task} columns=${columns}
    empty="It has no tasks: it is stopped, or they are not planned yet." />`;
}

function Numbers({ task, several }) {
  const m = task.metrics;
  const items = [
    ["Records in all", isNumber(m.records ?? m.changes) && count(m.records ?? m.changes)],
    ["Bytes in all", isNumber(m.bytes) && bytes(m.bytes)],
    ["Rows written", isNumber(m.rows) && count(m.rows)],
    ["Transactions", isNumber(m.transactions) && count(m.transactions)],
    ["Batches", isNumber(m.batches) && count(m.batches)],
    ["Kept by the slot", isNumber(m.slot_retained_bytes) && bytes(m.slot_retained_bytes)],
    ["Slot may still grow by", isNumber(m.slot_safe_wal_bytes) && bytes(m.slot_safe_wal_bytes)],
    ["Slot is lost in about", isNumber(m.slot_lost_in_s) && seconds(m.slot_lost_in_s)],
    ["Connections to the source", isNumber(m.sessions) && count(m.sessions)],
    ["Dead letters", isNumber(m.dead_letters) && count(m.dead_letters)],
    ["Tables held back", m.tables_held > 0 && count(m.tables_held)],
  ].filter(([, value]) => value);
  if (!items.length) return null;
  return html`<${Card} title=${several ? `Numbers of task ${task.task}` : "Numbers"}><${Facts} items=${items} /></${Card}>`;
}
