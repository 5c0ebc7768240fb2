/** Messages between an agent, its model and its tools. */

import { html } from "../vendor/htm-preact.js";
import { clip, plain, plural, value } from "../core/format.js";
import { parse } from "../core/json.js";
import { Markdown } from "./markdown.js";

const WHO = { system: "System", user: "Prompt", assistant: "Model", tool: "Tool" };

/** Messages in order, with the tool calls. */
export function Transcript({ messages }) {
  return html`<ol class="transcript">${messages.map((message, index) => html`
    ${message.omitted > 0 && html`<li class="muted">${plural(message.omitted, "message")} before this one were not recorded.</li>`}
    <li key=${index} class="message role-${message.role}">
    <span class="who">${WHO[message.role] ?? clip(message.role, 20)}${message.name ? html` <bdi class="tool-name">${clip(message.name, 60)}</bdi>` : ""}</span>
    ${message.reasoning && html`<details class="reasoning"><summary class="muted">Reasoning</summary><pre class="text">${plain(message.reasoning)}</pre></details>`}
    ${message.text && (message.role === "assistant" ? html`<${Markdown} text=${message.text} />` : html`<pre class="text">${plain(message.text)}</pre>`)}
    ${(message.calls ?? []).map((call) => html`<div class="call" key=${call.id}><span>calls <bdi class="tool-name">${clip(call.name, 60)}</bdi></span>
      <pre class="text">${argumentsOf(call)}</pre>${call.waits && html`<span class="muted">waits for an answer</span>`}</div>`)}
    ${message.cut && html`<p class="muted">Cut.</p>`}
  </li>`)}</ol>`;
}

function argumentsOf(call) {
  try {
    return value(parse(call.arguments));
  } catch {
    return value(call.arguments);
  }
}
