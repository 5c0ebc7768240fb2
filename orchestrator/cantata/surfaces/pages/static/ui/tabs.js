/** Tabs, by mouse and by arrow keys. */

import { html } from "../vendor/htm-preact.js";

/** `tabs` are [id, label]; `onShow(id)` shows another. */
export function Tabs({ tabs, shown, onShow }) {
  const onKeyDown = (event) => {
    const direction = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    const index = tabs.findIndex(([id]) => id === shown);
    const [next] = tabs[(index + direction + tabs.length) % tabs.length];
    onShow(next);
    event.currentTarget.querySelector(`#tab-${next}`)?.focus();
  };
  return html`<div class="tabs" role="tablist" aria-label="Views of the run" onKeyDown=${onKeyDown}>
    ${tabs.map(([id, label]) => html`<button type="button" key=${id} id="tab-${id}" role="tab" aria-selected=${id === shown}
      aria-controls="tab-body" tabindex=${id === shown ? 0 : -1} onClick=${() => onShow(id)}>${label}</button>`)}
  </div>`;
}
