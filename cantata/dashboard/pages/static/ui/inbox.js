/** Inbox: steps that wait for a person, the question first; answered ones go away while one looks. */

import { html, useCallback, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { read } from "../api.js";
import { age, clip, moment, plain, plural, value } from "../core/format.js";
import { runAddress } from "../core/route.js";
import { urls } from "../settings.js";
import { useNow } from "../ticking.js";
import { Labels } from "./row.js";
import { Signal } from "./signal.js";

const PAGE_SIZE = 50;
const MAX_SHOWN = 200;
const REFRESH_MS = 2000;

/** The page. */
export function InboxPage() {
  const [most, setMost] = useState(PAGE_SIZE);
  const { items, next, fault, refresh } = useInbox(most);
  const [news, setNews] = useState("");
  const heading = useRef(null);
  const now = useNow(1000);
  useEffect(() => {
    document.title = "Inbox · Cantata";
  }, []);
  const answered = (item) => {
    setNews(`Answered: ${clip(item.question || item.step, 120)}`);
    heading.current?.focus();
    refresh();
  };
  return html`<main id="main" class="list-page inbox" tabindex="-1">
    <h1 ref=${heading} tabindex="-1">Inbox</h1>
    <p class="muted" aria-live="polite">${news}</p>
    ${fault && html`<p class="fault" role="alert">${fault.message}</p>`}
    ${items && !items.length && html`<div class="empty"><p>No step waits for a person.</p></div>`}
    <ul class="inbox-items">${(items ?? []).map((item) => html`<${Item} key=${item.id} item=${item} now=${now} onDone=${() => answered(item)} />`)}</ul>
    ${next && (most < MAX_SHOWN
      ? html`<button type="button" onClick=${() => setMost(most + PAGE_SIZE)}>Show more</button>`
      : html`<p class="muted">These have waited longest; <code>submit inbox list</code> has all.</p>`)}
    <p class="list-end muted">${items ? `${plural(items.length, "step")}${next ? ", and more" : ""}` : "Reading…"}</p>
  </main>`;
}

function Item({ item, now, onDone }) {
  const [isOpen, setOpen] = useState(false);
  const title = item.question || `${item.step} waits for a value`;
  return html`<li class="card"><article aria-labelledby=${`${item.id}:question`}>
    <h2 class="question" id=${`${item.id}:question`}>${plain(title)}</h2>
    <p class="row-more"><a href=${runAddress(urls.base, item.run_id, { step: item.step })}>${clip(item.title || item.run_id, 120)}</a>
      <bdi class="id">${clip(item.step, 80)}</bdi><span title=${moment(item.since)}>${age(now - item.since)}</span>
      ${item.who && html`<span>for ${clip(item.who.join(", "), 80)}</span>`}${item.escalated_at && html`<span>escalated</span>`}
      ${item.ends_at && html`<span>until ${moment(item.ends_at)}</span>`}<${Labels} labels=${item.labels} /></p>
    ${item.context !== null && html`<details class="value"><summary>Context</summary><pre class="text boxed">${value(item.context)}</pre></details>`}
    <details class="value" onToggle=${(event) => setOpen(event.target.open)}><summary>Answer</summary>
      ${isOpen && html`<${Signal} runId=${item.run_id} stepId=${item.step} schema=${item.answer_schema} refused=${item.refused} onDone=${onDone} />`}</details>
  </article></li>`;
}

/** Return {items, next, fault, refresh}: the first `most` items, read again to stay current; null until they are read. */
function useInbox(most) {
  const [state, setState] = useState({ items: null, next: null, fault: null });
  const act = useRef(() => {});
  useEffect(() => {
    const ending = new AbortController();
    const load = () => read(`/inbox?most=${most}`, { signal: ending.signal }).then(
      (found) => setState({ ...found, fault: null }),
      (fault) => ending.signal.aborted || setState((before) => ({ ...before, fault })),
    );
    act.current = load;
    load();
    const timer = setInterval(() => document.hidden || load(), REFRESH_MS);
    return () => {
      clearInterval(timer);
      ending.abort();
    };
  }, [most]);
  return { ...state, refresh: useCallback(() => act.current(), []) };
}
