/** Events of a run, newest last; replies of agents are streamed. */

import { html, useLayoutEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { clip, clock, duration, plain } from "../core/format.js";
import { durationsOf, summary } from "../core/event_list.js";

const MAX_SHOWN = 400; // displayed entries; earlier ones on demand
const END_PX = 40; // pixels from the end within which the list stays at its end

/** The events, but for those of hidden steps that no worker refused; `nameOf(id)` is the name of a step, `onEarlier` reads earlier ones. */
export function EventsTab({ events, isHidden, nameOf, onEarlier, onSelect }) {
  const box = useRef(null);
  const [maxShown, setMost] = useState(MAX_SHOWN);
  const keepsToEnd = useRef(true);
  useLayoutEffect(() => {
    if (keepsToEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [events]);
  const onScroll = ({ currentTarget: list }) => {
    keepsToEnd.current = list.scrollHeight - list.scrollTop - list.clientHeight < END_PX;
  };
  const entries = events.entries.filter((entry) => !entry.step || entry.type === "refused" || !isHidden(entry.step));
  const durations = useMemo(() => durationsOf(events.entries), [events]);
  const hidden = Math.max(0, entries.length - maxShown);
  const earlier = () => {
    keepsToEnd.current = false;
    setMost(maxShown + MAX_SHOWN);
    if (hidden < MAX_SHOWN) onEarlier();
  };
  return html`<section aria-label="Events" class="events">
    <ol class="event-list" ref=${box} onScroll=${onScroll} tabindex="0" aria-label="Events, newest last">
      ${(hidden > 0 || events.first > 1) && html`<li class="earlier"><button type="button" class="quiet" onClick=${earlier}>Earlier events</button></li>`}
      ${entries.slice(hidden).map((entry) => html`<${Entry} key=${entry.seq} entry=${entry} took=${durations.get(entry.seq)} nameOf=${nameOf} onSelect=${onSelect} />`)}
      ${!entries.length && html`<li class="muted">Nothing yet.</li>`}
    </ol>
  </section>`;
}

function Entry({ entry, took, nameOf, onSelect }) {
  const isReply = entry.type === "delta";
  return html`<li class="event kind-${TONES[entry.type] ?? "idle"}">
    <time class="num">${clock(entry.at_ms / 1000)}</time>
    <span class="event-type">${isReply ? "reply" : clip(entry.type.replaceAll("_", " "), 30)}</span>
    <span class="event-what">${entry.step && html`<button type="button" class="link" title=${clip(entry.step, 200)} onClick=${() => onSelect(entry.step)}>${clip(nameOf(entry.step), 60)}</button>`}
      ${entry.attempt > 1 && html`<span class="badge">×${entry.attempt}</span>`}
      ${took !== undefined && html`<span class="num">${duration(took)}</span>`}
      ${entry.worker && html`<bdi class="muted">${clip(entry.worker, 40)}</bdi>`}
      ${isReply ? html`<${Reply} text=${entry.text} isVoid=${entry.void} />` : html`<bdi class="event-detail">${clip(summary(entry), 400)}</bdi>`}</span>
  </li>`;
}

const TONES = {
  started: "busy", done: "good", expanded: "good", failed: "bad", missed_deadline: "bad", lost: "bad", retry: "wait", waiting: "wait", uncertain: "bad",
  warning: "wait", unserved: "wait", refused: "bad",
};

/** Reply of a step; struck through if its attempt was discarded. */
export function Reply({ text, isVoid }) {
  return isVoid ? html`<del class="reply" title="This attempt was discarded">${plain(text)}</del>` : html`<span class="reply">${plain(text)}</span>`;
}
