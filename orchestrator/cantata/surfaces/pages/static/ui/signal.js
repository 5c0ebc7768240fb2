/** Signal of a waiting step: the question, who may answer, and the form of the answer. */

import { html, useState } from "../vendor/htm-preact.js";
import { ofRun, send } from "../api.js";
import { questionOf, titleOf } from "../core/answer_fields.js";
import { clip, plain } from "../core/format.js";
import { useRefusals } from "../refusals.js";
import { AnswerForm } from "./answer_form.js";
import { Markdown, isMarkdown } from "./markdown.js";

/** The card of a waiting step in the panel of a run. */
export function StepSignal({ runId, stepId, params, onDone }) {
  const refused = useRefusals(runId, stepId).signal;
  const { answer_schema: schema, question, who } = params.wait ?? {};
  const asked = question || questionOf(params.asks);
  return html`<section class="card signal"><${Question} text=${asked || "This step waits for a value"} level="3" />
    ${who && html`<p class="muted">For ${plain(who.join(", "))}</p>`}
    <${Signal} runId=${runId} stepId=${stepId} schema=${schema} refused=${refused} onDone=${onDone} /></section>`;
}

/** A question as a heading; of one that is formatted the heading is its title, for screen readers only. `id` is that of the heading. */
export function Question({ text, id, level }) {
  const Heading = `h${level}`;
  if (!isMarkdown(plain(text))) return html`<${Heading} class="question" id=${id}>${plain(text)}<//>`;
  return html`<${Heading} class="only-read" id=${id}>${clip(titleOf(text), 120)}<//><div class="question formatted"><${Markdown} text=${text} /></div>`;
}

/** The form that sends a step its value; `refused` is why the user may not. */
export function Signal({ runId, stepId, schema, refused, onDone }) {
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
  return html`${refused && html`<p class="muted" role="note">${refused}</p>`}
    <${AnswerForm} name=${`${runId}/${stepId}`} schema=${schema} isOff=${isBusy || Boolean(refused)} fault=${fault} onAnswer=${give} />`;
}
