/** Saved filters above the list of runs: links, kept in this browser; the one that is shown can be renamed and deleted. */

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/htm-preact.js";
import { clip } from "../core/format.js";
import { filterOf, listAddress } from "../core/route.js";
import { MAX_NAME, queryOf, renamed, savedIn, withSaved, withoutSaved } from "../core/saved_filters.js";
import { urls } from "../settings.js";

const KEY = `cantata.filters ${urls.base}`;
const NOT_KEPT = "This browser keeps nothing for this page (a private window, or storage is off), so filters cannot be saved. The address of the page has this filter: keep it as a bookmark.";

/** The links and buttons; `search` is the query of the page. */
export function SavedFilters({ search }) {
  const [saved, setSaved] = useState(stored);
  const [editing, setEditing] = useState(null); // the name of the filter that is renamed, "" for a new one
  const [news, setNews] = useState({ text: "" });
  useEffect(() => {
    const changed = ({ key }) => (key === KEY || key === null) && setSaved(stored()); // in another tab
    addEventListener("storage", changed);
    return () => removeEventListener("storage", changed);
  }, []);
  const query = queryOf(search);
  const shown = saved.find((each) => each.query === query);
  useEffect(() => setEditing(null), [query]);
  const keep = (next, text) => {
    try {
      localStorage.setItem(KEY, JSON.stringify(next));
    } catch {
      throw new Error(NOT_KEPT);
    }
    setSaved(next);
    setEditing(null);
    setNews({ text });
  };
  const attempt = (act) => {
    try {
      act();
    } catch (error) {
      setNews({ text: error.message, isFault: true });
    }
  };
  const save = (name) => attempt(() => (editing ? keep(renamed(stored(), editing, name), "Renamed.") : keep(withSaved(stored(), name, query), "Saved in this browser.")));
  const start = (name) => {
    setNews({ text: "" });
    setEditing(name);
  };
  if (!saved.length && !query && !news.text) return null;
  return html`<section class="saved-filters" aria-label="Saved filters">
    ${saved.map((each) => html`<a key=${each.name} class="label" href=${listAddress(urls.base, filterOf(each.query))} aria-current=${each === shown ? "true" : undefined}>${clip(each.name, MAX_NAME)}</a>`)}
    ${editing !== null ? html`<${Name} key=${editing} name=${editing} onSave=${save} onClose=${() => start(null)} />`
      : shown ? html`<button type="button" class="quiet" onClick=${() => start(shown.name)}>Rename</button>
        <button type="button" class="quiet" onClick=${() => attempt(() => keep(withoutSaved(stored(), shown.name), `${shown.name} is deleted.`))}>Delete</button>`
      : query && html`<button type="button" class="quiet" onClick=${() => (isKept() ? start("") : setNews({ text: NOT_KEPT, isFault: true }))}>Save this filter</button>`}
    <span role="status" class=${news.isFault ? "fault" : "muted"}>${news.text}</span>
  </section>`;
}

function Name({ name, onSave, onClose }) {
  const field = useRef(null);
  useLayoutEffect(() => field.current.select(), []); // before the next key
  const submit = (event) => {
    event.preventDefault();
    onSave(field.current.value);
  };
  return html`<form onSubmit=${submit} onKeyDown=${(event) => event.key === "Escape" && onClose()}>
    <input ref=${field} defaultValue=${name} maxlength=${MAX_NAME} aria-label="Name of the filter" placeholder="Name" />
    <button type="submit">Save</button> <button type="button" class="quiet" onClick=${onClose}>Close</button></form>`;
}

function stored() {
  try {
    return savedIn(localStorage.getItem(KEY));
  } catch {
    return [];
  }
}

/** Return whether this browser keeps what is stored. */
function isKept() {
  try {
    localStorage.setItem(`${KEY} probe`, "1");
    localStorage.removeItem(`${KEY} probe`);
    return true;
  } catch {
    return false;
  }
}
