/** URLs of the pages. Pure. */

const TABS = new Set(["graph", "time", "events", "tasks", "request", "compare"]);

/**
 * Return the page of a path: {page: "list"}, {page: "inbox"}, {page: "run", runId}, {page: "schedules"}, {page: "schedule", name},
 * {page: "batches"}, {page: "batch", name} or {page: "none"}.
 */
export function pageOf(base, path) {
  const own = path.startsWith(base) ? path.slice(base.length) : "";
  if (own === "" || own === "/") return { page: "list" };
  const list = /^\/(inbox|schedules|batches)\/?$/.exec(own);
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

/** Return the URL of a batch. */
export function batchAddress(base, name) {
  return `${base}/batch/${encodeURIComponent(name)}`;
}

/** Return the URL of a schedule, which only an operator's page names with its tenant. */
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

/** Return the filter in a URL of the list: {statuses, kind, text}. */
export function filterOf(search) {
  const query = new URLSearchParams(search);
  return { statuses: query.getAll("status"), kind: query.get("kind") ?? "", text: query.get("q") ?? "" };
}

/** Return a filter as the query parameters of the API and of the page's URL. */
export function filterQuery({ statuses, kind, text }) {
  const query = new URLSearchParams();
  for (const status of statuses) query.append("status", status);
  if (kind) query.set("kind", kind);
  if (text) query.set("q", text);
  return query;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
