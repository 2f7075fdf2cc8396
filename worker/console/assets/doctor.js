// The doctor: a connector's surroundings examined, what is wrong first.
import { connectorPath, get } from "./api.js";
import { plural } from "./format.js";
import { Card, Code, Pill, Problem, Table } from "./parts.js";
import { html, useState } from "./ui.js";

const ORDER = ["error", "warning", "note", "ok"];

export function DoctorPart({ connector }) {
  const [state, setState] = useState({});
  const examine = (deep) => async () => {
    setState({ busy: true });
    try {
      setState({ found: await get(`v1/${connectorPath(connector.name, "/doctor")}`, { deep }) });
    } catch (error) {
      setState({ error });
    }
  };
  const actions = html`<button class="primary" disabled=${state.busy} onClick=${examine(false)}>Examine</button>
    <button disabled=${state.busy} onClick=${examine(true)}>Examine deeply</button>`;
  return html`<${Card} title="Doctor" actions=${actions}>
    <p class="quiet small">Looks at the database, the rights, the slot, the tables and the topics. Nothing is changed. Deeply: rows are read too, to tell how long a snapshot takes.</p>
    <div aria-live="polite">
      ${state.busy && html`<p class="loading">Examining …</p>`}
      <${Problem} error=${state.error} />
      ${state.found && html`<${Findings} found=${state.found} />`}
    </div>
  </${Card}>`;
}

function Findings({ found }) {
  const counts = ORDER.filter((kind) => found.counts[kind]).map((kind) => html`<${Pill} state=${kind} /> ${found.counts[kind]} `);
  const wrong = found.findings.filter((one) => one.severity !== "ok").sort((one, two) => ORDER.indexOf(one.severity) - ORDER.indexOf(two.severity));
  const fine = found.findings.filter((one) => one.severity === "ok");
  return html`<p>${counts}</p>
    ${wrong.map((one, index) => html`<div class="finding" key=${index}>
      <p><${Pill} state=${one.severity} /> <strong>${one.check}</strong> ${one.message || one.measured} <${Code} name=${one.code} /></p>
      ${one.message && one.measured && html`<p class="small">Measured: ${one.measured}</p>`}
      <p class="small">${one.why}</p>
      ${one.suggestion && html`<p><strong>What to do: </strong>${one.suggestion}</p>`}
      ${one.fix && html`<pre>${typeof one.fix === "string" ? one.fix : JSON.stringify(one.fix, null, 1)}</pre>`}
    </div>`)}
    <details><summary>${plural(fine.length, "check")} fine</summary>
      <${Table} caption="Checks that are fine" rows=${fine} columns=${[
        { title: "Check", of: (one) => one.check }, { title: "Measured", wide: true, of: (one) => one.measured }, { title: "Why", wide: true, of: (one) => one.why },
      ]} /></details>`;
}
