/** Settings from the document, and from this browser: the token and the tenant (until the tab is closed), and the theme. */

const { api, base, flower, trace } = document.documentElement.dataset;
const TOKEN = "cantata.token";
const TENANT = "cantata.tenant";
const THEME = "cantata.theme";

/** URLs of the API and the pages, without a trailing slash; of Flower, or "". */
export const urls = { api: api ?? "", base: base ?? "", flower: webAddress(flower) };

/** Whether these are the pages in Flower, whose API has no batches and no workers: Flower has pages of workers itself. */
export const isInFlower = urls.api.startsWith(urls.base);

function webAddress(text) {
  return /^(https?:\/\/|\/)/.test(text ?? "") ? text : "";
}

/** Return the address of a trace, or of a span in it; "" without ids, without a setting, or if the setting has no place for the span's. */
export function traceAddress(traceId, spanId, isOfSpan = false) {
  const isKnown = webAddress(trace) && traceId && spanId && (!isOfSpan || trace.includes("{span_id}"));
  return isKnown ? trace.replaceAll("{trace_id}", traceId).replaceAll("{span_id}", spanId) : "";
}

/** Return the user's token, or "". */
export function token() {
  return sessionStorage.getItem(TOKEN) ?? "";
}

/** Return the tenant that an operator has chosen, "" for what belongs to none; null for all. */
export function tenant() {
  return sessionStorage.getItem(TENANT);
}

/** Store the chosen tenant; null stands for all. */
export function keepTenant(name) {
  if (name === null) sessionStorage.removeItem(TENANT);
  else sessionStorage.setItem(TENANT, name);
}

/** Store a token; "" deletes it. The chosen tenant goes with it. */
export function keepToken(text) {
  keepTenant(null);
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

/** Return the current theme: "dark" or "light". */
export function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

/** Switch to the other theme, and store it. Return its name. */
export function switchTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem(THEME, next);
  } catch {
    // without storage it lasts until the page is closed
  }
  return next;
}
