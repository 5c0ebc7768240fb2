/** Signal of a waiting step. */

import { html, useState } from "../vendor/htm-preact.js";
import { ofRun, send } from "../api.js";
import { useRefusals } from "../refusals.js";

/** The form: JSON, or else a text; two buttons for approvals. */
export function Signal({ runId, stepId, onDone }) {
  const refused = useRefusals(runId, stepId).signal;
  const [text, setText] = useState("");
  const [fault, setFault] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const give = async (value) => {
    setBusy(true);
    setFault(null);
    try {
      await send(ofRun(runId, "signals", stepId), { value });
      onDone();
    } catch (error) {
      setFault(error);
      setBusy(false);
    }
  };
  const isOff = isBusy || Boolean(refused);
  const submit = (event) => {
    event.preventDefault();
    give(valueOf(text));
  };
  return html`<form class="card signal" onSubmit=${submit}>
    <h3>This step waits for a value</h3>
    ${refused && html`<p class="muted" role="note">${refused}</p>`}
    <div class="buttons"><button type="button" class="primary" disabled=${isOff} onClick=${() => give(true)}>Approve (true)</button>
      <button type="button" disabled=${isOff} onClick=${() => give(false)}>Decline (false)</button></div>
    <label for="signal-value">or another value, as JSON or text</label>
    <textarea id="signal-value" rows="3" disabled=${Boolean(refused)} value=${text} onInput=${(event) => setText(event.target.value)} />
    ${fault && html`<p class="fault" role="alert">${fault.message}</p>`}
    <button type="submit" disabled=${isOff || !text.trim()}>Send</button>
  </form>`;
}

function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
