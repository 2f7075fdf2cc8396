// Where a connector's tasks go on; of a stopped one they can be reset.
import { call, connectorPath, get } from "./api.js";
import { plural, shown } from "./format.js";
import { may, useAnswer } from "./live.js";
import { Action, Answer, Card, Facts, Table } from "./parts.js";
import { html, useState } from "./ui.js";

const pairs = (value) => (value ? Object.entries(value).map(([name, one]) => [name, typeof one === "object" && one !== null ? html`<pre>${JSON.stringify(one, null, 1)}</pre>` : html`<span class="value">${shown(one)}</span>`]) : []);

export function OffsetsPart({ connector }) {
  const { name, type, state } = connector;
  const [minute, setMinute] = useState(0);
  const found = useAnswer((signal) => get(connectorPath(name, "/offsets"), { details: true }, { signal }), [minute, state]);
  const again = () => setMinute((number) => number + 1);
  const path = connectorPath(name, "/offsets");
  const reset = async () => {
    const answer = await call("DELETE", path, { query: { details: true } });
    again();
    return answer.message;
  };
  const preview = async () => {
    const answer = await call("DELETE", path, { query: { dry_run: true, details: true } });
    return `${plural(answer.offsets?.length ?? 0, "offset")} would be forgotten.`;
  };
  const actions = html`<button onClick=${again}>Read again</button>
    ${may("admin", name) && state === "STOPPED" && html`<${Action} label="Reset" tone="danger" title=${`Reset the offsets of ${name}`} confirm=${name} ...${{ preview }} run=${reset}
      text="Its tasks then begin as those of a new connector: what was delivered comes again, or what is gone is missing." />`}`;
  const columns = type === "sink"
    ? [
      { title: "Topic", wide: true, of: (one) => one.partition.kafka_topic },
      { title: "Partition", number: true, of: (one) => one.partition.kafka_partition },
      { title: "Next offset", number: true, of: (one) => shown(one.offset?.kafka_offset) },
    ]
    : [
      { title: "Partition", of: (one) => html`<${Facts} items=${pairs(one.partition)} />` },
      { title: "Offset", wide: true, of: (one) => html`<${Facts} items=${pairs(one.offset)} />` },
    ];
  return html`<${Card} title="Offsets" actions=${actions}>
    ${may("admin", name) && state !== "STOPPED" && html`<p class="quiet small">They can be reset while the connector is stopped.</p>`}
    <${Answer} found=${found}>${(content) => html`<${Table} caption="Offsets" rows=${content.offsets} keyOf=${(one) => JSON.stringify(one.partition)} ...${{ columns }}
      empty="None is stored yet." />`}</${Answer}>
  </${Card}>`;
}
