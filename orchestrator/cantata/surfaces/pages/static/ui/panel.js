/** Panel of one step: inputs and output, messages, attempts; and the form for its signal. */

import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { ofRun, read } from "../api.js";
import { clip, cost, tokens, value } from "../core/format.js";
import { nameOf } from "../core/internal_steps.js";
import { runAddress } from "../core/route.js";
import { ofStep, runIsOver } from "../core/states.js";
import { spentBy } from "../core/times.js";
import { useRefusals } from "../refusals.js";
import { urls } from "../settings.js";
import { Fork } from "./actions.js";
import { Attempts } from "./attempts.js";
import { Reply } from "./events.js";
import { ErrorCard } from "./fault.js";
import { State } from "./icons.js";
import { Logs } from "./logs.js";
import { messageOf } from "./row.js";
import { StepSignal } from "./signal.js";
import { Transcript } from "./transcript.js";

const INTERNAL_PARAMS = new Set(["section", "line", "failure", "asked_by", "wait"]); // known from elsewhere, or of no use to people
const MIN_INTERVAL_MS = 400; // between readings of a step that changes

/** The panel; `replies` are the replies that the step has streamed since the page was opened. */
export function Panel({ runId, stepId, view, replies, now, onClose, reload, go }) {
  const known = view.steps.get(stepId);
  const calls = useMemo(() => [...view.steps.values()].filter(({ id }) => id.startsWith(`${stepId}/t`)).map(({ state }) => state).join(), [view.steps, stepId]);
  const { detail, fault } = useDetail(runId, stepId, known, calls);
  const heading = useRef(null);
  useEffect(() => heading.current?.focus({ preventScroll: true }), []);
  useEscape(onClose);
  const step = known ?? detail?.step;
  return html`<aside class="panel" aria-label="Step">
    <div class="panel-head"><h2 ref=${heading} tabindex="-1">${clip(step?.name ?? nameOf(view, stepId), 120)}</h2>
      <button type="button" class="quiet only-icon close" onClick=${onClose} aria-label="Close the step" title="Close (Esc)">×</button></div>
    <div class="panel-body">
      <bdi class="id">${clip(stepId, 200)}</bdi>
      ${step && html`<${Facts} step=${step} detail=${detail} now=${now} />`}
      ${fault && html`<p class="fault" role="alert">${fault.message}</p>`}
      ${step?.error && html`<${ErrorCard} error=${step.error} logs=${detail?.logs} className=${view.run.error?.step === stepId ? "in-head" : ""} />`}
      ${step?.state === "waiting_signal" && detail && html`<${StepSignal} runId=${runId} stepId=${stepId} params=${detail.params} onDone=${reload} />`}
      ${step && runIsOver(view.run.status) && view.run.kind !== "webhook" && html`<${ForkHere} run=${view.run} stepId=${stepId} go=${go} />`}
      ${replies && step?.state === "running" && html`<section><h3>Reply</h3><${Pieces} replies=${replies} /></section>`}
      ${detail ? html`<${Detail} detail=${detail} replies=${replies} isRunning=${step?.state === "running"} traceId=${view.run.trace_id} />` : !fault && html`<p class="muted">Reading…</p>`}
    </div>
  </aside>`;
}

function ForkHere({ run, stepId, go }) {
  const refused = useRefusals(run.run_id).fork;
  return html`<div class="buttons"><${Fork} run=${run} step=${stepId} refused=${refused} go=${go}
    explained="A new run executes this step and all behind it again; the others keep their outcomes. This run does not change.">Fork from here<//></div>`;
}

function Facts({ step, detail, now }) {
  const usage = detail?.usage ?? step.usage;
  const facts = [
    ["State", html`<${State} is=${ofStep(step)} />`],
    ["Does", clip(step.work || step.kind, 80)],
    ["Line", detail?.params?.line && html`<code>${clip(detail.params.line, 80)}</code>`],
    ["Started", step.kind === "workflow.start" && typeof detail?.output === "string" && html`<a href=${runAddress(urls.base, detail.output)}>${clip(detail.output, 40)}</a>`],
    ["Task", detail?.info?.task && html`${clip(detail.info.task, 80)}<br /><code>${clip(detail.info.task_id, 80)}</code>`],
    ["Attempt", step.attempt > 1 || step.failures + step.crashes > 0 ? `${step.attempt}${step.failures ? `, ${step.failures} failed` : ""}${step.crashes ? `, ${step.crashes} lost` : ""}` : null],
    ["Worker", step.worker && clip(step.worker, 60)],
    ["Queue", (step.awaits ?? null) === null || step.started_at !== null ? clip(step.queue, 40) : null],
    ...(step.ready_at !== null || step.started_at !== null ? spentBy(step, now) : []),
    ["Model", (detail?.model ?? step.model) && clip(detail?.model ?? step.model, 80)],
    ["Tokens", usage && usage.input_tokens + usage.output_tokens > 0 ? `${tokens(usage)} (${usage.input_tokens} in, ${usage.output_tokens} out)` : null],
    ["Cost", usage?.model_calls ? cost(usage.cost_usd) : null],
  ];
  return html`<dl class="step-facts">${facts.filter(([, what]) => what).map(([name, what]) => html`<div key=${`${name} ${what}`}><dt>${name}</dt><dd>${what}</dd></div>`)}</dl>`;
}

function Detail({ detail, replies, isRunning, traceId }) {
  const inputs = named(detail.inputs);
  const params = named(detail.params, INTERNAL_PARAMS);
  const isTold = detail.transcript.length > 0 && detail.transcript.at(-1).text === detail.output;
  const given = detail.given ?? null;
  const info = Object.keys(detail.info ?? {}).length ? detail.info : null;
  const isVoided = !isRunning && replies?.some((piece) => piece.void);
  return html`
    ${detail.transcript.length > 0 && html`<section><h3>Transcript</h3><${Transcript} messages=${detail.transcript} /></section>`}
    ${isVoided && html`<section><h3>Replies of discarded attempts</h3><${Pieces} replies=${replies.filter((piece) => piece.void)} /></section>`}
    ${detail.output !== null && !isTold && html`<${Value} name="Output" json=${detail.output} isOpen />`}
    ${given !== null && html`<${Value} name="Given" json=${given} isOpen />`}
    ${params && html`<${Value} name="Parameters" json=${params} isOpen=${!detail.transcript.length} />`}
    ${inputs && html`<${Value} name="Inputs" json=${inputs} isOpen=${!detail.transcript.length} />`}
    ${detail.attempts.length > 0 && html`<section><h3>Attempts</h3><${Attempts} attempts=${detail.attempts} traceId=${traceId} known=${detail.step.error && messageOf(detail.step.error)} /></section>`}
    ${info && html`<${Value} name="Recorded at its end" json=${info} />`}
    ${detail.logs.length > 0 && html`<section><h3>Logs</h3><${Logs} lines=${detail.logs} /></section>`}
    ${detail.cut && html`<p class="muted">Large values were truncated; <code>submit runs show</code> has them whole.</p>`}`;
}

/** Return values by names that people know, without those in `left`; null if there are none. */
function named(values, left = new Set()) {
  const found = Object.entries(values ?? {}).filter(([name]) => !left.has(name)).map(([name, each]) => [name.replace(/^@/, ""), each]);
  return found.length ? Object.fromEntries(found) : null;
}

function Value({ name, json, isOpen = false }) {
  return html`<details class="value" open=${isOpen}><summary>${name}</summary><pre class="text boxed" tabindex="0">${value(json)}</pre></details>`;
}

function Pieces({ replies }) {
  return html`<div class="text boxed pieces">${replies.map((piece, index) => html`<${Reply} key=${index} text=${piece.text} isVoid=${piece.void} />`)}</div>`;
}

/** Return the details of a step, read again when the step changes, or one of its tool `calls`, whose results are in its transcript. */
function useDetail(runId, stepId, known, calls) {
  const [found, setFound] = useState({ detail: null, fault: null });
  const version = known ? [known.state, known.attempt, known.failures, known.ended_at].join("|") : "";
  const last = useRef(0);
  useEffect(() => {
    const ending = new AbortController();
    const path = ofRun(runId, "steps", stepId);
    const wait = Math.max(0, last.current + MIN_INTERVAL_MS - performance.now());
    const timer = setTimeout(() => {
      last.current = performance.now();
      read(path, { signal: ending.signal }).then(
        (detail) => setFound({ detail, fault: null }),
        (fault) => ending.signal.aborted || setFound((before) => ({ ...before, fault })),
      );
    }, last.current ? wait : 0);
    return () => {
      clearTimeout(timer);
      ending.abort();
    };
  }, [runId, stepId, version, calls]);
  return found;
}

function useEscape(act) {
  useEffect(() => {
    const pressed = (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) act();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [act]);
}
