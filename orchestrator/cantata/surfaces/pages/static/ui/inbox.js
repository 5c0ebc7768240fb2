/** Inbox: steps that wait for a person, the question first; answered one by one, or several at once. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { ofRun, send } from "../api.js";
import { forEach } from "../bulk.js";
import { titleOf } from "../core/answer_fields.js";
import { age, clip, moment, plural } from "../core/format.js";
import { runAddress } from "../core/route.js";
import { usePolled } from "../polling.js";
import { urls } from "../settings.js";
import { useNow } from "../ticking.js";
import { AnswerForm } from "./answer_form.js";
import { Prose } from "./markdown.js";
import { Labels } from "./row.js";
import { Question, Signal } from "./signal.js";

const PAGE_SIZE = 50;
const MAX_SHOWN = 200;

/** The page. */
export function InboxPage() {
  const [most, setMost] = useState(PAGE_SIZE);
  const { found, fault, refresh } = usePolled(`/inbox?most=${most}`);
  const { items, next } = found ?? { items: null, next: null };
  const [chosen, setChosen] = useState(new Set());
  const several = (items ?? []).filter((item) => chosen.has(item.id));
  const [news, setNews] = useState("");
  const heading = useRef(null);
  const now = useNow(1000);
  useEffect(() => {
    document.title = "Inbox · Cantata";
  }, []);
  const answered = (item) => {
    setNews(`Answered: ${clip(titleOf(item.question || item.step), 120)}`);
    heading.current?.focus();
    refresh();
  };
  return html`<main id="main" class="list-page inbox" tabindex="-1">
    <h1 ref=${heading} tabindex="-1">Inbox</h1>
    <p class="muted" aria-live="polite">${news}</p>
    ${fault && html`<p class="fault" role="alert">${fault.message}</p>`}
    <${AnswerSeveral} items=${several} clear=${() => setChosen(new Set())} onDone=${(text) => { setNews(text); heading.current?.focus(); refresh(); }} />
    ${items && !items.length && html`<div class="empty"><p>No step waits for a person.</p></div>`}
    <ul class="inbox-items">${(items ?? []).map((item) => html`<${Item} key=${item.id} item=${item} now=${now} onDone=${() => answered(item)}
      isChosen=${chosen.has(item.id)} isAlike=${!several.length || likeness(item) === likeness(several[0])}
      onChoose=${(isOn) => setChosen(new Set([...chosen, item.id].filter((each) => isOn || each !== item.id)))} />`)}</ul>
    ${next && (most < MAX_SHOWN
      ? html`<button type="button" onClick=${() => setMost(most + PAGE_SIZE)}>Show more</button>`
      : html`<p class="muted">These have waited longest; <code>submit inbox list</code> has all.</p>`)}
    <p class="list-end muted">${items ? `${plural(items.length, "step")}${next ? ", and more" : ""}` : "Reading…"}</p>
  </main>`;
}

/** What items that can have the same answer have in common. */
function likeness(item) {
  return JSON.stringify(item.answer_schema ?? null);
}

/** One answer for several steps; those that refuse it are listed. */
function AnswerSeveral({ items, clear, onDone }) {
  const [isBusy, setBusy] = useState(false);
  const [failed, setFailed] = useState([]);
  const give = async (value) => {
    setBusy(true);
    const { done, failed: refused } = await forEach(items, (item) => send(ofRun(item.run_id, "signals", item.step), { value }));
    setBusy(false);
    setFailed(refused);
    clear();
    onDone(`Answered: ${plural(done.length, "step")}${refused.length ? `, ${refused.length} not` : ""}`);
  };
  return html`<div class="fault" role="alert">${failed.map(([item, error]) => html`<p key=${item.id}>${clip(item.question || item.step, 80)}: ${plain(error.message)}</p>`)}</div>
    ${items.length > 0 && html`<section class="card bulk-answer" aria-labelledby="several"><h2 id="several">Answer ${plural(items.length, "selected step")}</h2>
      <${AnswerForm} name="several" schema=${items[0].answer_schema} isOff=${isBusy} onAnswer=${give} />
      <button type="button" class="quiet" onClick=${clear}>Clear</button></section>`}`;
}

function Item({ item, now, onDone, isChosen, isAlike, onChoose }) {
  const [isOpen, setOpen] = useState(false);
  const title = item.question || `${item.step} waits for a value`;
  return html`<li class="card"><article aria-labelledby=${`${item.id}:question`}>
    <div class="question-line"><input type="checkbox" checked=${isChosen} disabled=${Boolean(item.refused) || !isAlike} onChange=${(event) => onChoose(event.target.checked)}
        aria-label=${`Select ${clip(titleOf(title), 120)}`} title=${item.refused || (isAlike ? "" : "It takes another kind of answer than the selected steps")} />
      <div><${Question} text=${title} id=${`${item.id}:question`} level="2" /></div></div>
    <p class="row-more"><a href=${runAddress(urls.base, item.run_id, { step: item.step })}>${clip(item.title || item.run_id, 120)}</a>
      <bdi class="id">${clip(item.step, 80)}</bdi><span title=${moment(item.since)}>${age(now - item.since)}</span>
      ${item.who && html`<span>for ${clip(item.who.join(", "), 80)}</span>`}${item.escalated_at && html`<span>escalated</span>`}
      ${item.ends_at && html`<span>until ${moment(item.ends_at)}</span>`}<${Labels} labels=${item.labels} /></p>
    ${item.context !== null && html`<details class="value"><summary>Context</summary><${Prose} json=${item.context} /></details>`}
    <details class="value" onToggle=${(event) => setOpen(event.target.open)}><summary>Answer</summary>
      ${isOpen && html`<${Signal} runId=${item.run_id} stepId=${item.step} schema=${item.answer_schema} refused=${item.refused} onDone=${onDone} />`}</details>
  </article></li>`;
}
