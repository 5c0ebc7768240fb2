/** Two runs side by side: their figures, their requests, and their steps. */

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { ofRun, read } from "../api.js";
import { clip, cost, duration, moment, tokens, value } from "../core/format.js";
import { runAddress } from "../core/route.js";
import { ofRun as stateOfRun, ofStep } from "../core/states.js";
import { urls } from "../settings.js";
import { Icon, State } from "./icons.js";
import { messageOf } from "./row.js";

const MAX_CANDIDATES = 5;

/** The tab; `other` is the id of the run on the right, `onOther(id)` chooses it. */
export function CompareTab({ run, other, onOther, onSelect }) {
  const { found, fault } = useComparison(run, other);
  const submit = (event) => {
    event.preventDefault();
    const [, id] = /([^/?#]+)(?:[?#].*)?$/.exec(event.target.elements.other.value.trim()) ?? []; // an id, or an address that ends with it
    if (id) onOther(id);
  };
  return html`<section aria-label="Comparison" class="pad compare">
    <form class="with-button" onSubmit=${submit}><label for="other">Compare with the run</label>
      <input id="other" name="other" key=${other} defaultValue=${other ?? ""} placeholder="id of a run" spellcheck="false" />
      <button type="submit">Compare</button></form>
    <${Candidates} run=${run} other=${other} onOther=${onOther} />
    ${fault && html`<p class="fault" role="alert">${fault.message}</p>`}
    ${found && html`<${Figures} left=${found.left} right=${found.right} /><${Steps} found=${found} onSelect=${onSelect} />`}
  </section>`;
}

/** Other runs of the same request or source, as buttons. */
function Candidates({ run, other, onOther }) {
  const [runs, setRuns] = useState([]);
  useEffect(() => {
    if (!run.title) return undefined;
    const ending = new AbortController();
    read(`/runs?${new URLSearchParams({ q: run.title.replace(/…$/, ""), most: 20 })}`, { signal: ending.signal }).then((page) => setRuns(page.runs), () => {});
    return () => ending.abort();
  }, [run.title]);
  const ids = new Set([...(run.forked_from ? [run.forked_from] : []), ...runs.map((each) => each.run_id)]);
  const shown = [...ids].filter((id) => id !== run.run_id && id !== other).slice(0, MAX_CANDIDATES);
  return shown.length > 0 && html`<p class="muted">Runs like this one: ${shown.map((id) => html`<button type="button" class="link id" key=${id} onClick=${() => onOther(id)}>${clip(id, 24)}</button> `)}</p>`;
}

function useComparison(run, other) {
  const [state, setState] = useState({ found: null, fault: null });
  useEffect(() => {
    if (!other) return undefined;
    const ending = new AbortController();
    read(ofRun(run.run_id, "compare", other), { signal: ending.signal }).then(
      (found) => setState({ found, fault: null }),
      (fault) => ending.signal.aborted || setState({ found: null, fault }),
    );
    return () => ending.abort();
  }, [run.run_id, run.status, other]);
  return state;
}

const took = (each) => ((each.closed_at ?? each.now) - each.created_at);
const FIGURES = [
  ["State", (run) => html`<${State} is=${stateOfRun(run.status, run.failures)} />`],
  ["Started", (run) => moment(run.created_at)],
  ["Duration", (run) => duration(took(run))],
  ["Tokens", (run) => tokens(run.usage)],
  ["Cost", (run) => cost(run.usage.model_calls ? run.usage.cost_usd : null)],
  ["Code", (run) => clip(run.code.join(", "), 120)],
  ["Error", (run) => run.error && clip(messageOf(run.error), 300)],
];
const TEXTS = [["Request", (run, other) => value(differing(run.request, other.request))], ["Answer", (run) => (run.answer === null ? "" : value(run.answer))]];

/** Return the fields of a value that another one does not have alike; a value without fields whole. */
function differing(one, two) {
  if (!isObject(one) || !isObject(two)) return one;
  const alike = (name) => JSON.stringify(one[name]) === JSON.stringify(two[name]);
  return Object.fromEntries(Object.entries(one).filter(([name]) => !alike(name)));
}

const isObject = (json) => typeof json === "object" && json !== null && !Array.isArray(json);

function Figures({ left, right }) {
  const column = (run, name) => html`<th scope="col">${name} <a href=${runAddress(urls.base, run.run_id)}>${clip(run.run_id, 24)}</a></th>`;
  return html`<div class="wide" tabindex="0" role="region" aria-label="Figures"><table class="plain"><thead><tr><td></td>${column(left, "This run")}${column(right, "Run")}</tr></thead>
    <tbody>${FIGURES.filter(([, of]) => of(left) || of(right)).map(([name, of]) => html`<tr key=${name}><th scope="row">${name}</th><td>${of(left) || "–"}</td><td>${of(right) || "–"}</td></tr>`)}
      ${TEXTS.map(([name, of]) => html`<tr key=${name}><th scope="row">${name}</th>${of(left, right) === of(right, left)
        ? html`<td colspan="2" class="muted">the same</td>`
        : [[left, right], [right, left]].map((runs) => html`<td><pre class="text" tabindex="0">${of(...runs) || "–"}</pre></td>`)}</tr>`)}</tbody></table></div>`;
}

function Steps({ found: { left, right, steps }, onSelect }) {
  const cell = (step, run, isOurs) => {
    if (!step) return html`<td class="muted">no such step</td>`;
    const is = ofStep(step);
    const name = html`<${Icon} of=${is.icon} tone=${is.tone} /> ${is.label}`;
    const open = isOurs ? html`<button type="button" class="link" onClick=${() => onSelect(step.id)}>${name}</button>`
      : html`<a href=${runAddress(urls.base, run.run_id, { step: step.id })}>${name}</a>`;
    return html`<td>${open} <span class="muted num">${step.started_at && step.ended_at ? duration(step.ended_at - step.started_at) : ""}</span></td>`;
  };
  const output = (same) => (same === null ? "" : same ? html`<span class="muted">the same</span>` : html`<strong>differs</strong>`);
  return html`<div class="wide" tabindex="0" role="region" aria-label="Steps of both runs"><table class="plain"><thead><tr><th scope="col">Step</th><th scope="col">This run</th><th scope="col">Other run</th><th scope="col">Output</th></tr></thead>
    <tbody>${steps.map(({ id, left: one, right: two, same_output: same }) => html`<tr key=${id} class=${one && two && one.state === two.state && same !== false ? "" : "differs"}>
      <th scope="row" title=${clip(id, 200)}>${clip((one ?? two).name, 80)}</th>${cell(one, left, true)}${cell(two, right, false)}<td>${output(same)}</td></tr>`)}</tbody></table></div>`;
}
