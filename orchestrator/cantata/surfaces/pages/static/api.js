/** Calls of the API. Every call sends the token, if there is one. */

import { parse } from "./core/json.js";
import { isInFlower, tenant, token, urls } from "./settings.js";

/** The API rejected a call, or was not reached (status 0). */
export class Rejection extends Error {
  constructor(status, { code = "", message = "", faults = [] } = {}) {
    super(message || (status ? `The server answered ${status}.` : "The server cannot be reached."));
    this.status = status;
    this.code = code;
    this.faults = faults;
  }
}

const REDIRECTED = "cantata.led-away";

let onTokenNeeded = () => {};

/** Set the function to call when the API needs a token, or another one. */
export function setTokenHandler(act) {
  onTokenNeeded = act;
}

/** Return a successful response of the API; raises Rejection otherwise. */
export async function open(path, { headers = {}, ...options } = {}) {
  const known = token();
  const all = { Accept: "application/json", ...(known ? { Authorization: `Bearer ${known}` } : {}), ...headers };
  let response;
  try {
    response = await fetch(urls.api + ofTenant(path), { ...options, headers: all, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Rejection(0);
  }
  if (response.ok) {
    sessionStorage.removeItem(REDIRECTED);
    return response;
  }
  const why = await fault(response);
  if (response.status === 401) {
    if (why.code === "signed_out") signInAgain();
    else onTokenNeeded(Boolean(known));
  }
  throw new Rejection(response.status, why);
}

/** Return a path with the tenant that an operator has chosen. A run is found by its id, whichever is chosen. */
function ofTenant(path) {
  const chosen = tenant();
  if (chosen === null || isInFlower || /[?&]tenant=/.test(path) || /^\/runs\/(?!(counts|bulk)\b)/.test(path)) return path;
  return `${path}${path.includes("?") ? "&" : "?"}${new URLSearchParams({ tenant: chosen })}`;
}

/** Reload the page, which redirects to the sign-in page of Flower; only once, so that there is no loop. */
function signInAgain() {
  if (sessionStorage.getItem(REDIRECTED)) return;
  sessionStorage.setItem(REDIRECTED, "1");
  location.reload();
}

async function fault(response) {
  try {
    return (await response.json()).error ?? {};
  } catch {
    return {};
  }
}

/** Return the JSON answer of the API. */
export async function read(path, options) {
  return parse(await (await open(path, options)).text());
}

/** POST to the API; return its JSON answer. */
export function send(path, body = undefined, headers = {}) {
  const text = body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...headers } };
  return read(path, { method: "POST", headers, ...text });
}

/** Return the path of a run in the API, with more path segments. */
export function ofRun(runId, ...more) {
  return ["/runs", runId, ...more].map((part, index) => (index ? encodeURIComponent(part) : part)).join("/");
}
