/** Row of a run in the list. */

import { html } from "../vendor/htm-preact.js";
import { age, clip, cost, count, duration, moment, shortMoment, tokens } from "../core/format.js";
import { runAddress } from "../core/route.js";
import { ofRun, runIsOver } from "../core/states.js";
import { urls } from "../settings.js";
import { State } from "./icons.js";

const MAX_LABELS = 4;

/** A row; all of it is the link to the run, but for the box that selects it. */
export function RunRow({ run, now, number, isSelected, onSelect }) {
  const until = run.closed_at ?? now;
  const title = clip(run.title || run.run_id, 120);
  return html`<tr aria-rowindex=${number} class=${runIsOver(run.status) ? "" : "is-open"}>
    <td class="cell-select"><input type="checkbox" checked=${isSelected} onChange=${(event) => onSelect(run.run_id, event.target.checked)}
      aria-label=${`Select ${title}`} /></td>
    <td class="cell-status"><${State} is=${ofRun(run.status, run.failures)} /></td>
    <td class="cell-title"><a class="row-link" href=${runAddress(urls.base, run.run_id)}>${title}</a>
      <span class="row-more"><bdi class="id">${clip(run.run_id, 60)}</bdi><${Labels} labels=${run.labels} />
        ${run.stopped && html`<bdi class="row-error">Stopped: ${clip(run.stopped, 120)}</bdi>`}
        ${run.unreadable && html`<bdi class="row-error">${clip(run.unreadable, 300)}</bdi>`}
        ${run.error && html`<bdi class="row-error">${clip(messageOf(run.error), 120)}</bdi>`}</span></td>
    <td class="cell-kind">${run.target && run.target !== run.title && html`<bdi class="target">${clip(run.target, 60)}</bdi>`}
      <span class="muted">${clip(run.kind, 20)}</span></td>
    <td class="cell-steps num" data-label="steps">${count(run.count - run.left)}/${count(run.count)}</td>
    <td class="cell-took num">${duration(until - run.created_at)}</td>
    <td class="cell-tokens num" data-label="tokens">${tokens(run.usage)}</td>
    <td class="cell-cost num">${cost(run.usage.model_calls ? run.usage.cost_usd : null)}</td>
    <td class="cell-age num" title=${moment(run.created_at)}>${shortMoment(run.created_at, now)}<span class="muted">${age(now - run.created_at)}</span></td>
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
