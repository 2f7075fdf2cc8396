// The parts that pages are made of.
import { ago, bytes, count, plural, seconds, shown, time } from "./format.js";
import { html, useEffect, useId, useRef, useState } from "./ui.js";

const ROWS_SHOWN = 200;
const TONES = {
  __proto__: null,
  RUNNING: "good", healthy: "good", COMPLETED: "good", ok: "good", equal: "good", alive: "good", done: "good",
  FAILED: "bad", failed: "bad", error: "bad", different: "bad", gone: "bad", critical: "bad",
  degraded: "warn", UNASSIGNED: "warn", RESTARTING: "warn", warning: "warn", draining: "warn", undecided: "warn",
  PENDING: "info", running: "info", leader: "info", note: "info",
};

export function Pill({ state, title }) {
  return html`<span class="pill ${TONES[state] || "quiet"}" title=${title}>${state}</span>`;
}

export const href = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export function Card({ title, children, actions, id }) {
  const heading = useId();
  return html`<section class="card" aria-labelledby=${heading} id=${id}>
    <header><h2 id=${heading}>${title}</h2>${actions && html`<div class="actions">${actions}</div>`}</header>
    ${children}
  </section>`;
}

// Columns: title, of(row), number, wide. On a narrow screen each row is a block with the titles beside its cells. Of very many rows
// the first are shown: a browser draws 10,000 every few seconds no more.
export function Table({ caption, columns, rows, keyOf, empty = "None." }) {
  const [most, setMost] = useState(ROWS_SHOWN);
  if (!rows.length) return html`<p class="quiet">${empty}</p>`;
  return html`<table role="table">
    <caption class="hidden">${caption}</caption>
    <thead role="rowgroup"><tr role="row">
      ${columns.map((column) => html`<th role="columnheader" scope="col" class=${column.number ? "number" : ""}>${column.title}</th>`)}
    </tr></thead>
    <tbody role="rowgroup">${rows.slice(0, most).map((row) => html`<tr role="row" key=${keyOf?.(row)}>
      ${columns.map((column) => html`<td role="cell" class=${[column.number && "number", column.wide && "wide"].filter(Boolean).join(" ")} data-label=${column.title}><div>${column.of(row)}</div></td>`)}
    </tr>`)}</tbody>
  </table>
  ${rows.length > most && html`<p class="small">${count(most)} of ${count(rows.length)} rows are shown.
    ${" "}<button type="button" onClick=${() => setMost(most * 5)}>Show more</button></p>`}`;
}

export function Facts({ items }) {
  return html`<dl class="facts">${items
    .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
    .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function Code({ name }) {
  return name ? html`<a class="code" href=${href("errors", name)}>${name}</a>` : null;
}

// An error of a connector or a task, or of a request, with what to do.
export function Problem({ error, title }) {
  if (!error) return null;
  const places = Object.entries(error.where || {});
  return html`<div class="problem" role="group" aria-label=${title || "Error"}>
    <p class="what">${title && html`<strong>${title}: </strong>`}${error.message}</p>
    ${error.hint && html`<p><strong>What to do: </strong>${error.hint}</p>`}
    ${(error.errors || []).map((one) => html`<p>${one.configPath && html`<code>${one.configPath}</code>`} ${one.message}</p>`)}
    <p class="small">
      ${error.code && html`<${Code} name=${error.code} />`}
      ${places.map(([name, value]) => html` <span>${name}: ${shown(value)}</span>`)}
    </p>
  </div>`;
}

export function Answer({ found, children }) {
  if (found.error) return html`<${Problem} error=${found.error} />`;
  if (found.content === null) return html`<p class="loading" role="status">Loading …</p>`;
  return children(found.content);
}

// -- words for everybody, also for those who hear the page -----------------------------------------------------------

let tellAll = () => {};

export function say(text, bad = false) {
  tellAll({ text, bad, at: Date.now() });
}

export function Announcer() {
  const [word, setWord] = useState(null);
  useEffect(() => {
    tellAll = setWord;
  }, []);
  useEffect(() => {
    if (!word || word.bad) return undefined;
    const timer = setTimeout(() => setWord(null), 6_000);
    return () => clearTimeout(timer);
  }, [word]);
  return html`<div class="announcer" role=${word?.bad ? "alert" : "status"}>
    ${word && html`<div class=${word.bad ? "toast bad" : "toast"}>
      <span>${word.text}</span>
      <button class="plain" aria-label="Dismiss" onClick=${() => setWord(null)}>✕</button>
    </div>`}
  </div>`;
}

// -- changes ----------------------------------------------------------------------------------------------------------

export function Dialog({ title, onClose, children }) {
  const dialog = useRef(null);
  const heading = useId();
  useEffect(() => {
    const opener = document.activeElement;
    dialog.current.showModal();
    return () => opener?.focus?.();
  }, []);
  return html`<dialog ref=${dialog} aria-labelledby=${heading} onClose=${onClose}>
    <h2 id=${heading}>${title}</h2>${children}
  </dialog>`;
}

// A button that asks before it does: `run` gets what the fields of the dialog hold.
export function Action({ label, title, text, tone = "", run, confirm, fields, preview, disabled }) {
  const [open, setOpen] = useState(false);
  return html`<button class=${tone} disabled=${disabled} onClick=${() => setOpen(true)}>${label}</button>
    ${open && html`<${Confirm} ...${{ label, title, text, tone, run, confirm, fields, preview }} onClose=${() => setOpen(false)} />`}`;
}

function Confirm({ label, title, text, tone, run, confirm, fields, preview, onClose }) {
  const [values, setValues] = useState({});
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const [told, setTold] = useState(null);
  const open = useRef(true);
  useEffect(() => () => { open.current = false; }, []);
  useEffect(() => {
    let here = true;
    setTold(null);
    setError(null);
    preview?.(values).then((found) => here && setTold(found), (failed) => here && setError(failed));
    return () => { here = false; };
  }, [JSON.stringify(values)]);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const done = await run(values);
      say(done?.text ?? done ?? `${title}: done`, Boolean(done?.bad));
      onClose();
    } catch (failed) {
      // Who has gone on meanwhile is told all the same.
      if (!open.current) say(`${title}: ${failed.message}`, true);
      setError(failed);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${submit}>
      <p>${text}</p>
      ${(fields || []).map((field) => html`<label class="check" key=${field.name}>
        <input type="checkbox" checked=${Boolean(values[field.name])}
          onChange=${(event) => setValues({ ...values, [field.name]: event.target.checked })} /> ${field.label}
      </label>`)}
      ${told && html`<div class="preview">${told}</div>`}
      ${confirm && html`<label>Type <strong>${confirm}</strong> to confirm
        <input autocomplete="off" autocapitalize="off" spellcheck=${false} value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>`}
      <${Problem} error=${error} />
      <div class="buttons">
        <button type="button" onClick=${onClose}>Back</button>
        <button type="submit" class=${tone || "primary"} disabled=${busy || (confirm && typed !== confirm)}>${busy ? "…" : label}</button>
      </div>
    </form>
  </${Dialog}>`;
}

// -- small things -----------------------------------------------------------------------------------------------------

export function When({ ms }) {
  return typeof ms === "number" ? html`<time datetime=${new Date(ms).toISOString()} title=${ago(ms)}>${time(ms)}</time>` : "–";
}

export function Lag({ seconds: lag, bytes: behind, records }) {
  const more = [typeof behind === "number" && bytes(behind), typeof records === "number" && plural(records, "record")];
  const words = [typeof lag === "number" && seconds(lag), ...more].filter(Boolean);
  return words.length ? words.join(" · ") : "–";
}

export function TaskStates({ tasks }) {
  const states = Object.entries(tasks);
  if (!states.length) return html`<span class="quiet">none</span>`;
  return states.map(([state, number]) => html`<${Pill} state=${state} />${number > 1 ? ` ×${number} ` : " "}`);
}

export function Progress({ done, total, label }) {
  if (!total) return "–";
  const part = Math.min(100, Math.round((done / total) * 100));
  return html`<span class="progress"><progress max="100" value=${part} aria-label=${label}></progress> ${part} %</span>`;
}
