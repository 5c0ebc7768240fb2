/** List of runs: filter, search, pages read on scrolling, updates that keep the scroll position. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { filterOf, listAddress } from "../core/route.js";
import { visibleRows } from "../core/paging.js";
import { RUN_STATUSES, ofRun } from "../core/states.js";
import { plural } from "../core/format.js";
import { useRuns } from "../listing.js";
import { urls } from "../settings.js";
import { useNow } from "../ticking.js";
import { Icon } from "./icons.js";
import { RunRow } from "./row.js";

const WIDE = "(min-width: 760px)";
const ROW = { wide: 53, narrow: 113 }; // pixels, as in list.css
const NEAR_END = 600; // pixels before the end at which the next page is read
const TYPING_MS = 250;

/** The list page. `search` is the query of its URL, `go(url, {replace})` navigates. */
export function ListPage({ search, go }) {
  const filter = filterOf(search);
  const runs = useRuns(filter);
  const now = useNow(1000);
  const latest = useRef(filter); // typed text arrives later than clicks
  latest.current = filter;
  const change = (part) => go(listAddress(urls.base, { ...latest.current, ...part }), { replace: true });
  useEffect(() => {
    document.title = "Runs · Cantata";
  }, []);
  return html`<main id="main" class="list-page" tabindex="-1">
    <h1>Runs</h1>
    <${Filters} filter=${filter} change=${change} />
    <div class="list-news" aria-live="polite">
      ${runs.news > 0 && html`<button type="button" class="pill" onClick=${() => { scrollTo(0, 0); runs.fromTop(); }}>
        ${plural(runs.news, "new run")}</button>`}
      ${runs.fault && html`<p class="fault" role="alert">${runs.fault.message}</p>`}
    </div>
    <${Rows} runs=${runs} now=${now} isFiltered=${filter.statuses.length || filter.kind || filter.text} />
  </main>`;
}

function Filters({ filter, change }) {
  const [text, setText] = useState(filter.text);
  const typed = useRef(0);
  useEffect(() => setText(filter.text), [filter.text]);
  useEffect(() => () => clearTimeout(typed.current), []);
  const type = (event) => {
    const { value } = event.target;
    setText(value);
    clearTimeout(typed.current);
    typed.current = setTimeout(() => change({ text: value.trim() }), TYPING_MS);
  };
  const toggle = (status) => {
    const has = filter.statuses.includes(status);
    change({ statuses: has ? filter.statuses.filter((each) => each !== status) : [...filter.statuses, status] });
  };
  return html`<form class="filters" role="search" onSubmit=${(event) => { event.preventDefault(); clearTimeout(typed.current); change({ text: text.trim() }); }}>
    <input type="search" name="q" value=${text} onInput=${type} placeholder="Search by text, id, session or label" aria-label="Search runs" />
    <select name="kind" aria-label="Kind" value=${filter.kind} onChange=${(event) => change({ kind: event.target.value })}>
      <option value="">Turns and chains</option><option value="turn">Turns</option><option value="chain">Chains</option><option value="webhook">Webhooks</option>
    </select>
    <div class="chips-row" role="group" aria-label="Status">
      ${RUN_STATUSES.map((status) => {
        const is = ofRun(status);
        return html`<button type="button" key=${status} class="chip-toggle" aria-pressed=${filter.statuses.includes(status)}
          onClick=${() => toggle(status)}><${Icon} of=${is.icon} tone=${is.tone} />${is.label}</button>`;
      })}
    </div>
  </form>`;
}

function Rows({ runs, now, isFiltered }) {
  const body = useRef(null);
  const [view, setView] = useState({ top: 0, height: 900, row: ROW.wide });
  useScrolling(body, setView);
  const { from, to, before, after } = visibleRows({ count: runs.list.length, rowHeight: view.row, top: view.top, height: view.height });
  useEffect(() => {
    if (after < NEAR_END && runs.next !== null && !runs.isReading && !runs.fault) runs.more();
  });
  if (!runs.list.length && runs.next === null && !runs.isReading) return html`<${Empty} isFiltered=${isFiltered} />`;
  return html`<table class="runs" aria-rowcount=${runs.next === null ? runs.list.length + 1 : -1}>
    <thead><tr><th scope="col">Status</th><th scope="col">Run</th><th scope="col">Kind</th><th scope="col" class="num">Steps</th>
      <th scope="col" class="num">Duration</th><th scope="col" class="num">Tokens</th><th scope="col" class="num">Cost</th>
      <th scope="col" class="num">Age</th></tr></thead>
    <tbody ref=${body}>
      ${before > 0 && html`<tr key="before" class="spacer" style=${{ height: `${before}px` }} aria-hidden="true"><td colspan="8"></td></tr>`}
      ${runs.list.slice(from, to).map((run, index) => html`<${RunRow} key=${run.run_id} run=${run} now=${now} number=${from + index + 2} />`)}
      ${after > 0 && html`<tr key="after" class="spacer" style=${{ height: `${after}px` }} aria-hidden="true"><td colspan="8"></td></tr>`}
    </tbody>
  </table>
  <p class="list-end muted">${runs.isReading ? "Reading…" : runs.next === null ? `${plural(runs.list.length, "run")}, to the end` : ""}</p>`;
}

function Empty({ isFiltered }) {
  return html`<div class="empty">${isFiltered
    ? html`<p>No run matches this filter.</p>`
    : html`<p>No runs yet.</p><p class="muted">Submit one: <code>submit turn "How are you?"</code></p>`}</div>`;
}

/** Keeps a state equal to the visible range of rows. */
function useScrolling(body, setView) {
  useEffect(() => {
    let frame = 0;
    const read = () => {
      frame = 0;
      const top = body.current ? -body.current.getBoundingClientRect().top : 0;
      setView({ top: Math.max(0, top), height: innerHeight, row: matchMedia(WIDE).matches ? ROW.wide : ROW.narrow });
    };
    const soon = () => (frame ||= requestAnimationFrame(read));
    addEventListener("scroll", soon, { passive: true });
    addEventListener("resize", soon);
    read();
    return () => {
      removeEventListener("scroll", soon);
      removeEventListener("resize", soon);
      cancelAnimationFrame(frame);
    };
  }, []);
}
