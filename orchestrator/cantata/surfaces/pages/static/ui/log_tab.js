/** Log of a run: its newest lines as they come, filtered by step, level and text. */

import { html, useLayoutEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { clip, count, plural } from "../core/format.js";
import { MAX_LINES, pagesOf, queryOf, useLogLines } from "../log_reading.js";
import { save } from "../saving.js";
import { LogLine, textOf } from "./logs.js";

const END_PX = 40; // pixels from the end within which the list follows it
const LEVELS = { debug: "All levels", info: "Info and above", warning: "Warning and above", error: "Error and above" };

/** The tab; `view` is the run's graph, `nameOf(id)` the name of a step, `onSelect(id)` opens it. */
export function LogTab({ view, isOpen, nameOf, onSelect }) {
  const runId = view.run.run_id;
  const [filter, setFilter] = useState({ step: "", level: "debug" });
  const [text, setText] = useState("");
  const [frozen, setFrozen] = useState(null); // what was read when the reader scrolled up
  const live = useLogLines(runId, filter, isOpen);
  const { lines, count: until } = frozen ?? live;
  const box = useRef(null);
  const needle = text.trim().toLowerCase();
  const shown = useMemo(() => (needle ? lines.filter((line) => haystack(line).includes(needle)) : lines), [lines, needle]);
  const change = (part) => {
    setFrozen(null);
    setFilter({ ...filter, ...part });
  };
  const toEnd = () => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  };
  useLayoutEffect(() => {
    if (!frozen) toEnd();
  }, [shown, frozen]);
  const onScroll = ({ currentTarget: list }) => {
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < END_PX;
    if (isAtEnd === (frozen === null)) return;
    setFrozen(isAtEnd ? null : live);
  };
  const fresh = live.count - until;
  return html`<section aria-label="Log" class="log-tab">
    <form class="log-bar" role="search" onSubmit=${(event) => event.preventDefault()}>
      <input type="search" value=${text} onInput=${(event) => setText(event.target.value)} placeholder="Search these lines" aria-label="Search the log" />
      <select aria-label="Level" value=${filter.level} onChange=${(event) => change({ level: event.target.value })}>
        ${Object.entries(LEVELS).map(([level, label]) => html`<option key=${level} value=${level}>${label}</option>`)}</select>
      <select aria-label="Step of the log" value=${filter.step} onChange=${(event) => change({ step: event.target.value })}>
        <option value="">All steps</option>
        ${[...view.steps.values()].filter((step) => !step.internal || step.id === filter.step).map((step) => html`<option key=${step.id} value=${step.id}>${clip(step.name, 60)}</option>`)}</select>
      <${Download} runId=${runId} filter=${filter} needle=${needle} />
    </form>
    ${live.fault && html`<p class="fault pad" role="alert">${live.fault.message}</p>`}
    <div class="log-list" ref=${box} onScroll=${onScroll} role="log" aria-live="off" aria-label="Log lines, newest last" tabindex="0">
      ${live.dropped > 0 && html`<p class="muted">${plural(live.dropped, "older line")} of this run ${live.dropped === 1 ? "is" : "are"} no longer kept.</p>`}
      ${until > lines.length && html`<p class="muted">The newest ${count(MAX_LINES)} of ${plural(until, "line")}; the download has all that are kept.</p>`}
      ${blocksOf(shown).map(([block, some]) => html`<${Block} key=${block} lines=${some} nameOf=${nameOf} onSelect=${onSelect} />`)}
      ${!shown.length && html`<p class="muted">${!live.isRead ? "Reading…" : lines.length ? "No line has this text." : "No lines."}</p>`}
    </div>
    <p class="log-end muted"><span>${needle ? `${count(shown.length)} of ` : ""}${plural(lines.length, "line")}</span>
      ${frozen ? html`<button type="button" onClick=${() => setFrozen(null)}>Follow${fresh > 0 ? ` (${plural(fresh, "new line")})` : ""}</button>`
        : isOpen && html`<span>Following; scroll up to pause</span>`}
      <span class="only-read" role="status">${frozen && isOpen ? "Paused" : ""}</span></p>
  </section>`;
}

/** Lines that are rendered together: not again while they are the same. */
function Block({ lines, nameOf, onSelect }) {
  return useMemo(() => html`<ol class="logs">${lines.map((line) => html`<${LogLine} key=${line.id} line=${line} nameOf=${nameOf} onSelect=${onSelect} />`)}</ol>`,
    [lines[0].id, lines.at(-1).id, lines.length]);
}

function blocksOf(lines) {
  const blocks = new Map();
  for (const line of lines) {
    if (!blocks.has(line.block)) blocks.set(line.block, []);
    blocks.get(line.block).push(line);
  }
  return [...blocks];
}

const haystacks = new WeakMap();

/** Return what a search looks at in a line, in lower case. */
function haystack(line) {
  if (!haystacks.has(line)) haystacks.set(line, [line.event, line.step ?? "", line.worker ?? "", textOf(line.fields ?? {})].join("\n").toLowerCase());
  return haystacks.get(line);
}

function Download({ runId, filter, needle }) {
  const [state, setState] = useState({ isBusy: false, fault: null });
  const download = async () => {
    setState({ isBusy: true, fault: null });
    try {
      const parts = [];
      for await (const { lines } of pagesOf(runId, queryOf(filter), "0-0")) {
        parts.push(...lines.filter((line) => !needle || haystack(line).includes(needle)).map((line) => `${JSON.stringify(line)}\n`));
      }
      save(new Blob(parts, { type: "application/x-ndjson" }), `${runId}-log.jsonl`);
      setState({ isBusy: false, fault: null });
    } catch (fault) {
      setState({ isBusy: false, fault });
    }
  };
  return html`<button type="button" disabled=${state.isBusy} onClick=${download} title="The lines of this filter, as JSON lines">Download</button>
    ${state.fault && html`<span class="fault" role="alert">${state.fault.message}</span>`}`;
}
