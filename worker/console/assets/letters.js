// Dead letters of a sink: which records were set aside and why. The records themselves are not shown.
import { call, connectorPath, get } from "./api.js";
import { count, plural } from "./format.js";
import { may, useAnswer } from "./live.js";
import { Action, Answer, Card, Code, Table, When } from "./parts.js";
import { html, useState } from "./ui.js";

function outcome(answer, would) {
  const causes = answer.causes.map((one) => `${plural(one.letters, "letter")}: ${one.code}, ${one.cause}`);
  const more = answer.next ? ["These are the first: there are more."] : [];
  return [`${plural(answer.redriven, "letter")} ${would}applied again, ${plural(answer.rows, "row")} ${would}changed, ${count(answer.failed)} failed.`, ...more, ...causes].join(" ");
}

export function DeadLettersPart({ connector }) {
  const { name } = connector;
  const path = `v1/${connectorPath(name, "/dead-letters")}`;
  const [after, setAfter] = useState("");
  const [again, setAgain] = useState(0);
  const found = useAnswer((signal) => get(path, { after }, { signal }), [after, again]);
  const redrive = async (query = {}) => {
    let answer = await call("POST", `${path}/redrive`, { query });
    const total = { ...answer };
    while (answer.next && !query.dry_run) {
      answer = await call("POST", `${path}/redrive`, { query: { ...query, after: answer.next } });
      for (const member of ["redriven", "rows", "failed"]) total[member] += answer[member];
      total.causes = [...total.causes, ...answer.causes];
      total.next = answer.next;
    }
    return total;
  };
  const run = async () => {
    const total = await redrive();
    setAfter("");
    setAgain((number) => number + 1);
    return outcome(total, "");
  };
  const actions = may("operate", name) && found.content?.total > 0 && html`<${Action} label="Redrive" tone="primary" title=${`Redrive the dead letters of ${name}`}
    text="They are applied again, now that their cause is repaired. Those that fail again stay."
    preview=${async () => outcome(await redrive({ dry_run: true }), "would be ")} run=${run} />`;
  return html`<${Card} title="Dead letters" actions=${actions}><${Answer} found=${found}>${(content) => html`
    <p>${plural(content.total, "dead letter")} in all.</p>
    <${Table} caption="Dead letters" rows=${content.dead_letters} keyOf=${(one) => `${one.topic}:${one.partition}:${one.offset}`} columns=${[
      { title: "Topic", wide: true, of: (one) => one.topic },
      { title: "Partition", number: true, of: (one) => one.partition },
      { title: "Offset", number: true, of: (one) => one.offset },
      { title: "Since", of: (one) => html`<${When} ms=${one.at_ms} />` },
      { title: "Cause", wide: true, of: (one) => html`<${Code} name=${one.code} /> ${one.cause}` },
    ]} />
    <div class="buttons">${after && html`<button onClick=${() => setAfter("")}>First</button>`}
      ${content.next && html`<button onClick=${() => setAfter(content.next)}>More</button>`}</div>`}</${Answer}></${Card}>`;
}
