// Why tasks moved, and what has happened since the page was opened.
import { get } from "./api.js";
import { shown } from "./format.js";
import { events, useAnswer, useLive } from "./live.js";
import { Answer, Card, Pill, Table, When, href } from "./parts.js";
import { html, useState } from "./ui.js";

export function JournalTable({ entries }) {
  return html`<${Table} caption="Journal" rows=${entries} keyOf=${(entry) => entry.seq} empty="No task has moved." columns=${[
    { title: "When", of: (entry) => html`<${When} ms=${entry.ts} />` },
    { title: "Cause", of: (entry) => entry.cause },
    { title: "Tasks", wide: true, of: (entry) => html`<ul class="plain">${entry.moves.map((move) => html`<li><a href=${href("connectors", move.connector)}>${move.connector}-${move.task}</a>: ${" "}${move.from || "nowhere"} → ${move.to || "nowhere"} <span class="quiet">${move.why}</span></li>`)}</ul>` },
  ]} />`;
}

function words({ type, data }) {
  const error = data.to?.error || data.error;
  const state = data.to?.state || data.state;
  const what = data.connector ? `${data.connector}${data.task === undefined ? "" : `-${data.task}`}` : data.worker || "";
  if (type === "leader.changed") return html`${data.from?.worker || "none"} → ${data.to?.worker || "none"}`;
  if (type === "tasks.moved") return html`${data.cause}: ${data.moves.map((move) => `${move.connector}-${move.task} → ${move.to || "nowhere"}`).join(", ")}`;
  return html`${data.connector ? html`<a href=${href("connectors", data.connector)}>${what}</a>` : what} ${state && html`<${Pill} state=${state} />`}
    ${error && html`<a class="code" href=${href("errors", error.code)}>${error.code}</a>`} ${data.what ? shown(data.what) : ""}`;
}

export function Journal() {
  const { cluster, streaming } = useLive();
  const [filter, setFilter] = useState("");
  const found = useAnswer((signal) => get("v1/cluster/journal", { limit: 200 }, { signal }), [cluster?.version]);
  const like = (entry) => JSON.stringify(entry).toLowerCase().includes(filter.toLowerCase());
  return html`<h1>Journal</h1>
    <label class="filter">Filter<input type="search" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></label>
    <${Card} title="Since this page was opened">
      <p class="quiet small">${streaming ? "Live." : "The worker sends no events at this moment."}</p>
      <${Table} caption="Events" rows=${events.filter(like)} keyOf=${(event) => event.id} empty="Nothing has happened." columns=${[
        { title: "When", of: (event) => html`<${When} ms=${event.data.ts} />` },
        { title: "Event", of: (event) => event.type },
        { title: "What", wide: true, of: words },
      ]} /></${Card}>
    <${Card} title="Why tasks moved"><${Answer} found=${found}>${(content) => html`<${JournalTable} entries=${content.entries.filter(like)} />`}</${Answer}></${Card}>`;
}
