// A connector's config as it is stored, secrets masked.
import { connectorPath, get } from "./api.js";
import { may, useAnswer } from "./live.js";
import { Answer, Card, Table, href } from "./parts.js";
import { html } from "./ui.js";

export function ConfigPart({ connector }) {
  const { name } = connector;
  const found = useAnswer((signal) => get(connectorPath(name, "/config"), { details: true }, { signal }), [connector.version]);
  const actions = may("admin", name) && html`<a class="button" href=${href("connectors", name, "edit")}>Edit</a>`;
  return html`<${Card} title="Config" actions=${actions}><${Answer} found=${found}>${(config) => html`<${Table} caption="Config"
    rows=${Object.entries(config).sort()} keyOf=${([key]) => key} columns=${[
      { title: "Key", wide: true, of: ([key]) => html`<code>${key}</code>` },
      { title: "Value", wide: true, of: ([, value]) => html`<span class="value">${value}</span>` },
    ]} />`}</${Answer}></${Card}>`;
}
