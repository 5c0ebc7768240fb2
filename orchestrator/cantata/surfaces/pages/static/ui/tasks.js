/** Celery tasks of a run, if Flower stores them. */

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { ofRun, read } from "../api.js";
import { clip, duration } from "../core/format.js";
import { urls } from "../settings.js";

const EVERY_MS = 5000;
const AFTER_MS = 1500; // after the end: Flower gets events a little later

/** Return the tasks of a run, read again while it is open; none if the API has none. */
export function useTasks(runId, isOpen) {
  const [tasks, setTasks] = useState([]);
  useEffect(() => {
    const ending = new AbortController();
    const look = () => read(ofRun(runId, "tasks"), { signal: ending.signal }).then((found) => setTasks(found.tasks ?? [])).catch(() => {});
    look();
    const timer = isOpen ? setInterval(look, EVERY_MS) : setTimeout(look, AFTER_MS);
    return () => {
      clearInterval(timer);
      ending.abort();
    };
  }, [runId, isOpen]);
  return tasks;
}

/** A table of tasks, each a link to its page in Flower. */
export function TasksTab({ tasks, nameOf, onSelect }) {
  return html`<section aria-label="Tasks" class="pad"><div class="wide" tabindex="0" role="group" aria-label="Table of tasks"><table class="plain">
    <thead><tr><th scope="col">Task</th><th scope="col">State</th><th scope="col">Steps</th><th scope="col">Worker</th><th scope="col" class="num">Time</th></tr></thead>
    <tbody>${tasks.map((task) => html`<tr key=${task.uuid}>
      <td><a href=${`${urls.flower}/task/${encodeURIComponent(task.uuid)}`} data-outside>${clip(task.name ?? task.uuid, 60)}</a></td>
      <td>${clip(task.state ?? "", 20)}</td>
      <td>${task.steps.map((step) => html`<button type="button" class="link" key=${step} title=${clip(step, 200)} onClick=${() => onSelect(step)}>${clip(nameOf(step), 60)}</button> `)}</td>
      <td><bdi>${clip(task.worker ?? "", 60)}</bdi></td><td class="num">${duration(task.runtime)}</td></tr>`)}</tbody>
  </table></div></section>`;
}
