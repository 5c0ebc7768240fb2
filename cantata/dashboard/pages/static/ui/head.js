/** Head of a run: title, state, cost, actions and answer. */

import { html, useRef, useState } from "../vendor/htm-preact.js";
import { ofRun, send } from "../api.js";
import { age, clip, cost, duration, moment, plural, tokens, value } from "../core/format.js";
import { runAddress } from "../core/route.js";
import { ofRun as stateOfRun, runIsOver } from "../core/states.js";
import { RUN_OVER } from "../core/vocabulary.js";
import { urls } from "../settings.js";
import { useRefusals } from "../refusals.js";
import { Confirmed } from "./dialog.js";
import { State } from "./icons.js";
import { Labels, messageOf } from "./row.js";

const LONG_ANSWER = 600; // characters; a longer answer is folded at first
const CAN_RETRY = new Set([...RUN_OVER].filter((status) => status !== "succeeded"));

/** The head; `go` navigates to the new run after a retry. */
export function Head({ run, now, connection, fault, reload, go }) {
  return html`<div class="head">
    <p class="back"><a href=${`${urls.base}/`}>All runs</a></p>
    <div class="head-line"><h1>${clip(run.title || run.run_id, 120)}</h1><${Buttons} run=${run} reload=${reload} go=${go} /></div>
    <div class="facts">
      <span aria-live="polite" class="run-state"><${State} is=${stateOfRun(run.status, run.failures)} /></span>
      <${Fact} name="Age" title=${moment(run.created_at)}>${age(now - run.created_at)}<//>
      <${Fact} name="Duration">${duration((run.closed_at ?? now) - run.created_at)}<//>
      <${Fact} name="Tokens" title=${`${plural(run.usage.input_tokens, "token")} in, ${plural(run.usage.output_tokens, "token")} out`}>${tokens(run.usage)}<//>
      <${Fact} name="Cost">${cost(run.usage.model_calls ? run.usage.cost_usd : null)}<//>
      <${Fact} name="Calls" title="Of models, of tools">${run.usage.model_calls} + ${run.usage.tool_calls}<//>
      ${run.code?.length > 0 && html`<${Fact} name="Code" title=${run.code.join("\n")}><bdi>${clip(run.code.join(", "), 60)}</bdi><//>`}
      ${run.session && html`<${Fact} name="Session"><bdi>${clip(run.session, 60)}</bdi><//>`}
      ${run.labels.webhook_of && html`<${Fact} name="Posts"><a href=${runAddress(urls.base, run.labels.webhook_of)}>${clip(run.labels.webhook_of, 24)}</a><//>`}
      ${run.webhook_runs.length > 0 && html`<${Fact} name="Webhooks">${run.webhook_runs.map((id) => html`<a href=${runAddress(urls.base, id)}>${clip(id, 24)}</a> `)}<//>`}
      ${run.forked_from && html`<${Fact} name="Forked from"><a href=${runAddress(urls.base, run.forked_from)}>${clip(run.forked_from, 24)}</a><//>`}
    </div>
    <div class="facts"><bdi class="id">${clip(run.run_id, 120)}</bdi><${Labels} labels=${run.labels} /></div>
    <${Connection} connection=${connection} fault=${fault} />
    ${run.code_mixed && html`<p class="connection" role="status">Its steps ran with different versions of the code: ${clip(run.code_mixed, 400)}</p>`}
    <${Ending} run=${run} />
  </div>`;
}

function Fact({ name, title, children }) {
  return html`<span class="fact" title=${title}><span class="fact-name">${name}</span> <span class="num">${children}</span></span>`;
}

function Buttons({ run, reload, go }) {
  const refusals = useRefusals(run.run_id);
  const key = useRef(`pages-${Date.now()}-${Math.random()}`); // a retry that is sent again because its answer was lost gives the same run
  const cancel = async () => {
    await send(ofRun(run.run_id, "cancel"));
    reload();
  };
  const retry = async () => {
    const made = await send(ofRun(run.run_id, "retry"), undefined, { "Idempotency-Key": key.current });
    go(runAddress(urls.base, made.run_id));
  };
  if (!runIsOver(run.status)) {
    return html`<${Confirmed} question="Cancel this run?" yes="Cancel the run" className="danger" act=${cancel} refused=${refusals.cancel}
      explained="Its running steps are stopped within a second or two. Finished steps stay; a cancelled run can be retried.">Cancel<//>`;
  }
  if (!CAN_RETRY.has(run.status)) return null;
  return html`<${Confirmed} question="Retry this run?" yes="Retry" className="primary" act=${retry} refused=${refusals.retry}
    explained="A new run executes the unfinished part of this one, and keeps its finished steps. This run does not change.">Retry<//>`;
}

function Connection({ connection, fault }) {
  const isLost = connection === "lost" || (fault && (fault.status === 0 || fault.status >= 500));
  const message = isLost ? "The connection was lost; reconnecting. The run continues." : fault?.message;
  return html`<p class="connection" role="status">${connection === "gone" ? "This run is no longer stored." : message}</p>`;
}

function Ending({ run }) {
  const [isWhole, setWhole] = useState(false);
  const hasAnswer = run.answer !== null && run.answer !== undefined;
  const text = hasAnswer ? value(run.answer) : "";
  const isLong = text.length > LONG_ANSWER || text.split("\n").length > 8;
  return html`
    ${run.error && html`<div class="card bad"><h2>${run.error.code ? clip(run.error.code, 60) : "Error"}</h2><pre class="text">${clip(messageOf(run.error), 4000)}</pre></div>`}
    ${hasAnswer && html`<div class="card answer"><h2>Answer</h2>
      <pre class="text ${isLong && !isWhole ? "folded" : ""}">${text}</pre>
      ${isLong && html`<button type="button" class="quiet" aria-expanded=${isWhole} onClick=${() => setWhole(!isWhole)}>${isWhole ? "Show less" : "Show all"}</button>`}
      ${run.cut && html`<p class="muted">Truncated: the run's record has all of it.</p>`}</div>`}`;
}
