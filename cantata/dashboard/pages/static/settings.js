/** What the server wrote into the document, and what this browser keeps: the token (until the tab is closed) and the theme. */

const { api, base, flower } = document.documentElement.dataset;
const TOKEN = "cantata.token";
const THEME = "cantata.theme";

/** Where the API and the pages are, without a slash at the end; where Flower is, or "". */
export const urls = { api: api ?? "", base: base ?? "", flower: webAddress(flower) };

function webAddress(text) {
  return /^(https?:\/\/|\/)/.test(text ?? "") ? text : "";
}

/** The token that the user gave, or "". */
export function token() {
  return sessionStorage.getItem(TOKEN) ?? "";
}

/** Keep a token, or with "" forget it. */
export function keepToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

/** The theme that is shown: "dark" or "light". */
export function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

/** Show the other theme, and remember it. Answers its name. */
export function switchTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem(THEME, next);
  } catch {
    // it lasts until the page is left
  }
  return next;
}
