// What every page shows of the cluster: read again at each event of the worker, and every few seconds for lags and rates.
import { ApiError, get, stream, wait } from "./api.js";
import { isNumber } from "./format.js";
import { useEffect, useRef, useState } from "./ui.js";

const EVERY_MS = 3_000;
const HIDDEN_MS = 30_000;
const BACK_OFF_MAX_MS = 30_000;
const GATHER_MS = 200;
const KEPT_MS = 10 * 60_000;
const SAMPLE_MS = 2_500;
const RECORDS = ["records", "changes"];

const listeners = new Set();
export const live = {
  caller: null, connectors: null, cluster: null, error: null, since: 0, at: 0, streaming: false,
};
// By connector: when, lag in seconds, records a second. All have the same times, those of newer connectors fewer of them.
const histories = new Map();
const counters = new Map();
// The newest events first, since the page was opened.
export const events = [];
const EVENTS_MAX = 200;
let sampled = 0;
let abort = null;
let wake = () => {};

export function historyOf(name) {
  return histories.get(name) || [[], [], []];
}

export function useLive() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((number) => number + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return live;
}

function tell() {
  for (const listener of listeners) listener();
}

const ROLES = ["read", "operate", "admin"];

// Whether the caller has a role on a connector, or on everything.
export function may(role, connector = "") {
  return (live.caller?.grants || []).some(
    (grant) => ROLES.indexOf(grant.role) >= ROLES.indexOf(role) && connector.startsWith(grant.prefix),
  );
}

export function maySomewhere(role) {
  return (live.caller?.grants || []).some((grant) => ROLES.indexOf(grant.role) >= ROLES.indexOf(role));
}

export function refresh() {
  wake();
}

export function start() {
  stop();
  abort = new AbortController();
  poll(abort.signal);
  listen(abort.signal);
  document.addEventListener("visibilitychange", refresh, { signal: abort.signal });
}

// What one user has seen is nothing for the next one.
export function stop() {
  abort?.abort();
  abort = null;
  Object.assign(live, { connectors: null, cluster: null, error: null, since: 0, at: 0, streaming: false });
  histories.clear();
  counters.clear();
  events.length = 0;
}

async function poll(signal) {
  let failures = 0;
  while (!signal.aborted) {
    const began = Date.now();
    try {
      await read(signal);
      failures = 0;
      live.error = null;
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      if (!(error instanceof ApiError)) console.error(error);
      if (error.status === 401) return;
      if (!live.error) live.since = Date.now();
      live.error = error;
    }
    tell();
    const usual = document.hidden ? HIDDEN_MS : EVERY_MS;
    const pause = failures ? Math.min(BACK_OFF_MAX_MS, Math.max(1_000 * 2 ** (failures - 1), 1_000 * (live.error.retryAfter || 0))) : usual;
    const woken = new Promise((resolve) => { wake = resolve; });
    await Promise.race([wait(pause, signal), woken]);
    // Many events are one look, and the larger the cluster the fewer looks.
    if (!failures) await wait(Math.min(BACK_OFF_MAX_MS, Math.max(GATHER_MS, 5 * (live.at - began))), signal);
  }
}

async function read(signal) {
  const timeout = AbortSignal.any ? AbortSignal.any([signal, AbortSignal.timeout(15_000)]) : signal;
  const options = { signal: timeout };
  const [cluster, summaries] = await Promise.all([
    get("v1/cluster", {}, options), get("v1/connectors", {}, options),
  ]).catch((error) => {
    throw signal.aborted || error instanceof ApiError ? error : new ApiError(0, { message: "The worker does not answer" });
  });
  if (signal.aborted) return;
  const now = Date.now();
  const tasksOf = new Map();
  for (const task of cluster.tasks) {
    task.per_s = rateOf(task, now);
    if (!tasksOf.has(task.connector)) tasksOf.set(task.connector, []);
    tasksOf.get(task.connector).push(task);
  }
  const known = new Set(cluster.tasks.map(keyOf));
  for (const key of counters.keys()) if (!known.has(key)) counters.delete(key);
  live.cluster = cluster;
  live.connectors = summaries.connectors.map((summary) => figures(summary, tasksOf.get(summary.name) || []));
  live.at = now;
  remember(now);
}

// Workers tell the numbers of their tasks every few seconds: the rate is over what the last ones say together.
const RATE_MS = 12_000;
const RATE_MS_MIN = 2_500;

const keyOf = (task) => `${task.task} ${task.connector}`;

function rateOf(task, now) {
  const key = keyOf(task);
  const total = RECORDS.map((name) => task.metrics[name]).find(isNumber);
  const samples = counters.get(key) || [];
  if (total === undefined || (samples.length && (samples[0].epoch !== task.epoch || samples.at(-1).total > total || samples.at(-1).at > now))) {
    samples.length = 0;
  }
  if (total === undefined) return null;
  samples.push({ at: now, total, epoch: task.epoch });
  while (samples.length > 2 && samples[1].at <= now - RATE_MS) samples.shift();
  counters.set(key, samples);
  const elapsed = (now - samples[0].at) / 1000;
  return elapsed >= RATE_MS_MIN / 1000 ? (total - samples[0].total) / elapsed : null;
}

function figures(summary, own) {
  const numbers = (values) => values.filter(isNumber);
  const lags = numbers(own.map((task) => task.metrics.lag_s));
  const rates = numbers(own.map((task) => task.per_s));
  return {
    ...summary,
    lag_s: lags.length ? Math.max(...lags) : null,
    per_s: rates.length ? rates.reduce((sum, one) => sum + one, 0) : null,
  };
}

// However often a cluster is read that changes all the time, the samples are no closer than SAMPLE_MS: the newest is replaced.
function remember(now) {
  // The clock was set back.
  if (now < sampled) histories.clear();
  if (now < sampled || now - sampled >= SAMPLE_MS) sampled = now;
  const names = new Set();
  for (const { name, lag_s: lag, per_s: perSecond } of live.connectors) {
    names.add(name);
    if (!histories.has(name)) histories.set(name, [[], [], []]);
    const history = histories.get(name);
    const sample = [sampled / 1000, lag, perSecond];
    const place = history[0].at(-1) === sample[0] ? history[0].length - 1 : history[0].length;
    history.forEach((column, index) => { column[place] = sample[index]; });
    while (history[0][0] < (now - KEPT_MS) / 1000) history.forEach((column) => column.shift());
  }
  for (const name of histories.keys()) if (!names.has(name)) histories.delete(name);
}

function untilVisible(signal) {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    look();
  });
}

// Events say that something has changed; what it is is read again as a whole. A browser has six connections for all tabs of a
// worker: a tab that nobody sees holds none, and is then told what it has missed.
async function listen(signal) {
  let failures = 0;
  let last = "";
  while (!signal.aborted) {
    await untilVisible(signal);
    if (signal.aborted) return;
    const seen = new AbortController();
    const look = () => { if (document.hidden || signal.aborted) seen.abort(); };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    try {
      await stream("v1/events", { last_event_id: last }, seen.signal, (event) => {
        if (seen.signal.aborted) return;
        failures = 0;
        live.streaming = true;
        last = event.id || last;
        if (event.data.ts) events.unshift(event);
        events.length = Math.min(events.length, EVENTS_MAX);
        refresh();
      });
      failures += 1;
    } catch (error) {
      if (signal.aborted || error.status === 401 || error.status === 403) return;
      failures = seen.signal.aborted ? 0 : failures + 1;
    } finally {
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
    }
    if (signal.aborted) return;
    live.streaming = false;
    await wait(Math.min(BACK_OFF_MAX_MS, 1_000 * 2 ** Math.min(failures, 5)), signal);
  }
}

// One answer of the API, read again whenever `again` changes; errors are shown where the answer would be. A new `tick` waits for
// the answer before: a slow one would never come.
export function useAnswer(load, again = [], tick = 0) {
  const [found, setFound] = useState({ content: null, error: null, loading: true });
  const running = useRef(null);
  const begin = () => {
    const control = new AbortController();
    running.current = control;
    load(control.signal).then(
      (content) => control.signal.aborted || setFound({ content, error: null, loading: false }),
      (error) => control.signal.aborted || setFound((old) => ({ content: old.content, error, loading: false })),
    ).finally(() => {
      if (running.current === control) running.current = null;
    });
  };
  useEffect(() => {
    begin();
    return () => {
      running.current?.abort();
      running.current = null;
    };
  }, again);
  useEffect(() => {
    if (!running.current) begin();
  }, [tick]);
  return found;
}
