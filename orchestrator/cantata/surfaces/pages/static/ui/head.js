/** Head of a run: title, state, cost, actions and answer. */

import { html, useState } from "../vendor/htm-preact.js";
import { age, clip, cost, duration, moment, plural, tokens, value } from "../core/format.js";
import { runAddress } from "../core/route.js";
import { nameOf } from "../core/internal_steps.js";
import { ofRun as stateOfRun } from "../core/states.js";
import { traceAddress, urls } from "../settings.js";
import { Actions } from "./actions.js";
import { RunError } from "./fault.js";
import { State } from "./icons.js";
import { Markdown } from "./markdown.js";
import { Labels } from "./row.js";

const LONG_ANSWER = 600; // characters; a longer answer is folded at first

/** The head; `refusal` says why a step was refused, `go` navigates to another run, `onSelect(id)` opens a step. */
export function Head({ view, refusal, now, connection, fault, reload, go, onSelect }) {
  const { run } = view;
  const trace = traceAddress(run.trace_id, run.span_id);
  return html`<div class="head">
    <p class="back"><a href=${`${urls.base}/`}>All runs</a></p>
    <div class="head-line"><h1>${clip(run.title || run.run_id, 120)}</h1><${Actions} run=${run} reload=${reload} go=${go} /></div>
    <div class="facts">
      <span aria-live="polite" class="run-state"><${State} is=${stateOfRun(run.status, run.failures)} /></span>
      <${Fact} name="Age" title=${moment(run.created_at)}>${age(now - run.created_at)}<//>
      <${Fact} name="Duration">${duration((run.closed_at ?? now) - run.created_at)}<//>
      <${Fact} name="Tokens" title=${`${plural(run.usage.input_tokens, "token")} in, ${plural(run.usage.output_tokens, "token")} out`}>${tokens(run.usage)}<//>
      <${Fact} name="Cost">${cost(run.usage.model_calls ? run.usage.cost_usd : null)}<//>
      <${Fact} name="Calls" title="Of models, of tools">${run.usage.model_calls} + ${run.usage.tool_calls}<//>
      ${run.code?.length > 0 && html`<${Fact} name="Code" title=${run.code.join("\n")}><bdi>${clip(run.code.join(", "), 60)}</bdi><//>`}
      ${run.session && html`<${Fact} name="Session"><bdi>${clip(run.session, 60)}</bdi><//>`}
      ${trace && html`<${Fact} name="Trace"><a href=${trace} target="_blank" rel="noopener noreferrer">${run.trace_id.slice(0, 8)}…</a><//>`}
      ${run.labels.webhook_of && html`<${Fact} name="Posts"><a href=${runAddress(urls.base, run.labels.webhook_of)}>${clip(run.labels.webhook_of, 24)}</a><//>`}
      ${run.webhook_runs.length > 0 && html`<${Fact} name="Webhooks">${run.webhook_runs.map((id) => html`<a href=${runAddress(urls.base, id)}>${clip(id, 24)}</a> `)}<//>`}
      ${run.labels.started_by && html`<${Fact} name="Started by"><a href=${runAddress(urls.base, run.labels.started_by)}>${clip(run.labels.started_by, 24)}</a><//>`}
      ${run.forked_from && html`<${Fact} name="Forked from"><a href=${runAddress(urls.base, run.forked_from)}>${clip(run.forked_from, 24)}</a><//>`}
      ${run.retried_as && html`<${Fact} name="Retried as"><a href=${runAddress(urls.base, run.retried_as)}>${clip(run.retried_as, 24)}</a><//>`}
    </div>
    <div class="facts"><bdi class="id">${clip(run.run_id, 120)}</bdi><${Labels} labels=${others(run.labels)} /></div>
    <${Connection} connection=${connection} fault=${fault} />
    ${refusal && html`<p class="connection" role="status">Stopped: ${clip(refusal, 600)}</p>`}
    ${run.code_mixed && html`<p class="connection" role="status">Its steps ran with different versions of the code: ${clip(run.code_mixed, 400)}</p>`}
    ${pausesOf(view).map(([queue, told]) => html`<p key=${queue} class="connection" role="status">Queue ${clip(queue, 60)} ${clip(told, 200)}: steps wait in it, and deadlines keep running.</p>`)}
    <${Ending} run=${run} view=${view} onSelect=${onSelect} />
  </div>`;
}

/** Return the paused queues in which steps wait now. */
function pausesOf(view) {
  const waiting = new Set([...view.steps.values()].filter((step) => step.state === "sent").map((step) => step.queue));
  return Object.entries(view.paused ?? {}).filter(([queue]) => waiting.has(queue));
}

/** Return the labels that are not shown as links. */
function others({ started_by, webhook_of, forked_from, ...labels }) {
  return labels;
}

function Fact({ name, title, children }) {
  return html`<span class="fact" title=${title}><span class="fact-name">${name}</span> <span class="num">${children}</span></span>`;
}

function Connection({ connection, fault }) {
  const isLost = connection === "lost" || (fault && (fault.status === 0 || fault.status >= 500));
  const message = isLost ? "The connection was lost; reconnecting. The run continues." : fault?.message;
  return html`<p class="connection" role="status">${connection === "gone" ? "This run is no longer stored." : message}</p>`;
}

function Ending({ run, view, onSelect }) {
  const [isWhole, setWhole] = useState(false);
  const hasAnswer = run.answer !== null && run.answer !== undefined;
  const text = hasAnswer ? value(run.answer) : "";
  const isLong = text.length > LONG_ANSWER || text.split("\n").length > 8;
  const fold = isLong && !isWhole ? "folded" : "unfolded";
  return html`
    ${run.error && html`<${RunError} run=${run} name=${nameOf(view, run.error.step ?? "")} onSelect=${onSelect} />`}
    ${hasAnswer && html`<section class="card answer" aria-label="Answer"><h2>Answer</h2>
      ${typeof run.answer === "string" ? html`<${Markdown} text=${run.answer} className=${fold} />` : html`<pre class="text ${fold}">${text}</pre>`}
      ${isLong && html`<button type="button" class="quiet" aria-expanded=${isWhole} onClick=${() => setWhole(!isWhole)}>${isWhole ? "Show less" : "Show all"}</button>`}
      ${run.cut && html`<p class="muted">Truncated: the run's record has all of it.</p>`}</section>`}`;
}
