// Rows as they change, and the way of one row: for those who may look at rows.
import { connectorPath, get, stream } from "./api.js";
import { count, shown, time } from "./format.js";
import { Card, Facts, Pill, Problem } from "./parts.js";
import { html, useEffect, useRef, useState } from "./ui.js";

const SHOWN_MAX = 100;
const TELL_MS = 250;
const OPS = ["create", "update", "delete", "read", "truncate", "message", "tombstone", "upsert"];

export function TailPart({ connector }) {
  const [form, setForm] = useState({ table: "", op: "", where: "", from: "now" });
  const [state, setState] = useState({ running: false, changes: [], counts: null, error: null, why: "" });
  const control = useRef(null);
  useEffect(() => () => control.current?.abort(), []);
  const stop = () => control.current?.abort();
  const begin = async (event) => {
    event.preventDefault();
    stop();
    const abort = new AbortController();
    control.current = abort;
    const found = { running: true, changes: [], counts: null, error: null, why: "" };
    const tell = () => setState({ ...found, changes: [...found.changes] });
    tell();
    // Many changes a second are drawn together.
    const timer = setInterval(tell, TELL_MS);
    const query = { ...form, where: form.where.split(",").map((one) => one.trim()).filter(Boolean) };
    try {
      await stream(`v1/${connectorPath(connector.name, "/changes")}`, query, abort.signal, ({ type, data }) => {
        if (type === "change") found.changes = [data, ...found.changes].slice(0, SHOWN_MAX);
        else if (type === "counts") found.counts = data;
        else if (type === "error") found.error = data;
        else if (type === "end") found.why = data.why;
      });
    } catch (error) {
      if (!abort.signal.aborted) found.error = error.status === undefined ? { message: "The worker does not answer any more" } : error;
    }
    clearInterval(timer);
    found.running = false;
    if (control.current === abort) tell();
  };
  const field = (name) => ({ value: form[name], onInput: (event) => setForm({ ...form, [name]: event.target.value }) });
  return html`<${Card} title="Rows as they change">
    <p class="small quiet">Rows are data: that you look is in the audit log.</p>
    <form class="row" onSubmit=${begin}>
      <label>Table, an expression<input autocapitalize="off" ...${field("table")} /></label>
      <label>Operation<select ...${field("op")}><option value="">any</option>${OPS.map((op) => html`<option key=${op} value=${op}>${op}</option>`)}</select></label>
      <label>Where <code>column=value</code><input autocapitalize="off" ...${field("where")} /></label>
      <label>From<input autocapitalize="off" ...${field("from")} /></label>
      ${state.running ? html`<button key="stop" type="button" onClick=${stop}>Stop</button>` : html`<button key="start" class="primary">Start</button>`}
    </form>
    <${Problem} error=${state.error} />
    <p class="small" role="status">${state.running ? "Reading. " : state.why ? `Ended: ${state.why}. ` : ""}${state.counts
      ? `${count(state.counts.read)} read, ${count(state.counts.matched)} fit, ${count(state.counts.dropped)} left out since they came too fast, ${count(state.counts.unreadable)} unreadable.` : ""}</p>
    <ol class="changes">${state.changes.map((change) => html`<li key=${`${change.topic}/${change.partition}@${change.offset}`}><${Change} change=${change} /></li>`)}</ol>
  </${Card}>`;
}

function Change({ change }) {
  const { before, after } = change;
  const names = [...new Set([...Object.keys(before || {}), ...Object.keys(after || {})])];
  const differs = (name) => JSON.stringify(before?.[name]) !== JSON.stringify(after?.[name]);
  return html`<p><${Pill} state=${change.op} /> <strong>${change.table || change.topic}</strong>
      <span class="quiet"> ${Object.entries(change.key || {}).map(([name, value]) => `${name}=${shown(value)}`).join(", ")} · ${time(change.source?.ts_ms ?? change.written_ms)}</span></p>
    <dl class="diff">${names.map((name) => html`<div key=${name}><dt>${name}</dt><dd>${before && after && differs(name)
      ? html`<del>${shown(before[name])}</del> <ins>${shown(after[name])}</ins>`
      : shown((after || before)[name])}</dd></div>`)}</dl>`;
}

export function ExplainPart({ connector }) {
  const [state, setState] = useState({});
  const submit = async (event) => {
    event.preventDefault();
    const data = Object.fromEntries(new FormData(event.target));
    setState({ busy: true });
    try {
      const query = { of: data.of, key: data.key.split(",").map((one) => one.trim()), lsn: data.lsn };
      setState({ found: await get(`v1/${connectorPath(connector.name, "/explain")}`, query) });
    } catch (error) {
      setState({ error });
    }
  };
  return html`<${Card} title="The way of one row">
    <p class="small quiet">From the source over its task and topic to the sinks. A key is data: that you look is in the audit log.</p>
    <form class="row" onSubmit=${submit}>
      <label>Table<input name="of" required autocapitalize="off" /></label>
      <label>Key, or <code>column=value</code><input name="key" required autocapitalize="off" /></label>
      <label>LSN, if not the newest<input name="lsn" autocapitalize="off" /></label>
      <button class="primary" disabled=${state.busy}>Follow</button>
    </form>
    <div aria-live="polite">
      ${state.busy && html`<p class="loading">Looking …</p>`}
      <${Problem} error=${state.error || state.found?.error} />
      ${state.found && html`<ol class="stages">${state.found.stages.map((stage, index) => html`<li key=${index}>
        <p><${Pill} state=${stage.found ? "ok" : "warning"} /> <strong>${stage.stage}</strong> ${stage.text}</p>
        ${stage.at_ms && html`<p class="small quiet">${time(stage.at_ms)}</p>`}
      </li>`)}</ol>
      ${state.found.searched && html`<${Facts} items=${[["Records searched", count(state.found.searched.records)], ["Complete", shown(state.found.searched.complete)]]} />`}`}
    </div>
  </${Card}>`;
}
