/** Nodes of a displayed graph: steps, and groups that can be opened. */

import { html } from "../vendor/htm-preact.js";
import { clip, count, duration, plural } from "../core/format.js";
import { columnsOf, SIZE, stateOf } from "../core/folding.js";
import { attemptOf, ofStep } from "../core/states.js";
import { Icon } from "./icons.js";

const PARTS = ["done", "failed", "skipped", "running"];

/** Return the duration of a step's last attempt, or of its wait for an answer or a time. */
function took(step, now) {
  if (step.state === "waiting_signal") return ""; // no room beside the words
  if (step.started_at === null && step.asked_at) return duration((step.ended_at ?? now) - step.asked_at);
  if (step.started_at === null) return "";
  if (step.state === "running") return duration(now - step.started_at);
  return step.ended_at === null ? "" : duration(step.ended_at - step.started_at);
}

/** A step. `joins` is the number of its incoming edges. */
export function StepNode({ step, box, joins, now, isSelected, isHome, onSelect, onFocus }) {
  const is = ofStep(step);
  const time = took(step, now);
  const attempt = attemptOf(step);
  const tries = attempt > 1 ? `, attempt ${attempt}` : "";
  return html`<button type="button" data-node=${step.id} class="node tone-${is.tone} ${isSelected ? "selected" : ""} state-${step.state}"
      style=${boxStyle(box)} tabindex=${isHome ? 0 : -1} aria-pressed=${isSelected} onClick=${() => onSelect(step.id)} onFocus=${() => onFocus(step.id)}
      aria-label="${clip(step.name, 80)}: ${is.label}${tries}" title=${clip(step.name, 200)}>
    <${Icon} of=${is.icon} tone=${is.tone} />
    <span class="node-text"><span class="node-name">${clip(step.name, 60)}</span>
      <span class="node-line">${is.label}${time && html` · <span class="num">${time}</span>`}</span></span>
    ${attempt > 1 && html`<span class="badge" title="Attempt ${attempt}">×${attempt}</span>`}
    ${joins > 1 && html`<span class="join" title="${joins} edges join here">${joins}</span>`}
  </button>`;
}

/** A map, or a group of steps: a count and a bar; open, its members as chips. */
export function GroupNode({ node, box, selected, isHome, onOpen, onSelect, onFocus }) {
  const { group, id, step } = node;
  const is = stateOf(group);
  const over = group.counts.done + group.counts.failed + group.counts.skipped;
  return html`<div class="node group tone-${is.tone} ${group.isOpen ? "open" : ""}" style=${boxStyle(box)} data-group=${id}>
    <button type="button" class="group-head" data-node=${id} tabindex=${isHome ? 0 : -1} aria-expanded=${group.isOpen}
        onClick=${() => onOpen(id)} onFocus=${() => onFocus(id)} title=${clip(group.name, 200)}
        aria-label="${clip(group.name, 80)}: ${over} of ${group.count} over${group.counts.failed ? `, ${group.counts.failed} failed` : ""}">
      <${Icon} of=${is.icon} tone=${is.tone} />
      <span class="node-text"><span class="node-name">${clip(group.name, 60)}</span>
        <span class="node-line num">${count(over)} of ${count(group.count)}${group.counts.failed ? ` · ${count(group.counts.failed)} failed` : ""}</span></span>
      <span class="fold" aria-hidden="true">${group.isOpen ? "−" : "+"}</span>
    </button>
    ${group.isOpen
      ? html`<${Members} group=${group} selected=${selected} onSelect=${onSelect} />`
      : html`<${Bar} counts=${group.counts} count=${group.count} />`}
    ${group.isOpen && step && html`<button type="button" class="quiet of-map" onClick=${() => onSelect(step.id)}>Step</button>`}
  </div>`;
}

function Members({ group, selected, onSelect }) {
  const columns = columnsOf(group.members.length);
  return html`<div class="chips" style=${{ gridTemplateColumns: `repeat(${columns}, ${SIZE.chip[0]}px)` }}>
    ${group.members.map((step) => html`<${Chip} key=${step.id} step=${step} isSelected=${selected === step.id} onSelect=${onSelect} />`)}
    ${group.hidden > 0 && html`<span class="more">and ${plural(group.hidden, "more item")}</span>`}
  </div>`;
}

function Chip({ step, isSelected, onSelect }) {
  const is = ofStep(step);
  return html`<button type="button" class="chip tone-${is.tone} ${isSelected ? "selected" : ""}" aria-label="${clip(step.name, 80)}: ${is.label}"
      title=${clip(step.id, 200)} onClick=${() => onSelect(step.id)}>
    <${Icon} of=${is.icon} tone=${is.tone} /><span class="node-name">${clip(step.name, 40)}</span></button>`;
}

function Bar({ counts, count: all }) {
  return html`<div class="parts" aria-hidden="true">
    ${PARTS.map((part) => counts[part] > 0 && html`<span class="part-${part}" style=${{ width: `${(100 * counts[part]) / Math.max(1, all)}%` }} />`)}
  </div>`;
}

function boxStyle(box) {
  return { transform: `translate(${box.x}px, ${box.y}px)`, width: `${box.width}px`, height: `${box.height}px` };
}
