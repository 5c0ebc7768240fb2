/** URLs of the pages. Pure. */

const TABS = new Set(["graph", "time", "events", "tasks", "request"]);

/** Return the page of a path: {page: "list"}, {page: "run", runId}, {page: "schedules"}, {page: "schedule", name} or {page: "none"}. */
export function pageOf(base, path) {
  const own = path.startsWith(base) ? path.slice(base.length) : "";
  if (own === "" || own === "/") return { page: "list" };
  if (/^\/schedules\/?$/.test(own)) return { page: "schedules" };
  const schedule = /^\/schedule\/([^/]+)\/?$/.exec(own);
  if (schedule) return { page: "schedule", name: decoded(schedule[1]) };
  const found = /^\/run\/([^/]+)\/?$/.exec(own);
  return found ? { page: "run", runId: decoded(found[1]) } : { page: "none" };
}

/** Return the URL of a run, with a tab and a step if they are given. */
export function runAddress(base, runId, { tab = "graph", step = null } = {}) {
  const query = new URLSearchParams();
  if (tab !== "graph") query.set("tab", tab);
  if (step !== null) query.set("step", step);
  const text = query.toString();
  return `${base}/run/${encodeURIComponent(runId)}${text ? `?${text}` : ""}`;
}

/** Return the URL of a schedule, which only an operator's page names with its tenant. */
export function scheduleAddress(base, name, tenant = "") {
  return `${base}/schedule/${encodeURIComponent(name)}${tenant ? `?${new URLSearchParams({ tenant })}` : ""}`;
}

/** Return the tab and step of a run in a URL: {tab, step}. */
export function locationIn(search) {
  const query = new URLSearchParams(search);
  const tab = query.get("tab");
  return { tab: TABS.has(tab) ? tab : "graph", step: query.get("step") };
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
