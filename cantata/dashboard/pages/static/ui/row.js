/** Row of a run in the list. */

import { html } from "../vendor/htm-preact.js";
import { age, clip, cost, count, duration, moment, tokens } from "../core/format.js";
import { runAddress } from "../core/route.js";
import { ofRun, runIsOver } from "../core/states.js";
import { urls } from "../settings.js";
import { State } from "./icons.js";

const MAX_LABELS = 4;

/** A row; all of it is the link to the run. */
export function RunRow({ run, now, number }) {
  const until = run.closed_at ?? now;
  return html`<tr aria-rowindex=${number} class=${runIsOver(run.status) ? "" : "is-open"}>
    <td class="cell-status"><${State} is=${ofRun(run.status, run.failures)} /></td>
    <td class="cell-title"><a class="row-link" href=${runAddress(urls.base, run.run_id)}>${clip(run.title || run.run_id, 120)}</a>
      <span class="row-more"><bdi class="id">${clip(run.run_id, 60)}</bdi><${Labels} labels=${run.labels} />
        ${run.error && html`<bdi class="row-error">${clip(messageOf(run.error), 120)}</bdi>`}</span></td>
    <td class="cell-kind">${clip(run.kind, 20)}</td>
    <td class="cell-steps num" data-label="steps">${count(run.count - run.left)}/${count(run.count)}</td>
    <td class="cell-took num">${duration(until - run.created_at)}</td>
    <td class="cell-tokens num" data-label="tokens">${tokens(run.usage)}</td>
    <td class="cell-cost num">${cost(run.usage.model_calls ? run.usage.cost_usd : null)}</td>
    <td class="cell-age num" title=${moment(run.created_at)}>${age(now - run.created_at)}</td>
  </tr>`;
}

/** The labels of a run, as names and values. */
export function Labels({ labels }) {
  return Object.entries(labels ?? {}).slice(0, MAX_LABELS).map(([name, value]) => html`<bdi class="label">${clip(`${name}: ${value}`, 60)}</bdi>`);
}

/** What an error of a run or a step says. */
export function messageOf(error) {
  if (!error || typeof error !== "object") return String(error ?? "");
  return error.message ? String(error.message) : String(error.code ?? "");
}
