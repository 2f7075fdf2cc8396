// The REST API as the console asks it: who asks, errors with what to do, and streams of events.

const BASE = new URL("../", document.baseURI);
const KEPT = "cdcworker.authorization";
const PLACE = "cdcworker.place";
const TIMEOUT_MS = 100_000;
const SILENCE_MS = 60_000;

let authorization = kept();
let onUnauthenticated = () => {};

function kept() {
  try {
    return sessionStorage.getItem(KEPT) || "";
  } catch {
    return "";
  }
}

// Kept for this tab only, and gone with it.
function keep(value) {
  authorization = value;
  try {
    if (value) sessionStorage.setItem(KEPT, value);
    else sessionStorage.removeItem(KEPT);
  } catch {
    // A browser that keeps nothing asks again after a reload.
  }
}

export function whenUnauthenticated(call) {
  onUnauthenticated = call;
}

export function loginWithToken(token) {
  keep(`Bearer ${token.trim()}`);
}

export function loginWithPassword(name, password) {
  const data = new TextEncoder().encode(`${name}:${password}`);
  keep(`Basic ${btoa(String.fromCharCode(...data))}`);
}

export function logout() {
  keep("");
}

export function isLoggedIn() {
  return authorization !== "";
}

// The address at which people log in at an identity provider; null where they do not.
export async function singleSignOn() {
  try {
    return (await get("ui/logins")).single_sign_on;
  } catch {
    return null;
  }
}

// Ends the session that such a login has begun, here and at the provider, where the browser may go on.
export async function endSession() {
  const { location: next } = await call("POST", "ui/logout");
  if (next) location.assign(next);
  else location.reload();
}

// The page that somebody looks at, kept for this tab while the provider asks who it is.
export function keepPlace() {
  try {
    sessionStorage.setItem(PLACE, location.hash);
  } catch {
    // A browser that keeps nothing shows the overview then.
  }
}

export function keptPlace() {
  try {
    const found = sessionStorage.getItem(PLACE) || "";
    sessionStorage.removeItem(PLACE);
    return found;
  } catch {
    return "";
  }
}

// A name as one segment of a path; browsers would resolve dots alone away.
export function segment(name) {
  return name === "." || name === ".." ? name.replaceAll(".", "%2E") : encodeURIComponent(name);
}

export function connectorPath(name, rest = "") {
  return `connectors/${segment(name)}${rest}`;
}

export class ApiError extends Error {
  constructor(status, body, retryAfter = 0) {
    super(body.message || `The worker answered ${status}`);
    this.status = status;
    this.code = body.code || "";
    this.hint = body.suggestion || "";
    this.path = body.configPath || "";
    this.errors = body.errors || [];
    this.retryAfter = retryAfter;
  }
}

function address(path, query = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== "" && one !== null && one !== undefined) url.searchParams.append(name, String(one));
    }
  }
  return url;
}

function headersOf(more = {}) {
  const headers = { Accept: "application/json", "X-Requested-With": "cdcworker", ...more };
  if (authorization) headers.Authorization = authorization;
  return headers;
}

async function failure(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // A proxy's own page, or nothing.
  }
  const error = new ApiError(response.status, body, Number(response.headers.get("Retry-After")) || 0);
  if (response.status === 401) onUnauthenticated(error);
  return error;
}

export async function call(method, path, { query = {}, body, signal, headers = {}, whole = false } = {}) {
  const options = { method, headers: headersOf(headers), cache: "no-store", credentials: "same-origin" };
  options.redirect = "error";
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  options.signal = signal && AbortSignal.any ? AbortSignal.any([signal, timeout]) : signal ?? timeout;
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(address(path, query), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "The worker does not answer" });
  }
  if (!response.ok) throw await failure(response);
  const text = await response.text();
  const content = text ? JSON.parse(text) : null;
  return whole ? { content, etag: response.headers.get("ETag") || "", status: response.status } : content;
}

export const get = (path, query, options = {}) => call("GET", path, { query, ...options });

// Server-sent events over fetch: EventSource can send no Authorization. A worker that says nothing for SILENCE_MS is gone:
// it sends something every 15 seconds. However the stream ends, its connection ends with it.
export async function stream(path, query, signal, onEvent) {
  const control = new AbortController();
  const end = () => control.abort();
  signal.addEventListener("abort", end);
  if (signal.aborted) end();
  let timer = setTimeout(end, SILENCE_MS);
  try {
    const options = { headers: headersOf({ Accept: "text/event-stream" }), signal: control.signal, redirect: "error" };
    const response = await fetch(address(path, query), { ...options, cache: "no-store", credentials: "same-origin" });
    if (!response.ok) throw await failure(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(end, SILENCE_MS);
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (event) onEvent(event);
      }
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", end);
    end();
  }
}

function parsed(block) {
  const event = { type: "message", data: "", id: "" };
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    if (at <= 0) continue;
    const value = line.slice(at + 1).trimStart();
    const field = line.slice(0, at);
    if (field === "event") event.type = value;
    else if (field === "id") event.id = value;
    else if (field === "data") event.data += value;
  }
  if (!event.data) return null;
  return { ...event, data: JSON.parse(event.data) };
}

export function wait(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}
