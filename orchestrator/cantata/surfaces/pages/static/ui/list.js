/** List of runs: filters with counts, search, pages read on scrolling, updates that keep the scroll position, actions on selected runs. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { SPANS, apiQuery, filterOf, listAddress } from "../core/route.js";
import { visibleRows } from "../core/paging.js";
import { RUN_STATUSES, ofRun } from "../core/states.js";
import { count, plural } from "../core/format.js";
import { useRuns } from "../listing.js";
import { usePolled } from "../polling.js";
import { isInFlower, urls } from "../settings.js";
import { useNow } from "../ticking.js";
import { BulkAll } from "./bulk_all.js";
import { BulkBar } from "./bulk_bar.js";
import { Icon } from "./icons.js";
import { RunRow } from "./row.js";
import { SavedFilters } from "./saved_filters.js";

const WIDE = "(min-width: 760px)";
const ROW = { wide: 53, narrow: 113 }; // pixels, as in list.css
const NEAR_END = 600; // pixels before the end at which the next page is read
const TYPING_MS = 250;
const COUNTS_MS = 10_000;
const SPAN_LABELS = { "1h": "Last hour", "24h": "Last 24 hours", "7d": "Last 7 days", "30d": "Last 30 days" };
const BETWEEN = "between";

/** The list page. `search` is the query of its URL, `go(url, {replace})` navigates. */
export function ListPage({ search, go }) {
  const filter = filterOf(search);
  const runs = useRuns(filter);
  const now = useNow(1000);
  const [selection, setSelection] = useState({ search, ids: new Set() }); // of another search: none
  const idsOf = (each) => (each.search === search ? each.ids : new Set());
  const selected = idsOf(selection);
  const setSelected = (ids) => setSelection({ search, ids: new Set(ids) });
  const select = (runId, isOn) =>
    setSelection((before) => ({ search, ids: new Set([...idsOf(before), runId].filter((each) => isOn || each !== runId)) }));
  const latest = useRef(filter); // typed text arrives later than clicks
  latest.current = filter;
  const change = (part) => go(listAddress(urls.base, { ...latest.current, ...part }), { replace: true });
  useEffect(() => {
    document.title = "Runs · Cantata";
  }, []);
  return html`<main id="main" class="list-page" tabindex="-1">
    <h1>Runs</h1>
    <${Filters} filter=${filter} change=${change} now=${now} />
    <${SavedFilters} search=${search} />
    ${!isInFlower && html`<${BulkAll} filter=${filter} onDone=${runs.fromTop} />`}
    <${BulkBar} runs=${runs.list.filter((run) => selected.has(run.run_id))} clear=${() => setSelected([])} onDone=${runs.fromTop} />
    <div class="list-news" aria-live="polite">
      ${runs.news > 0 && html`<button type="button" class="pill" onClick=${() => { scrollTo(0, 0); runs.fromTop(); }}>
        ${plural(runs.news, "new run")}</button>`}
      ${runs.fault && html`<p class="fault" role="alert">${runs.fault.message}</p>`}
    </div>
    <${Rows} runs=${runs} now=${now} isFiltered=${Boolean(search)} selected=${selected} select=${select}
      selectAll=${(isOn) => setSelected(isOn ? runs.list.map((run) => run.run_id) : [])} />
  </main>`;
}

function Filters({ filter, change, now }) {
  const { found: counted } = usePolled(`/runs/counts?${apiQuery({ ...filter, statuses: [], text: "" }, Math.floor(now / 60) * 60)}`, COUNTS_MS);
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
    <${Times} filter=${filter} change=${change} now=${now} />
    <div class="chips-row" role="group" aria-label="Status">
      ${RUN_STATUSES.map((status) => {
        const is = ofRun(status);
        return html`<button type="button" key=${status} class="chip-toggle" aria-pressed=${filter.statuses.includes(status)}
          onClick=${() => toggle(status)}><${Icon} of=${is.icon} tone=${is.tone} />${is.label}
          ${counted && !filter.text && html` <span class="num muted">${count(counted.counts[status] ?? 0)}${counted.is_complete ? "" : "+"}</span>`}</button>`;
      })}
    </div>
  </form>`;
}

/** When the runs were started: a span up to now, or between two local times. */
function Times({ filter: { since, until }, change, now }) {
  const isBetween = Boolean(until || (since && !(since in SPANS)));
  const choose = (value) => change({ since: value === BETWEEN ? local(now - SPANS["24h"]) : value, until: "" });
  const time = (name, label, value) => html`<label>${label} <input type="datetime-local" value=${value} onChange=${(event) => change({ [name]: event.target.value })} /></label>`;
  return html`<select name="time" aria-label="Started" value=${isBetween ? BETWEEN : since} onChange=${(event) => choose(event.target.value)}>
      <option value="">Any time</option>${Object.keys(SPANS).map((span) => html`<option value=${span}>${SPAN_LABELS[span]}</option>`)}
      <option value=${BETWEEN}>Between…</option></select>
    ${isBetween && html`<span class="times">${time("since", "from", since in SPANS ? "" : since)} ${time("until", "to", until)}</span>`}`;
}

function local(seconds) {
  return new Date(seconds * 1000 - new Date().getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function Rows({ runs, now, isFiltered, selected, select, selectAll }) {
  const body = useRef(null);
  const [view, setView] = useState({ top: 0, height: 900, row: ROW.wide });
  useScrolling(body, setView);
  const { from, to, before, after } = visibleRows({ count: runs.list.length, rowHeight: view.row, top: view.top, height: view.height });
  useEffect(() => {
    if (after < NEAR_END && runs.next !== null && !runs.isReading && !runs.fault) runs.more();
  });
  if (!runs.list.length && runs.next === null && !runs.isReading) return html`<${Empty} isFiltered=${isFiltered} />`;
  return html`<div class="table-scroller"><table class="runs all" aria-rowcount=${runs.next === null ? runs.list.length + 1 : -1}>
    <thead><tr><th scope="col" class="cell-select"><input type="checkbox" aria-label="Select all runs that are shown" disabled=${!runs.list.length}
        checked=${selected.size > 0 && runs.list.every((run) => selected.has(run.run_id))} onChange=${(event) => selectAll(event.target.checked)} /></th>
      <th scope="col">Status</th><th scope="col">Run</th><th scope="col">Kind</th><th scope="col" class="num">Steps</th>
      <th scope="col" class="num">Duration</th><th scope="col" class="num">Tokens</th><th scope="col" class="num">Cost</th>
      <th scope="col" class="num">Started</th></tr></thead>
    <tbody ref=${body}>
      ${before > 0 && html`<tr key="before" class="spacer" style=${{ height: `${before}px` }} aria-hidden="true"><td colspan="9"></td></tr>`}
      ${runs.list.slice(from, to).map((run, index) => html`<${RunRow} key=${run.run_id} run=${run} now=${now} number=${from + index + 2}
        isSelected=${selected.has(run.run_id)} onSelect=${select} />`)}
      ${after > 0 && html`<tr key="after" class="spacer" style=${{ height: `${after}px` }} aria-hidden="true"><td colspan="9"></td></tr>`}
    </tbody>
  </table></div>
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
