/** Request of a run. */

import { html } from "../vendor/htm-preact.js";
import { value } from "../core/format.js";

/** The request as it was sent, and the labels of the run. */
export function RequestTab({ run }) {
  return html`<section aria-label="Request" class="pad">
    <pre class="text boxed">${value(run.request)}</pre>
    ${Object.keys(run.labels ?? {}).length > 0 && html`<h2>Labels</h2><pre class="text boxed">${value(run.labels)}</pre>`}
    ${run.cut && html`<p class="muted">Large values were truncated.</p>`}
  </section>`;
}
