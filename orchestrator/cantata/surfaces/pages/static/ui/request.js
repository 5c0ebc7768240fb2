/** Request of a run. */

import { html } from "../vendor/htm-preact.js";
import { plain, value } from "../core/format.js";
import { commandOf } from "../core/requests.js";

/** The request as it was sent, and the labels of the run. */
export function RequestTab({ run }) {
  const command = commandOf(run);
  return html`<section aria-label="Request" class="pad">
    <pre class="text boxed" tabindex="0">${value(run.request)}</pre>
    ${Object.keys(run.labels ?? {}).length > 0 && html`<h2>Labels</h2><pre class="text boxed" tabindex="0">${value(run.labels)}</pre>`}
    ${command && html`<h2>As a command</h2><pre class="text boxed" tabindex="0">${plain(command)}</pre>`}
    ${run.cut && html`<p class="muted">Large values were truncated.</p>`}
  </section>`;
}
