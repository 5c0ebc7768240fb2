/** Log lines: those of a step in its panel, and one line of a run's log. */

import { html } from "../vendor/htm-preact.js";
import { clip, clock, plain } from "../core/format.js";

const TONES = { debug: "idle", info: "idle", warning: "wait", error: "bad", critical: "bad" };

/** Lines of a step, oldest first. */
export function Logs({ lines }) {
  return html`<ol class="logs boxed">${lines.map((line) => html`<${LogLine} key=${line.id} line=${line} />`)}</ol>`;
}

/** A line: time, level, event and fields; with `nameOf` and `onSelect` also its step, which opens, and its worker. */
export function LogLine({ line, nameOf, onSelect }) {
  return html`<li class="tone-${TONES[line.level] ?? "idle"}">
    <time class="muted num">${clock(line.at)}</time> <span class="toned">${clip(line.level, 12)}</span>
    ${onSelect && line.step && html` <button type="button" class="link" title=${clip(line.step, 200)} onClick=${() => onSelect(line.step)}>${clip(nameOf(line.step), 40)}${line.attempt > 1 ? `#${line.attempt}` : ""}</button>`}
    ${onSelect && line.worker && html` <bdi class="muted">${clip(line.worker, 60)}</bdi>`}
    <bdi> ${plain(line.event)}</bdi>
    ${Object.entries(line.fields ?? {}).map(([name, value]) => html`<${Field} key=${name} name=${name} text=${textOf(value)} />`)}
  </li>`;
}

/** A field of a line; a value of several lines, such as a traceback, below it. */
function Field({ name, text }) {
  if (text.includes("\n")) return html`<details><summary>${clip(name, 40)}</summary><pre class="text">${plain(text)}</pre></details>`;
  return html` <bdi class="muted">${clip(name, 40)}=${clip(text, 300)}</bdi>`;
}

/** Return the text of a value of a field. */
export function textOf(value) {
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
}
