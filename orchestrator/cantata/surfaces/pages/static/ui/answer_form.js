/** Form of an answer, made from its JSON schema; without one, two buttons for approvals and a field for any JSON. */

import { html, useState } from "../vendor/htm-preact.js";
import { answerOf, fieldOf, valueOf } from "../core/answer_fields.js";
import { plain } from "../core/format.js";

/** The form. `name` tells its fields from those of other forms; `fault` is why the last answer was refused. */
export function AnswerForm({ name, schema, isOff, fault, onAnswer }) {
  const [typed, setTyped] = useState({});
  const field = schema ? fieldOf(schema) : null;
  const isChoice = !field || field.kind === "boolean";
  const set = (key) => (event) => setTyped((before) => ({ ...before, [key]: event.target.value }));
  const submit = (event) => {
    event.preventDefault();
    onAnswer(field ? answerOf(field, typed) ?? null : valueOf(typed[""]));
  };
  const wrong = new Set((fault?.faults ?? []).map((each) => each.where.replace(/^value\.?/, "")));
  return html`<form class="answer" onSubmit=${submit}>
    ${isChoice && html`<div class="buttons"><button type="button" class="primary" disabled=${isOff} onClick=${() => onAnswer(true)}>Approve (true)</button>
      <button type="button" disabled=${isOff} onClick=${() => onAnswer(false)}>Decline (false)</button></div>`}
    ${!field && html`<label for=${`${name}:`}>or another value, as JSON or text</label>
      <textarea id=${`${name}:`} rows="3" disabled=${isOff} value=${typed[""] ?? ""} onInput=${set("")} />`}
    ${field && !isChoice && html`<${Field} form=${name} field=${field} typed=${typed} set=${set} isOff=${isOff} wrong=${wrong} />`}
    ${fault && html`<p class="fault" role="alert">${plain(fault.message)}</p>`}
    ${(!field || !isChoice) && html`<button type="submit" class=${field ? "primary" : ""} disabled=${isOff || (!field && !(typed[""] ?? "").trim())}>Send</button>`}
  </form>`;
}

function Field({ form, field, typed, set, isOff, wrong }) {
  const id = `${form}:${field.key}`;
  if (field.kind === "group") {
    return html`<fieldset class="fields">${(field.label || field.help) && html`<legend>${plain(field.label || field.help)}</legend>`}
      ${field.fields.map((each) => html`<${Field} key=${each.key} form=${form} field=${each} typed=${typed} set=${set} isOff=${isOff} wrong=${wrong} />`)}</fieldset>`;
  }
  const own = {
    id, disabled: isOff, required: field.isRequired && field.kind !== "lines", value: typed[field.key] ?? "", onInput: set(field.key),
    "aria-invalid": wrong.has(field.key) ? "true" : undefined, "aria-describedby": field.help ? `${id}:help` : undefined,
  };
  return html`<div class="field"><label for=${id}>${plain(field.label || "Answer")}${field.isRequired ? "" : html` <span class="muted">(optional)</span>`}</label>
    ${inputOf(field, own)}
    ${field.help && html`<p class="muted help" id=${`${id}:help`}>${plain(field.help)}</p>`}</div>`;
}

function inputOf(field, own) {
  switch (field.kind) {
    case "boolean":
      return html`<select ...${own}><option value="">–</option><option value="true">Yes</option><option value="false">No</option></select>`;
    case "choice":
      return html`<select ...${own}><option value="">–</option>
        ${field.options.map((each) => html`<option key=${JSON.stringify(each)} value=${JSON.stringify(each)}>${plain(typeof each === "string" ? each : JSON.stringify(each))}</option>`)}</select>`;
    case "number":
    case "integer":
      return html`<input type="number" step=${field.kind === "integer" ? "1" : "any"} ...${own} />`;
    case "lines":
      return html`<textarea rows="3" placeholder="one a line" ...${own} />`;
    case "json":
      return html`<textarea rows="3" placeholder="JSON" ...${own} />`;
    default:
      return html`<textarea rows="2" ...${own} />`;
  }
}
