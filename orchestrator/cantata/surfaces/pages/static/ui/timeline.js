/** Time line of a run: for each step the time that it waited, and for what, the time that it worked, and its worker. */

import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { clip, duration } from "../core/format.js";
import { visibleRows } from "../core/paging.js";
import { attemptOf, ofStep } from "../core/states.js";
import { spentBy, ticks, timesOf, wasHeldBack } from "../core/times.js";
import { Icon } from "./icons.js";

const ROW = 32; // pixels, as in run.css
const LEGEND = [ // those that a run has: class of their spans, words, and which of its rows have one
  ["wait", "waited in a queue", (row) => row.wait],
  ["held", "held back by limits", (row) => row.before && wasHeldBack(row.step)],
  ["before", "earlier attempts", (row) => row.before && !wasHeldBack(row.step)],
  ["work", "worked", (row) => row.work],
  ["hold", "waited for an answer", (row) => row.hold && row.step.awaits === "answer"],
  ["hold sleep", "slept", (row) => row.hold && row.step.awaits === "time"],
];

/** The time line; only visible rows are rendered. */
export function TimeTab({ view, now, selected, onSelect }) {
  const { rows, from, until } = useMemo(() => timesOf(view, now), [view, now]);
  const box = useRef(null);
  const axis = useRef(null);
  const [seen, setSeen] = useState({ top: 0, height: 800, width: 0 });
  useEffect(() => {
    const element = box.current;
    const read = () => setSeen({ top: element.scrollTop, height: element.clientHeight, width: axis.current.clientWidth });
    const watcher = new ResizeObserver(read);
    watcher.observe(element);
    element.addEventListener("scroll", read, { passive: true });
    return () => {
      watcher.disconnect();
      element.removeEventListener("scroll", read);
    };
  }, []);
  const part = visibleRows({ count: rows.length, rowHeight: ROW, ...seen });
  return html`<section aria-label="Time line" class="times">
    <div class="time-legend muted">${LEGEND.map(([kind, words, isOf]) => rows.some(isOf) && html`<span key=${kind}><i class="swatch ${kind}" /> ${words}</span>`)}</div>
    <div class="time-row time-head" aria-hidden="true"><span>Step</span><span>Worker</span>
      <span class="lane" ref=${axis}>${ticks(until - from, seen.width).map(([label, x]) => html`<span key=${label} class="mark num" style=${{ left: `${100 * x}%` }}>${label}</span>`)}</span></div>
    <div class="time-list" ref=${box} tabindex="-1">
      <div style=${{ height: `${part.before}px` }} />
      ${rows.slice(part.from, part.to).map((row) => html`<${Row} key=${row.step.id} row=${row} now=${until} isSelected=${selected === row.step.id} onSelect=${onSelect} />`)}
      <div style=${{ height: `${part.after}px` }} />
      ${!rows.length && html`<p class="muted pad">No step is ready yet.</p>`}
    </div>
  </section>`;
}

function Row({ row: { step, wait, before, work, hold }, now, isSelected, onSelect }) {
  const is = ofStep(step);
  const description = spentBy(step, now).map(([name, text]) => `${name.toLowerCase()} ${text}`).join(", ");
  return html`<button type="button" class="time-row ${isSelected ? "selected" : ""}" onClick=${() => onSelect(step.id)}
      aria-label="${clip(step.name, 80)}: ${is.label}, ${description}${step.worker ? `, by ${clip(step.worker, 40)}` : ""}" title=${description}>
    <span class="time-name"><${Icon} of=${is.icon} tone=${is.tone} /><span class="node-name">${clip(step.name, 60)}</span>
      ${attemptOf(step) > 1 && html`<span class="badge">×${attemptOf(step)}</span>`}</span>
    <span class="time-worker muted">${clip(step.worker ?? "", 40)}</span>
    <span class="lane">${wait && html`<span class="span wait" style=${span(wait)} />`}${before && html`<span class="span ${wasHeldBack(step) ? "held" : "before"}" style=${span(before)} />`}${work && html`<span class="span work tone-${is.tone}" style=${span(work)} />`}${hold && html`<span class="span hold ${step.awaits === "time" ? "sleep" : ""}" style=${span(hold)} />`}</span>
  </button>`;
}

function span([start, length]) {
  return { left: `${100 * start}%`, width: `${100 * length}%` };
}
