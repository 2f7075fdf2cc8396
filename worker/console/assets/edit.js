// New connectors and their changes: a form made of the definitions of the keys, which the worker checks before anything
// is submitted.
import { call, connectorPath, get, segment } from "./api.js";
import { plural } from "./format.js";
import { may, maySomewhere, refresh, useAnswer } from "./live.js";
import { Answer, Card, Problem, Table, href, say } from "./parts.js";
import { html, useEffect, useId, useMemo, useRef, useState } from "./ui.js";

const CHECK_MS = 500;
const FIXED = ["name", "connector.class"];

export function NewConnector() {
  const found = useAnswer((signal) => get("connector-plugins", {}, { signal }));
  const [chosen, setChosen] = useState("");
  if (!maySomewhere("admin")) return html`<h1>New connector</h1><p>You may not create connectors: that needs the role admin.</p>`;
  if (chosen) {
    return html`<h1>New connector</h1><p><button class="plain" onClick=${() => setChosen("")}>Choose another class</button></p>
      <${ConfigForm} key=${chosen} plugin=${chosen} given=${{ "connector.class": chosen }} />`;
  }
  return html`<h1>New connector</h1><${Card} title="Which class?"><${Answer} found=${found}>${(plugins) => html`<ul class="choices">
    ${plugins.filter((one) => !one.class.includes(".")).map((one) => html`<li key=${one.class}>
      <button onClick=${() => setChosen(one.class)}><strong>${one.class}</strong> <span class="quiet">${one.type}</span></button></li>`)}
  </ul>`}</${Answer}></${Card}>`;
}

export function EditConnector({ name }) {
  const found = useAnswer((signal) => call("GET", connectorPath(name, "/config"), { signal, whole: true, query: { details: true } }), [name]);
  if (!may("admin", name)) return html`<h1>${name}</h1><p>You may not change this connector: that needs the role admin.</p>`;
  return html`<h1>Config of ${name}</h1><p><a href=${href("connectors", name, "config")}>Back without a change</a></p>
    <${Answer} found=${found}>${({ content, etag }) => html`<${ConfigForm} plugin=${content["connector.class"]} given=${content} etag=${etag} name=${name} />`}</${Answer}>`;
}

function without(values, ...names) {
  return Object.fromEntries(Object.entries(values).filter(([name, value]) => !names.includes(name) && value !== ""));
}

// The answer of the newest check counts; older ones that come late are dropped.
function useCheck(plugin, values) {
  const [report, setReport] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const check = async (live, signal) => {
    setBusy(true);
    try {
      const query = { details: true, validate: live };
      const found = await call("PUT", `connector-plugins/${segment(plugin)}/config/validate`, { query, body: without(values), signal });
      if (signal?.aborted) return null;
      setReport(found);
      setError(null);
      return found;
    } catch (failed) {
      if (!signal?.aborted) setError(failed);
      return null;
    } finally {
      setBusy(false);
    }
  };
  useEffect(() => {
    const control = new AbortController();
    const timer = setTimeout(() => check(false, control.signal), CHECK_MS);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [JSON.stringify(values)]);
  return { report, error, busy, check };
}

function ConfigForm({ plugin, given, etag, name }) {
  const [values, setValues] = useState(given);
  const [touched, setTouched] = useState({});
  const [tried, setTried] = useState(false);
  const [search, setSearch] = useState("");
  const [plan, setPlan] = useState(null);
  const [failed, setFailed] = useState(null);
  const summary = useRef(null);
  const newest = useRef(values);
  newest.current = values;
  const { report, error, busy, check } = useCheck(plugin, values);
  const set = (key, value) => {
    setValues((old) => ({ ...old, [key]: value }));
    setTouched((old) => ({ ...old, [key]: true }));
    setPlan(null);
  };
  const target = name ?? values.name ?? "";
  const send = (query) => {
    const path = name ? connectorPath(name, "/config") : "connectors";
    const body = name ? without(values, "name") : { name: target, config: without(values, "name") };
    return call(name ? "PUT" : "POST", path, { query: { ...query, details: true }, body, headers: etag ? { "If-Match": etag } : {} });
  };
  const wrong = (report?.configs || []).filter((one) => one.value.errors.length);
  const attempt = (work) => async (event) => {
    event?.preventDefault();
    setTried(true);
    setFailed(null);
    try {
      await work();
    } catch (problem) {
      setFailed(problem);
      setPlan(null);
    }
    requestAnimationFrame(() => summary.current?.focus());
  };
  const preview = attempt(async () => {
    const found = await check(true);
    if (!found || found.error_count > 0) return;
    const made = await send({ dry_run: true });
    // Who goes on writing meanwhile sees no plan of what was there before.
    if (newest.current === values) setPlan(made);
  });
  const submit = attempt(async () => {
    await send({});
    refresh();
    say(name ? `The config of ${name} is changed` : `${target} is created`);
    location.hash = href("connectors", target);
  });
  const shows = (key) => tried || touched[key];
  return html`<form class="config" onSubmit=${preview} noValidate>
    <${Answer} found=${{ content: report, error: report ? null : error }}>${() => html`<${Fields} ...${{ report, values, set, shows, search, setSearch, name }} />
      <${MoreKeys} ...${{ report, values, set }} />
      <${AsJson} values=${values} onChange=${(found) => { setValues({ ...found, "connector.class": plugin, ...(name ? { name } : {}) }); setPlan(null); }} />`}</${Answer}>
    <div class="card foot" ref=${summary} tabindex="-1" aria-label="Result of the check">
      ${tried && wrong.length > 0 && html`<div class="problem" role="alert"><p class="what">${plural(wrong.length, "field")} to correct:</p>
        <ul>${wrong.map((one) => html`<li key=${one.value.name}><code>${one.value.name}</code>: ${one.value.errors.join("; ")}</li>`)}</ul></div>`}
      ${report && error && html`<${Problem} error=${error} />`}
      <${Problem} error=${failed} />
      ${failed?.status === 412 && html`<p>Somebody has changed the config meanwhile: go back and begin again.</p>`}
      ${plan && html`<${Plan} plan=${plan} />`}
      <div class="buttons">
        <button class=${plan ? "" : "primary"} disabled=${busy}>${busy ? "Checking …" : "Check and preview"}</button>
        ${plan && html`<button type="button" class="primary" onClick=${submit}>${name ? "Save" : "Create"}</button>`}
      </div>
      <p class="quiet small">The check asks the systems outside, too. Nothing is changed before ${name ? "Save" : "Create"}.</p>
    </div>
  </form>`;
}

function Plan({ plan }) {
  const tasks = plan.tasks || {};
  const told = [["start", "start"], ["restart", "restart"], ["stop", "end"]].filter(([key]) => tasks[key]?.length).map(([key, verb]) => `${plural(tasks[key].length, "task")} ${verb}`);
  return html`<div class="plan" role="status"><h2>What will be done</h2>
    <p>The connector is ${plan.effect}${told.length ? `: ${told.join(", ")}` : "; no task is touched"}.</p>
    ${(plan.findings || []).map((one, index) => html`<p key=${index} class="small"><strong>${one.severity}</strong> ${one.configPath && html`<code>${one.configPath}</code>`} ${one.message}</p>`)}
    <${Table} caption="Changed keys" rows=${plan.changes || []} keyOf=${(one) => one.key} empty="No key changes." columns=${[
      { title: "Key", wide: true, of: (one) => html`<code>${one.key}</code>` },
      { title: "Before", of: (one) => html`<span class="value">${one.from ?? "–"}</span>` },
      { title: "After", of: (one) => html`<span class="value">${one.to ?? "–"}</span>` },
    ]} /></div>`;
}

// -- fields -----------------------------------------------------------------------------------------------------------

function Fields({ report, values, set, shows, search, setSearch, name }) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const known = report.configs.filter((one) => one.definition && one.value.visible !== false && one.definition.group !== "Not available"
    && one.value.name !== "connector.class" && !(name && one.value.name === "name"));
  const fits = ({ definition }) => words.every((word) => `${definition.name} ${definition.display_name} ${definition.documentation}`.toLowerCase().includes(word));
  const basic = known.filter(({ definition }) => definition.required || definition.importance === "HIGH");
  const rest = known.filter((one) => !basic.includes(one));
  const groups = [...new Set(rest.map((one) => one.definition.group || "Others"))];
  const field = (one) => html`<${Field} key=${one.value.name} ...${{ ...one, given: values[one.value.name], set, shows: shows(one.value.name) }} />`;
  return html`<${Card} title="Needed and important">${basic.filter(fits).map(field)}</${Card}>
    <label class="filter">Find a key<input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label>
    ${groups.map((group) => {
      const members = rest.filter((one) => (one.definition.group || "Others") === group);
      const found = members.filter(fits);
      if (!found.length) return null;
      const set_ = members.filter((one) => values[one.value.name] !== undefined && values[one.value.name] !== "").length;
      return html`<details class="card" key=${group} open=${words.length > 0 || members.some((one) => one.value.errors.length && shows(one.value.name))}>
        <summary>${group} <span class="quiet">${plural(found.length, "key")}${set_ ? `, ${set_} set` : ""}</span></summary>${found.map(field)}</details>`;
    })}`;
}

function Field({ definition, value, given, set, shows }) {
  const id = useId();
  const errors = shows ? value.errors : [];
  const { name, type, default_value: usual, documentation, required } = definition;
  const common = {
    id, name, value: given ?? "", "aria-invalid": errors.length > 0, "aria-describedby": `${id}-doc${errors.length ? ` ${id}-error` : ""}`, "aria-required": required,
    autocapitalize: "off", spellcheck: false, onInput: (event) => set(name, event.target.value),
  };
  const placeholder = usual === null || usual === "" || type === "PASSWORD" ? undefined : String(usual);
  return html`<div class=${errors.length ? "field wrong" : "field"}>
    <label for=${id}>${!definition.display_name || definition.display_name === name ? html`<code class="key">${name}</code>` : html`${definition.display_name} <code>${name}</code>`}${required && html` <span class="needed">needed</span>`}</label>
    <${Input} ...${{ type, common, usual, placeholder, choices: value.recommended_values || [] }} />
    <p class="doc" id=${`${id}-doc`}>${documentation}</p>
    ${errors.length > 0 && html`<p class="wrong" id=${`${id}-error`}>${errors.join("; ")}</p>`}
  </div>`;
}

function Input({ type, common, usual, placeholder, choices }) {
  if (type === "BOOLEAN" || (choices.length > 0 && choices.length <= 12)) {
    const all = type === "BOOLEAN" ? ["true", "false"] : choices.map(String);
    const list = common.value && !all.includes(common.value) ? [...all, common.value] : all;
    return html`<select ...${common}><option value="">${usual === null || usual === "" ? "not set" : `${usual} (default)`}</option>
      ${list.map((one) => html`<option key=${one} value=${one} selected=${one === common.value}>${one}</option>`)}</select>`;
  }
  // A reference, such as ${env:NAME}, is no secret.
  if (type === "PASSWORD" && !common.value.startsWith("${")) return html`<input ...${common} type="password" autocomplete="new-password" />`;
  const numeric = ["INT", "SHORT", "LONG", "DOUBLE"].includes(type);
  return html`<input ...${common} type="text" autocomplete="off" inputmode=${numeric ? "numeric" : undefined} placeholder=${placeholder} />`;
}

// Keys that no definition lists, such as those of transforms before they are named.
function MoreKeys({ report, values, set }) {
  const [key, setKey] = useState("");
  const known = useMemo(() => new Set(report.configs.filter((one) => one.definition).map((one) => one.value.name)), [report]);
  const more = Object.keys(values).filter((name) => !known.has(name) && !FIXED.includes(name) && values[name] !== undefined);
  const add = () => {
    if (key.trim()) set(key.trim(), values[key.trim()] ?? "");
    setKey("");
  };
  const errors = (name) => report.configs.find((one) => one.value.name === name)?.value.errors || [];
  return html`<details class="card" open=${more.length > 0}><summary>Other keys <span class="quiet">such as those of transforms and of Kafka's clients</span></summary>
    ${more.map((name) => html`<div key=${name} class=${errors(name).length ? "field wrong" : "field"}><label>${name}
      <input value=${values[name]} autocomplete="off" onInput=${(event) => set(name, event.target.value)} /></label>
      ${errors(name).length > 0 && html`<p class="wrong">${errors(name).join("; ")}</p>`}</div>`)}
    <div class="row"><label class="grow">Name of the key<input value=${key} autocapitalize="off" autocomplete="off" onInput=${(event) => setKey(event.target.value)}
      onKeyDown=${(event) => { if (event.key === "Enter") { event.preventDefault(); add(); } }} /></label>
      <button type="button" onClick=${add}>Add</button></div></details>`;
}

function AsJson({ values, onChange }) {
  const [text, setText] = useState(null);
  const [error, setError] = useState("");
  const now = JSON.stringify(without(values), null, 2);
  const take = () => {
    try {
      const found = JSON.parse(text ?? now);
      if (typeof found !== "object" || found === null || Array.isArray(found)) throw new Error("not an object");
      const odd = Object.keys(found).find((name) => typeof found[name] === "object");
      if (odd !== undefined) throw new Error(`the value of ${odd} is no text`);
      onChange(Object.fromEntries(Object.entries(found).map(([name, value]) => [name, String(value)])));
      setText(null);
      setError("");
    } catch (problem) {
      setError(`Not a JSON object of keys and values: ${problem.message}`);
    }
  };
  return html`<details class="card"><summary>As JSON</summary>
    <label>The whole config<textarea rows="12" spellcheck=${false} value=${text ?? now} onInput=${(event) => setText(event.target.value)}></textarea></label>
    ${error && html`<p class="wrong" role="alert">${error}</p>`}
    <button type="button" onClick=${take} disabled=${text === null}>Take over into the form</button></details>`;
}
