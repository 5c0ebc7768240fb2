/** Log lines of a step. */

import { html } from "../vendor/htm-preact.js";
import { clip, clock, plain } from "../core/format.js";

const TONES = { debug: "idle", info: "idle", warning: "wait", error: "bad", critical: "bad" };

/** Lines, oldest first: time, level, event and fields. */
export function Logs({ lines }) {
  return html`<ol class="logs boxed">${lines.map((line) => html`<li key=${line.id} class="tone-${TONES[line.level] ?? "idle"}">
    <time class="muted num">${clock(line.at)}</time> <span class="toned">${clip(line.level, 12)}</span> <bdi>${plain(line.event)}</bdi>
    ${Object.entries(line.fields ?? {}).map(([name, value]) => html`<${Field} key=${name} name=${name} text=${textOf(value)} />`)}
  </li>`)}</ol>`;
}

/** A field of a line; a value of several lines, such as a traceback, below it. */
function Field({ name, text }) {
  if (text.includes("\n")) return html`<details><summary>${clip(name, 40)}</summary><pre class="text">${plain(text)}</pre></details>`;
  return html` <bdi class="muted">${clip(name, 40)}=${clip(text, 300)}</bdi>`;
}

function textOf(value) {
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
}
