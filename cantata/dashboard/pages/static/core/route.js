/** Addresses of the pages: which page is shown, and what of it. Pure. */

const TABS = new Set(["graph", "time", "events", "tasks", "request"]);

/** The page that a path means: {page: "list"}, {page: "run", runId} or {page: "none"}. */
export function pageOf(base, path) {
  const own = path.startsWith(base) ? path.slice(base.length) : "";
  if (own === "" || own === "/") return { page: "list" };
  const found = /^\/run\/([^/]+)\/?$/.exec(own);
  return found ? { page: "run", runId: decoded(found[1]) } : { page: "none" };
}

/** The address of a run, with a tab and a step of it if they are given. */
export function runAddress(base, runId, { tab = "graph", step = null } = {}) {
  const query = new URLSearchParams();
  if (tab !== "graph") query.set("tab", tab);
  if (step !== null) query.set("step", step);
  const text = query.toString();
  return `${base}/run/${encodeURIComponent(runId)}${text ? `?${text}` : ""}`;
}

/** What of a run is shown: {tab, step}. */
export function locationIn(search) {
  const query = new URLSearchParams(search);
  const tab = query.get("tab");
  return { tab: TABS.has(tab) ? tab : "graph", step: query.get("step") };
}

/** The address of the list with a filter. */
export function listAddress(base, filter) {
  const text = filterQuery(filter).toString();
  return `${base}/${text ? `?${text}` : ""}`;
}

/** The filter that an address of the list has: {statuses, kind, text}. */
export function filterOf(search) {
  const query = new URLSearchParams(search);
  return { statuses: query.getAll("status"), kind: query.get("kind") ?? "", text: query.get("q") ?? "" };
}

/** A filter as the parameters that the API and the page's own address share. */
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
