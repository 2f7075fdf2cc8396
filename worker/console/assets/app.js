// The frame of all pages: who asks, where one is, and whether the worker answers.
import { endSession, get, isLoggedIn, keepPlace, keptPlace, loginWithPassword, loginWithToken, logout, singleSignOn, whenUnauthenticated } from "./api.js";
import { ConnectorPage } from "./connector.js";
import { EditConnector, NewConnector } from "./edit.js";
import { ErrorPage } from "./errors.js";
import { ago } from "./format.js";
import { Incidents } from "./incidents.js";
import { Journal } from "./journal.js";
import { live, may, maySomewhere, start, stop, useLive } from "./live.js";
import { Overview } from "./overview.js";
import { Announcer, Problem } from "./parts.js";
import { SchemaHistory, Schemas } from "./schemas.js";
import { html, render, useEffect, useRef, useState } from "./ui.js";

const PAGES = {
  "": () => html`<${Overview} />`,
  connectors: ([name, part = "state"]) =>
    part === "edit" ? html`<${EditConnector} key=${name} name=${name} />` : html`<${ConnectorPage} key=${name} name=${name} part=${part} />`,
  new: () => html`<${NewConnector} />`,
  schemas: ([subject]) => (subject ? html`<${SchemaHistory} key=${subject} subject=${subject} />` : html`<${Schemas} />`),
  incidents: () => html`<${Incidents} />`,
  journal: () => html`<${Journal} />`,
  errors: ([code]) => html`<${ErrorPage} key=${code} code=${code || ""} />`,
};

const AGAIN_MAX_MS = 30_000;

function place() {
  const parts = location.hash.replace(/^#\/?/, "").split("/");
  try {
    return parts.map(decodeURIComponent);
  } catch {
    return [""];
  }
}

function usePlace() {
  const [found, setFound] = useState(place);
  useEffect(() => {
    const moved = () => setFound(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return found;
}

function App() {
  const [state, setState] = useState({ caller: null, error: null, asking: true });
  const tries = useRef(0);
  const enter = async () => {
    try {
      live.caller = await get("v1/caller");
      const before = keptPlace();
      if (before && !location.hash) location.hash = before;
      tries.current = 0;
      start();
      setState({ caller: live.caller, error: null, asking: false });
    } catch (error) {
      const asked = error.status === 401 && !isLoggedIn() ? null : error;
      stop();
      // No credential helps while the worker starts or is away.
      const away = !(error.status >= 400 && error.status < 500);
      setState({ caller: null, error: asked, asking: false, away });
      if (error.status === 401) logout();
      if (!away) return;
      setTimeout(enter, Math.min(AGAIN_MAX_MS, 1_000 * 2 ** tries.current));
      tries.current += 1;
    }
  };
  useEffect(() => {
    whenUnauthenticated(() => {
      if (live.caller) {
        live.caller = null;
        stop();
        setState({ caller: null, error: { message: "The worker does not know these credentials any more" }, asking: false });
      }
    });
    enter();
  }, []);
  const leave = async () => {
    const session = state.caller.by === "session";
    logout();
    stop();
    if (session) await endSession().catch(() => location.reload());
    else location.reload();
  };
  if (state.asking) return html`<p class="loading" role="status">Loading …</p>`;
  if (!state.caller && state.away) {
    return html`<main class="login"><h1>cdcworker</h1><${Problem} error=${state.error} /><p role="status">It is asked again by itself.</p></main>`;
  }
  if (!state.caller) return html`<${Login} error=${state.error} onLogin=${enter} />`;
  return html`<${Frame} caller=${state.caller} onLogout=${leave} />`;
}

function Frame({ caller, onLogout }) {
  const parts = usePlace();
  const main = useRef(null);
  const first = useRef(true);
  const page = Object.hasOwn(PAGES, parts[0]) ? PAGES[parts[0]] : (() => html`<h1>There is no such page</h1><p><a href="#/">Overview</a></p>`);
  const where = parts.join("/");
  useEffect(() => {
    document.title = `${["cdcworker", ...parts].filter(Boolean).reverse().join(" · ")}`;
    if (!first.current) {
      main.current.focus();
      scrollTo(0, 0);
    }
    first.current = false;
  }, [where]);
  const link = (to, label) => html`<a href=${`#/${to}`} aria-current=${parts[0] === to || (to === "" && parts[0] === "connectors") ? "page" : undefined}>${label}</a>`;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>To the content</a>
    <header class="top">
      <a class="brand" href="#/"><img src="icon.svg" alt="" width="24" height="24" /> cdcworker</a>
      <nav aria-label="Pages">${link("", "Overview")}${may("read") && link("schemas", "Schemas")}${link("incidents", "Incidents")}${link("journal", "Journal")}
        ${maySomewhere("admin") && link("new", "New connector")}</nav>
      <${Caller} caller=${caller} onLogout=${onLogout} />
    </header>
    <${Trouble} />
    <main id="main" ref=${main} tabindex="-1">${page(parts.slice(1))}</main>
    <${Announcer} />`;
}

function Caller({ caller, onLogout }) {
  const roles = caller.grants.map(({ role, prefix }) => (prefix ? `${role}: ${prefix}…` : role)).join(", ");
  if (!caller.by) return html`<div class="caller quiet">no login needed</div>`;
  return html`<div class="caller"><span>${caller.name} <span class="quiet">${roles}</span></span>
    ${(isLoggedIn() || caller.by === "session") && html`<button class="plain" onClick=${onLogout}>Log out</button>`}</div>`;
}

function Trouble() {
  const { error, since, at } = useLive();
  if (!error) return html`<div role="alert"></div>`;
  return html`<div role="alert" class="trouble">${error.message}, since ${new Date(since).toLocaleTimeString("en-GB")}.
    ${at ? ` What is shown is from ${ago(at)}.` : ""} It is asked again by itself. Another worker of the cluster shows the same.</div>`;
}

function Login({ error, onLogin }) {
  const [kind, setKind] = useState("token");
  const [busy, setBusy] = useState(false);
  const [provider, setProvider] = useState(null);
  useEffect(() => {
    singleSignOn().then(setProvider);
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    const data = new FormData(event.target);
    if (kind === "token") loginWithToken(String(data.get("token")));
    else loginWithPassword(String(data.get("name")), String(data.get("password")));
    setBusy(true);
    await onLogin();
    setBusy(false);
  };
  return html`<main class="login"><form onSubmit=${submit}>
    <h1><img src="icon.svg" alt="" width="32" height="32" /> cdcworker</h1>
    ${error && html`<${Problem} error=${error} />`}
    ${provider && html`<p><a class="button primary" href=${provider} onClick=${keepPlace}>Log in at the identity provider</a></p>
      ${error?.status === 403 && html`<p><a href=${`${provider}?again=true`}>Log in there as somebody else</a></p>`}`}
    <fieldset><legend>${provider ? "Or log in with" : "Log in with"}</legend>
      ${[["token", "a token"], ["password", "a name and a password"]].map(([value, label]) => html`<label class="check" key=${value}>
        <input type="radio" name="kind" value=${value} checked=${kind === value} onChange=${() => setKind(value)} /> ${label}</label>`)}
    </fieldset>
    ${kind === "token"
      ? html`<label key="token">Token<input name="token" type="password" autocomplete="current-password" required /></label>`
      : html`<label key="name">Name<input name="name" autocomplete="username" autocapitalize="off" required /></label>
        <label key="password">Password<input name="password" type="password" autocomplete="current-password" required /></label>`}
    <button class="primary" disabled=${busy}>Log in</button>
    <p class="quiet small">The operator of the cluster gives out tokens (<code>cdcworker auth</code>). This tab keeps it until it is closed.</p>
  </form></main>`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
