/** URLs of the pages. Pure. */

const TABS = new Set(["graph", "time", "events", "logs", "tasks", "request", "compare"]);

/**
 * Return the page of a path: {page: "list"}, {page: "run", runId}, one of "home", "inbox", "workers", "schedules" and "batches",
 * {page: "schedule", name}, {page: "batch", name} or {page: "none"}.
 */
export function pageOf(base, path) {
  const own = path.startsWith(base) ? path.slice(base.length) : "";
  if (own === "" || own === "/") return { page: "list" };
  const list = /^\/(home|inbox|workers|schedules|batches)\/?$/.exec(own);
  if (list) return { page: list[1] };
  const one = /^\/(schedule|batch)\/([^/]+)\/?$/.exec(own);
  if (one) return { page: one[1], name: decoded(one[2]) };
  const found = /^\/run\/([^/]+)\/?$/.exec(own);
  return found ? { page: "run", runId: decoded(found[1]) } : { page: "none" };
}

/** Return the URL of a run, with a tab, a step and a run to compare it with if they are given. */
export function runAddress(base, runId, { tab = "graph", step = null, other = null } = {}) {
  const query = new URLSearchParams();
  if (tab !== "graph") query.set("tab", tab);
  if (step !== null) query.set("step", step);
  if (other !== null && tab === "compare") query.set("with", other);
  const text = query.toString();
  return `${base}/run/${encodeURIComponent(runId)}${text ? `?${text}` : ""}`;
}

/** Return the URL of a batch, with its tenant if it has one. */
export function batchAddress(base, name, tenant = "") {
  return `${base}/batch/${encodeURIComponent(name)}${tenant ? `?${new URLSearchParams({ tenant })}` : ""}`;
}

/** Return the URL of a schedule, likewise. */
export function scheduleAddress(base, name, tenant = "") {
  return `${base}/schedule/${encodeURIComponent(name)}${tenant ? `?${new URLSearchParams({ tenant })}` : ""}`;
}

/** Return the tab, the step and the other run in the URL of a run: {tab, step, other}. */
export function locationIn(search) {
  const query = new URLSearchParams(search);
  const tab = query.get("tab");
  return { tab: TABS.has(tab) ? tab : "graph", step: query.get("step"), other: query.get("with") };
}

/** Return the URL of the list with a filter. */
export function listAddress(base, filter) {
  const text = filterQuery(filter).toString();
  return `${base}/${text ? `?${text}` : ""}`;
}

/** Spans of time up to now that a filter may have, in seconds. */
export const SPANS = { "1h": 3600, "24h": 86400, "7d": 604800, "30d": 2592000 };

/** Return the filter in a URL of the list: {statuses, kind, text, since, until}; `since` is one of SPANS or a local time, as `until` is. */
export function filterOf(search) {
  const query = new URLSearchParams(search);
  const [kind, text, since, until] = ["kind", "q", "since", "until"].map((name) => query.get(name) ?? "");
  return { statuses: query.getAll("status"), kind, text, since, until };
}

/** Return a filter as the query parameters of the page's URL. */
export function filterQuery({ statuses = [], kind = "", text = "", since = "", until = "" }) {
  const query = new URLSearchParams();
  for (const status of statuses) query.append("status", status);
  for (const [name, given] of Object.entries({ kind, q: text, since, until })) if (given) query.set(name, given);
  return query;
}

/** Return a filter as the query parameters of the API, whose times are seconds since 1970. */
export function apiQuery({ since, until, ...filter }, now) {
  const times = { since: since in SPANS ? now - SPANS[since] : Date.parse(since) / 1000, until: Date.parse(until) / 1000 };
  const known = Object.entries(times).filter(([, seconds]) => Number.isFinite(seconds) && seconds >= 0);
  return filterQuery({ ...filter, ...Object.fromEntries(known.map(([name, seconds]) => [name, String(Math.floor(seconds))])) });
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
