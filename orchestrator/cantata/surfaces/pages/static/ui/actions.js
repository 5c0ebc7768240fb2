/** Actions on a run: cancel, retry, run again or fork with another input, copy as a command. */

import { html, useRef, useState } from "../vendor/htm-preact.js";
import { ofRun, send } from "../api.js";
import { changesOf, commandOf, inputOf, takesInput } from "../core/requests.js";
import { runAddress } from "../core/route.js";
import { runIsOver } from "../core/states.js";
import { RUN_OVER } from "../core/vocabulary.js";
import { useRefusals } from "../refusals.js";
import { urls } from "../settings.js";
import { Confirmed } from "./dialog.js";

const CAN_RETRY = new Set([...RUN_OVER].filter((status) => status !== "succeeded"));
const COPIED_MS = 2000;
const newKey = () => `pages-${Date.now()}-${Math.random()}`;

/** The buttons of a run; `go` navigates to the new run after a retry. */
export function Actions({ run, reload, go }) {
  const refusals = useRefusals(run.run_id);
  const key = useRef(newKey()); // a retry that is sent again because its answer was lost gives the same run
  const cancel = async () => {
    await send(ofRun(run.run_id, "cancel"));
    reload();
  };
  const retry = async () => {
    const made = await send(ofRun(run.run_id, "retry"), undefined, { "Idempotency-Key": key.current });
    go(runAddress(urls.base, made.run_id));
  };
  const isOver = runIsOver(run.status);
  return html`<div class="buttons actions">
    ${!isOver && html`<${Confirmed} question="Cancel this run?" yes="Cancel the run" className="danger" act=${cancel} refused=${refusals.cancel}
      explained="Its running steps are stopped within a second or two. Finished steps stay; a cancelled run can be retried.">Cancel<//>`}
    ${CAN_RETRY.has(run.status) && html`<${Confirmed} question="Retry this run?" yes="Retry" className="primary" act=${retry} refused=${refusals.retry}
      explained="A new run executes the unfinished part of this one, and keeps its finished steps. This run does not change.">Retry<//>`}
    ${isOver && !(CAN_RETRY.has(run.status) && refusals.retry) && html`<${Fork} run=${run} step="@start" refused=${refusals.fork} go=${go} explained="A new run executes all of this one again, with its definitions. This run does not change.">Run again<//>`}
    <${CopyCommand} command=${commandOf(run)} />
    ${isOver && html`<button type="button" onClick=${() => go(runAddress(urls.base, run.run_id, { tab: "compare", other: run.forked_from }))}>Compare</button>`}
  </div>`;
}

/** A button that forks a run from a step on, and asks for the input first; `children` are its label. */
export function Fork({ run, step, refused, go, explained, children }) {
  const [text, setText] = useState(null);
  const key = useRef(newKey());
  const input = takesInput(run, step) ? inputOf(run) : null;
  const onInput = (event) => {
    key.current = newKey();
    setText(event.target.value);
  };
  const fork = async () => {
    const changes = text === null ? {} : changesOf(run, text);
    const made = await send(ofRun(run.run_id, "fork"), { from_step: step, changes }, { "Idempotency-Key": key.current });
    key.current = newKey();
    go(runAddress(urls.base, made.run_id));
  };
  const label = run.kind === "turn" ? "Message" : "Input, as JSON";
  return html`<${Confirmed} question=${`${children}?`} yes=${children} no="Close" act=${fork} refused=${refused} explained=${explained}
    body=${input !== null && html`<label class="field">${label}<textarea rows=${run.kind === "turn" ? 4 : 9} value=${text ?? input} onInput=${onInput} autofocus /></label>`}>${children}<//>`;
}

/** A button that copies a command; none where there is no command, or no clipboard. */
export function CopyCommand({ command }) {
  const [isCopied, setCopied] = useState(false);
  if (!command || !navigator.clipboard) return null;
  const copy = async () => {
    await navigator.clipboard.writeText(command);
    setCopied(true);
    setTimeout(() => setCopied(false), COPIED_MS);
  };
  return html`<button type="button" onClick=${copy} title="Copy the submit command of this run"><span aria-live="polite">${isCopied ? "Copied" : "Copy command"}</span></button>`;
}
