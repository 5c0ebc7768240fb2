/** Asks the API. Every call carries the token, if there is one. */

import { urls, token } from "./settings.js";

/** The API refused, or was not reached (status 0). */
export class Refusal extends Error {
  constructor(status, { code = "", message = "" } = {}) {
    super(message || (status ? `The server answered ${status}.` : "The server cannot be reached."));
    this.status = status;
    this.code = code;
  }
}

const REDIRECTED = "cantata.led-away";

let onTokenNeeded = () => {};

/** Call `act` whenever the API wants a token, or another one. */
export function setTokenHandler(act) {
  onTokenNeeded = act;
}

/** A response of the API that is well; raises Refusal otherwise. */
export async function open(path, { headers = {}, ...options } = {}) {
  const known = token();
  const all = { Accept: "application/json", ...(known ? { Authorization: `Bearer ${known}` } : {}), ...headers };
  let response;
  try {
    response = await fetch(urls.api + path, { ...options, headers: all, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0);
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
  throw new Refusal(response.status, why);
}

/** Where somebody else asks who one is, loading the page again leads there; once, so that nothing goes round. */
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

/** The JSON that the API answers. */
export async function read(path, options) {
  return (await open(path, options)).json();
}

/** Have the API do something; answers its JSON. */
export function send(path, body = undefined, headers = {}) {
  const text = body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...headers } };
  return read(path, { method: "POST", headers, ...text });
}

/** The address of a run in the API, with more of a path. */
export function ofRun(runId, ...more) {
  return ["/runs", runId, ...more].map((part, index) => (index ? encodeURIComponent(part) : part)).join("/");
}
