/** Attempts of a step. */

import { html } from "../vendor/htm-preact.js";
import { clip, clock, duration, plain } from "../core/format.js";
import { traceAddress } from "../settings.js";
import { messageOf } from "./row.js";

const ENDS = {
  done: ["Done", "good"], expanded: ["Done", "good"], failed: ["Failed", "bad"], missed_deadline: ["Missed its deadline", "bad"], skipped: ["Stopped", "idle"],
  retry: ["Failed; tried again", "wait"], rate_limited: ["Rate limited", "idle"], lost: ["Worker lost", "bad"], released: ["Released", "idle"],
  refused: ["Refused", "idle"], uncertain: ["Worker lost; its effects are unknown", "bad"], closed: ["The run ended", "idle"],
};

/** Attempts, oldest first: time, worker, end, the link to its span, and the error if it is not `known` from elsewhere. */
export function Attempts({ attempts, traceId, known }) {
  return html`<ol class="attempts">${attempts.map((attempt, index) => {
    const [label, tone] = attempt.end ? (ENDS[attempt.end] ?? [attempt.end, "idle"]) : ["Running", "busy"];
    const trace = traceAddress(traceId, attempt.span_id, true);
    return html`<li key=${index} class="tone-${tone}">
      <span class="attempt-line"><strong>${attempt.attempt}</strong> <span class="toned">${label}</span>
        <span class="muted num">${clock(attempt.started_at)}${attempt.ended_at ? `, ${duration(attempt.ended_at - attempt.started_at)}` : ""}</span>
        ${trace && html`<a href=${trace} target="_blank" rel="noopener noreferrer" aria-label=${`Trace of attempt ${attempt.attempt}`}>Trace</a>`}</span>
      ${attempt.worker && html`<bdi class="muted">${clip(attempt.worker, 80)}</bdi>`}
      ${attempt.error && messageOf(attempt.error) !== known && html`<pre class="text">${plain(messageOf(attempt.error))}</pre>`}
    </li>`;
  })}</ol>`;
}
