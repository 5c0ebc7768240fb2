/** Actions on all runs that match the filter of the list, also those that are not shown: cancel, retry and signal. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { useBulkAction } from "../bulk_action.js";
import { valueOf } from "../core/answer_fields.js";
import { clip, count, moment, plain, plural } from "../core/format.js";
import { runAddress } from "../core/route.js";
import { urls } from "../settings.js";

const ACTIONS = {
  cancel: {
    verb: "Cancel", done: "cancelled", className: "danger",
    explained: "Running steps are stopped within a second or two. Runs that end meanwhile stay as they are.",
  },
  retry: {
    verb: "Retry", done: "retried", className: "primary",
    explained: "For each, a new run executes the unfinished part. Those that succeeded, are open or were retried before are left out.",
  },
  signal: { verb: "Signal", done: "signalled", className: "primary", explained: "Each run in which this step waits now gets the value." },
};

/** The buttons, the question with the number of runs, and the progress. `onDone` reads the list again. */
export function BulkAll({ filter, onDone }) {
  const { state, ask, confirm, stop, clear } = useBulkAction(filter, onDone);
  const [step, setStep] = useState("");
  const [value, setValue] = useState("true");
  const isBusy = ["counting", "running"].includes(state.stage);
  return html`<details class="bulk-all"><summary>Actions on all matching runs</summary>
    <div class="buttons">
      <button type="button" class="danger" disabled=${isBusy} onClick=${() => ask("cancel")}>Cancel all…</button>
      <button type="button" disabled=${isBusy} onClick=${() => ask("retry")}>Retry all…</button>
    </div>
    <form class="buttons" onSubmit=${(event) => { event.preventDefault(); ask("signal", { step: step.trim(), value: valueOf(value) }); }}>
      <label>Step <input name="step" required value=${step} onInput=${(event) => setStep(event.target.value)} /></label>
      <label>Value, as JSON or text <input name="value" value=${value} onInput=${(event) => setValue(event.target.value)} /></label>
      <button type="submit" disabled=${isBusy}>Signal all…</button>
    </form>
    ${state.stage === "asked" && html`<${Question} state=${state} confirm=${confirm} clear=${clear} />`}
    <${Progress} state=${state} stop=${stop} clear=${clear} />
  </details>`;
}

function Question({ state: { action, preview }, confirm, clear }) {
  const box = useRef(null);
  const { verb, explained, className } = ACTIONS[action];
  useEffect(() => box.current.showModal(), []);
  const number = `${count(preview.number)}${preview.is_exact ? "" : " or more"} ${preview.number === 1 ? "run" : "runs"}`;
  const question = preview.number ? `${verb} ${number}?` : `No run matches that can be ${ACTIONS[action].done}.`;
  return html`<dialog ref=${box} onClose=${clear} aria-label=${question}>
    <h2>${question}</h2>
    ${preview.number > 0 && html`<p>${explained} Runs that are submitted from now on are not touched.</p>
      <dl><dt>Newest</dt><dd><${Named} run=${preview.newest} /></dd><dt>Oldest${preview.is_exact ? "" : " of those counted"}</dt><dd><${Named} run=${preview.oldest} /></dd></dl>`}
    <div class="buttons"><button type="button" autofocus onClick=${() => box.current.close()}>${preview.number ? "No, leave them" : "Close"}</button>
      ${preview.number > 0 && html`<button type="button" class=${className} onClick=${confirm}>${verb} them</button>`}</div>
  </dialog>`;
}

function Named({ run }) {
  return html`<bdi>${clip(run.title || run.run_id, 80)}</bdi> <span class="muted">${moment(run.created_at)}</span>`;
}

function Progress({ state: { stage, action, preview, done, refused, count: refusedCount, fault }, stop, clear }) {
  const isTold = ["running", "over", "stopped"].includes(stage);
  const seen = done + refusedCount;
  const left = refusedCount ? `, ${plural(refusedCount, "run")} left as they are${refusedCount > refused.length ? ", the first:" : ":"}` : ".";
  return html`<div role="status">
    ${stage === "counting" && html`<p class="muted">Counting…</p>`}
    ${fault && html`<p class="fault" role="alert">${plain(fault.message)}${stage === "stopped" ? " The action can be repeated: it goes on with what is left." : ""}</p>`}
    ${isTold && html`<p>${stage === "running" && html`<progress max=${Math.max(preview.number, seen)} value=${seen} aria-label="Progress" /> `}
      ${plural(done, "run")} ${ACTIONS[action].done}${stage === "running" ? ` of ${count(preview.number)}…` : stage === "stopped" ? `, then stopped${left}` : left}
      ${stage === "running" ? html` <button type="button" class="quiet" onClick=${stop}>Stop</button>` : html` <button type="button" class="quiet" onClick=${clear}>Close</button>`}</p>
      <ul>${refused.map((each) => html`<li key=${each.run_id}><a href=${runAddress(urls.base, each.run_id)}>${clip(each.title || each.run_id, 80)}</a>: <span class="fault">${plain(each.reason)}</span></li>`)}</ul>`}
  </div>`;
}
