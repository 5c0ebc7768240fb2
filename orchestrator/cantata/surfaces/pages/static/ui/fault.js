/** Error of a run or a step, with the traceback that a tool logged. */

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { ofRun, read } from "../api.js";
import { clip, plain } from "../core/format.js";
import { messageOf } from "./row.js";

/** The card of an error; `children` name its step, `logs` are the step's log lines. */
export function ErrorCard({ error, logs = [], className = "", children }) {
  const traceback = logs.findLast((line) => line.fields?.exception)?.fields.exception;
  return html`<div class="card bad ${className}"><h2>${clip(error.code || "Error", 60)}${children}</h2>
    <div class="error-parts"><pre class="text">${plain(messageOf(error)).slice(0, 4000)}</pre>
      ${traceback && html`<details open><summary>Traceback</summary><pre class="text boxed" tabindex="0">${plain(traceback)}</pre></details>`}</div></div>`;
}

/** The error of a run: names the step that failed, and shows its traceback. */
export function RunError({ run, name, onSelect }) {
  const { step } = run.error;
  const [logs, setLogs] = useState([]);
  useEffect(() => {
    const ending = new AbortController();
    if (step) read(ofRun(run.run_id, "steps", step), { signal: ending.signal }).then((detail) => setLogs(detail.logs), () => {});
    return () => ending.abort();
  }, [run.run_id, step]);
  return html`<${ErrorCard} error=${run.error} logs=${logs}>
    ${step && html` in <button type="button" class="link" title=${clip(step, 200)} onClick=${() => onSelect(step)}>${clip(name, 80)}</button>`}<//>`;
}
