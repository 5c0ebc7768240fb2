/** Icons of states: each has its own shape, so that they differ not only by colour. */

import { html } from "../vendor/htm-preact.js";

const SHAPES = {
  ring: () => html`<circle cx="8" cy="8" r="5.5" />`,
  dot: () => html`<circle cx="8" cy="8" r="5.5" stroke-dasharray="2.4 2.1" /><circle cx="8" cy="8" r="1.6" class="filled" />`,
  run: () => html`<circle cx="8" cy="8" r="5.5" class="faint" /><path d="M8 2.5a5.5 5.5 0 0 1 5.5 5.5" class="turning" />`,
  check: () => html`<path d="m3.5 8.5 3 3 6-7" />`,
  cross: () => html`<path d="m4.2 4.2 7.6 7.6m0-7.6-7.6 7.6" />`,
  stop: () => html`<rect x="3.8" y="3.8" width="8.4" height="8.4" rx="1.6" />`,
  clock: () => html`<circle cx="8" cy="8" r="5.8" /><path d="M8 4.8V8l2.2 1.6" />`,
  spent: () => html`<path d="M8 2.6 14 13H2z" /><path d="M8 6.6v3m0 1.6v.2" />`,
  hand: () => html`<path d="M5.5 3.5v9m5-9v9" class="thick" />`,
  dash: () => html`<path d="M3.5 8h9" />`,
};

/** Icon of a state; hidden from screen readers, since its label is beside it. */
export function Icon({ of, tone }) {
  return html`<svg class="icon tone-${tone}" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">${SHAPES[of]()}</svg>`;
}

/** A state as icon and label. */
export function State({ is }) {
  return html`<span class="state tone-${is.tone}"><${Icon} of=${is.icon} tone=${is.tone} /><span>${is.label}</span></span>`;
}
