/** Panel of one step: inputs and output, messages, attempts; and the form for its signal. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { ofRun, read } from "../api.js";
import { clip, cost, duration, plain, tokens, value } from "../core/format.js";
import { ofStep } from "../core/states.js";
import { Attempts } from "./attempts.js";
import { Reply } from "./events.js";
import { State } from "./icons.js";
import { Logs } from "./logs.js";
import { messageOf } from "./row.js";
import { StepSignal } from "./signal.js";
import { Transcript } from "./transcript.js";

const MIN_INTERVAL_MS = 400; // between readings of a step that changes

/** The panel; `replies` are the replies that the step has streamed since the page was opened. */
export function Panel({ runId, stepId, view, replies, now, onClose, reload }) {
  const known = view.steps.get(stepId);
  const { detail, fault } = useDetail(runId, stepId, known);
  const heading = useRef(null);
  useEffect(() => heading.current?.focus({ preventScroll: true }), []);
  useEscape(onClose);
  const step = known ?? detail?.step;
  return html`<aside class="panel" aria-label="Step">
    <div class="panel-head"><h2 ref=${heading} tabindex="-1">${clip(step?.name ?? stepId, 120)}</h2>
      <button type="button" class="quiet only-icon close" onClick=${onClose} aria-label="Close the step" title="Close (Esc)">×</button></div>
    <div class="panel-body">
      <bdi class="id">${clip(stepId, 200)}</bdi>
      ${step && html`<${Facts} step=${step} detail=${detail} now=${now} />`}
      ${fault && html`<p class="fault" role="alert">${fault.message}</p>`}
      ${step?.error && html`<div class="card bad"><h3>${clip(step.error.code ?? "Error", 60)}</h3><pre class="text">${plain(messageOf(step.error))}</pre></div>`}
      ${step?.state === "waiting_signal" && detail && html`<${StepSignal} runId=${runId} stepId=${stepId} params=${detail.params} onDone=${reload} />`}
      ${replies && step?.state === "running" && html`<section><h3>Reply</h3><${Pieces} replies=${replies} /></section>`}
      ${detail ? html`<${Detail} detail=${detail} replies=${replies} isRunning=${step?.state === "running"} />` : !fault && html`<p class="muted">Reading…</p>`}
    </div>
  </aside>`;
}

function Facts({ step, detail, now }) {
  const usage = detail?.usage ?? step.usage;
  const ended = step.ended_at ?? (step.state === "running" ? now : null);
  const facts = [
    ["State", html`<${State} is=${ofStep(step.state)} />`],
    ["Does", clip(step.work || step.kind, 80)],
    ["Line", detail?.params?.line && html`<code>${clip(detail.params.line, 80)}</code>`],
    ["Task", detail?.info?.task && html`${clip(detail.info.task, 80)}<br /><code>${clip(detail.info.task_id, 80)}</code>`],
    ["Attempt", step.attempt > 0 ? `${step.attempt}${step.failures ? `, ${step.failures} failed` : ""}${step.crashes ? `, ${step.crashes} lost` : ""}` : null],
    ["Worker", step.worker && clip(step.worker, 60)],
    ["Queue", clip(step.queue, 40)],
    ["Waited", step.ready_at !== null && step.first_at !== null ? duration(step.first_at - step.ready_at) : null],
    ["Worked", step.started_at !== null && ended !== null ? duration(ended - step.started_at) : null],
    ["Model", (detail?.model ?? step.model) && clip(detail?.model ?? step.model, 80)],
    ["Tokens", usage ? `${tokens(usage)} (${usage.input_tokens} in, ${usage.output_tokens} out)` : null],
    ["Cost", usage?.model_calls ? cost(usage.cost_usd) : null],
  ];
  return html`<dl class="step-facts">${facts.filter(([, what]) => what).map(([name, what]) => html`<div key=${name}><dt>${name}</dt><dd>${what}</dd></div>`)}</dl>`;
}

function Detail({ detail, replies, isRunning }) {
  const inputs = Object.keys(detail.inputs ?? {}).length ? detail.inputs : null;
  const params = Object.keys(detail.params ?? {}).length ? detail.params : null;
  const given = detail.given ?? null;
  const info = Object.keys(detail.info ?? {}).length ? detail.info : null;
  const isVoided = !isRunning && replies?.some((piece) => piece.void);
  return html`
    ${detail.transcript.length > 0 && html`<section><h3>Transcript</h3><${Transcript} messages=${detail.transcript} /></section>`}
    ${isVoided && html`<section><h3>Replies of discarded attempts</h3><${Pieces} replies=${replies.filter((piece) => piece.void)} /></section>`}
    ${detail.output !== null && html`<${Value} name="Output" json=${detail.output} isOpen />`}
    ${given !== null && html`<${Value} name="Given" json=${given} isOpen />`}
    ${params && html`<${Value} name="Parameters" json=${params} isOpen=${!detail.transcript.length} />`}
    ${inputs && html`<${Value} name="Inputs" json=${inputs} isOpen=${!detail.transcript.length} />`}
    ${detail.attempts.length > 0 && html`<section><h3>Attempts</h3><${Attempts} attempts=${detail.attempts} /></section>`}
    ${info && html`<${Value} name="Recorded at its end" json=${info} />`}
    ${detail.logs.length > 0 && html`<section><h3>Logs</h3><${Logs} lines=${detail.logs} /></section>`}
    ${detail.cut && html`<p class="muted">Large values were truncated; <code>submit runs show</code> has them whole.</p>`}`;
}

function Value({ name, json, isOpen = false }) {
  return html`<details class="value" open=${isOpen}><summary>${name}</summary><pre class="text boxed">${value(json)}</pre></details>`;
}

function Pieces({ replies }) {
  return html`<div class="text boxed pieces">${replies.map((piece, index) => html`<${Reply} key=${index} text=${piece.text} isVoid=${piece.void} />`)}</div>`;
}

/** Return the details of a step, read again when the step changes. */
function useDetail(runId, stepId, known) {
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
  }, [runId, stepId, version]);
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
