/** Actions on the selected runs: retry and cancel, with a question first, and the outcome. */

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { ofRun, send } from "../api.js";
import { forEach } from "../bulk.js";
import { clip, plain, plural } from "../core/format.js";
import { runAddress } from "../core/route.js";
import { canRetry, runIsOver } from "../core/states.js";
import { urls } from "../settings.js";
import { Confirmed } from "./dialog.js";

/** The bar; it is hidden while no run is selected and there is no outcome to tell. `onDone` reads the list again. */
export function BulkBar({ runs, clear, onDone }) {
  const [outcome, setOutcome] = useState(null);
  useEffect(() => {
    if (runs.length) setOutcome(null);
  }, [runs.map((run) => run.run_id).join()]);
  const act = (word, chosen, request) => async () => {
    const { done, failed } = await forEach(chosen, request);
    clear();
    setOutcome({ text: `${plural(done.length, "run")} ${word}${failed.length ? `, ${failed.length} not:` : "."}`, failed });
    onDone();
  };
  const retried = runs.filter((run) => canRetry(run.status) && !run.retried_as);
  const cancelled = runs.filter((run) => !runIsOver(run.status));
  const retry = (run) => send(ofRun(run.run_id, "retry"));
  const cancel = (run) => send(ofRun(run.run_id, "cancel"));
  return html`<section class="bulk-bar" aria-label="Selected runs" hidden=${!runs.length && !outcome}>
    ${runs.length > 0 && html`<span>${plural(runs.length, "run")} selected</span>
      ${retried.length > 0 && html`<${Confirmed} question=${`Retry ${plural(retried.length, "run")}?`} yes="Retry" className="primary"
        act=${act("retried", retried, retry)} explained="For each, a new run executes the unfinished part. Those that succeeded, are open or were retried before are left out.">
        Retry ${retried.length}<//>`}
      ${cancelled.length > 0 && html`<${Confirmed} question=${`Cancel ${plural(cancelled.length, "run")}?`} yes="Cancel them" className="danger"
        act=${act("cancelled", cancelled, cancel)} explained="Running steps are stopped within a second or two. Those that are over are left out.">
        Cancel ${cancelled.length}<//>`}
      <button type="button" class="quiet" onClick=${clear}>Clear</button>`}
    <div role="status">${outcome && html`<span>${outcome.text}</span>
      <ul>${outcome.failed.map(([run, error]) => html`<li key=${run.run_id}>
        <a href=${runAddress(urls.base, run.run_id)}>${clip(run.title || run.run_id, 80)}</a>: <span class="fault">${plain(error.message)}</span></li>`)}</ul>`}</div>
    ${outcome && html`<button type="button" class="quiet" onClick=${() => setOutcome(null)}>Close</button>`}
  </section>`;
}
