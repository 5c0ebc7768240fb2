/** Workers and queues: what waits, what is under way, and who does it. */

import { html, useEffect } from "../vendor/htm-preact.js";
import { send } from "../api.js";
import { clip, count, duration, moment } from "../core/format.js";
import { runAddress } from "../core/route.js";
import { usePolled } from "../polling.js";
import { urls } from "../settings.js";
import { useNow } from "../ticking.js";
import { Confirmed } from "./dialog.js";

const CLOCK_OFF_S = 5; // as `submit status` reports it

/** The page. */
export function WorkersPage() {
  const { found, fault, refresh } = usePolled("/workers");
  const now = useNow(1000);
  useEffect(() => {
    document.title = "Workers · Cantata";
  }, []);
  return html`<main id="main" class="list-page" tabindex="-1">
    <h1>Workers and queues</h1>
    ${fault && html`<p class="fault" role="alert">${fault.message}</p>`}
    ${found && html`<${Refused} fleet=${found} /><h2>Queues</h2><${Queues} fleet=${found} refresh=${refresh} />
      <${PausedModels} models=${found.paused_models} now=${now} />
      <h2>Workers</h2>
      ${!found.workers.length && !found.write_error && html`<div class="empty"><p>No worker is running, so runs wait.</p>
        <p class="muted">Start one: <code>submit worker coordinator agents tools</code></p></div>`}
      <${LostWorkers} workers=${found.lost_workers} now=${now} />
      ${found.write_error && html`<p class="muted">Unknown while Redis refuses writes: workers cannot announce themselves.</p>`}
      ${found.workers.length > 0 && !found.write_error && html`<div class="table-scroller" tabindex="0" role="group" aria-label="Table of workers"><table class="data">
        <thead><tr><th scope="col">Worker</th><th scope="col">Queues</th><th scope="col" class="num">Slots</th><th scope="col">Host</th>
          <th scope="col">Version</th><th scope="col">Code</th><th scope="col" class="num">Up for</th><th scope="col">Work</th></tr></thead>
        <tbody>${found.workers.map((worker) => html`<tr key=${worker.name}>
          <td><bdi>${clip(worker.name, 80)}</bdi>${worker.unreadable && html`<span class="row-more fault">${clip(worker.unreadable, 300)}</span>`}${worker.duplicate && html`<span class="row-more fault">also: ${clip(worker.duplicate, 80)}</span>`}</td>
          <td>${clip(worker.queues.join(", "), 80)}</td><td class="num">${count(worker.concurrency)}</td>
          <td><bdi>${clip(worker.host, 60)}</bdi>, process ${worker.pid}${Math.abs(worker.clock_off_s) > CLOCK_OFF_S && html`
            <span class="row-more fault">clock off by ${duration(Math.abs(worker.clock_off_s))}</span>`}</td>
          <td>${clip(worker.version, 40)}</td><td title=${worker.code.join("\n")}>${clip(worker.code.join(", ") || "–", 60)}</td>
          <td class="num">${duration(now - worker.started_at)}</td><td>${!worker.unreadable && html`<${Draining} worker=${worker} refresh=${refresh} />`}</td></tr>`)}</tbody></table></div>`}`}
  </main>`;
}

/** Whether a worker takes work, and the button that changes it. */
function Draining({ worker, refresh }) {
  const decide = (act) => async () => {
    await send(`/workers/${encodeURIComponent(worker.name)}/${act}`, act === "drain" ? {} : undefined);
    refresh();
  };
  if (worker.state === "serving") {
    return html`<${Confirmed} question=${`Drain ${clip(worker.name, 80)}?`} yes="Drain it" act=${decide("drain")}
      explained="It takes no more work, finishes its steps, and releases those that take too long. It stays, until it is restarted or takes work again.">Drain<//>`;
  }
  const by = worker.drained_by ? ` by ${clip(worker.drained_by, 60)}` : "";
  return html`<span class="row-more">${worker.state}${by}</span><${Confirmed} question=${`Let ${clip(worker.name, 80)} work again?`} yes="Let it work"
    className="primary" act=${decide("undrain")} explained="It takes work from its queues again.">Undrain<//>`;
}

/** Since when a queue is paused and by whom, with the button that changes it where there is a page to read again. */
function Pausing({ name, pause, refresh }) {
  const decide = (act) => async () => {
    await send(`/queues/${encodeURIComponent(name)}/${act}`);
    refresh();
  };
  const told = pause && html`<span class="row-more fault">paused since ${moment(pause.since)}${pause.by && ` by ${clip(pause.by, 60)}`}</span>`;
  if (!refresh) return told || html`<span class="muted">–</span>`;
  return pause ? html`${told}<${Confirmed} question=${`Resume the queue ${clip(name, 60)}?`} yes="Resume it" className="primary" act=${decide("resume")}
    explained="Workers take what waits in it at once.">Resume<//>`
    : html`<${Confirmed} question=${`Pause the queue ${clip(name, 60)}?`} yes="Pause it" act=${decide("pause")}
    explained="No worker takes work from it, whatever restarts. What runs ends as usual, what is submitted waits, and deadlines keep running.">Pause<//>`;
}

/** The workers that vanished or froze, with the steps that they had; nothing if there are none. */
export function LostWorkers({ workers, now }) {
  return workers.length > 0 && html`<div class="table-scroller" tabindex="0" role="group" aria-label="Table of lost workers">
    <table class="data"><thead><tr><th scope="col">Lost in the last ten minutes</th><th scope="col">Queues</th><th scope="col">Host</th>
      <th scope="col" class="num">Last seen</th><th scope="col">Steps that it had</th></tr></thead>
    <tbody>${workers.map((each) => html`<tr key=${each.name}><th scope="row" class="fault"><bdi>${clip(each.name, 80)}</bdi></th>
      <td>${clip(each.queues.join(", "), 80)}</td><td><bdi>${clip(each.host, 60)}</bdi>, process ${each.pid}</td>
      <td class="num">${duration(Math.max(0, now - each.seen_at))} ago</td><td>${each.steps.length ? each.steps.map((step) => html`<span class="row-more">
        <a href=${runAddress(urls.base, step.split(" ")[0])}>${clip(step, 80)}</a></span>`) : "–"}</td></tr>`)}</tbody></table></div>`;
}

/** The models that nobody calls for a while, with their providers' words; nothing if there are none. */
export function PausedModels({ models, now }) {
  return models.length > 0 && html`<h2>Paused models</h2><div class="table-scroller" tabindex="0" role="group" aria-label="Table of paused models">
    <table class="data"><thead><tr><th scope="col">Model</th><th scope="col" class="num">Called again in</th><th scope="col" class="num">Asked for</th>
      <th scope="col">Provider</th></tr></thead>
    <tbody>${models.map((each) => html`<tr key=${each.model}><th scope="row"><bdi>${clip(each.model, 80)}</bdi></th>
      <td class="num">${duration(Math.max(0, each.until - now))}</td><td class="num">${duration(each.asked_s)}</td>
      <td>${clip(each.message, 300)}</td></tr>`)}</tbody></table></div>`;
}

/** Why Redis refuses writes; nothing if it takes them. */
export function Refused({ fleet }) {
  return fleet.write_error && html`<p class="fault" role="alert">Redis refuses writes, so runs wait: ${clip(fleet.write_error, 300)}</p>`;
}

/** The table of queues, as `/workers` has them; with `refresh`, which reads it again, each can be paused. */
export function Queues({ fleet, refresh = null }) {
  const workers = (load) => (fleet.write_error ? "unknown" : load.workers ? count(load.workers) : "none");
  return html`<div class="table-scroller" tabindex="0" role="group" aria-label="Table of queues"><table class="data">
    <thead><tr><th scope="col">Queue</th><th scope="col" class="num">Waiting</th><th scope="col" class="num">Oldest</th>
      <th scope="col" class="num">Slots in use</th><th scope="col" class="num">Workers</th><th scope="col">Work</th></tr></thead>
    <tbody>${Object.entries(fleet.queues).map(([name, load]) => html`<tr key=${name}><th scope="row"><bdi>${clip(name, 60)}</bdi></th>
      <td class="num">${count(load.ready)}</td><td class="num">${duration(load.oldest_wait_s)}</td>
      <td class="num">${count(load.leased)} of ${fleet.write_error ? "unknown" : count(load.slots)}</td>
      <td class="num ${load.workers || fleet.write_error ? "" : "fault"}">${workers(load)}</td>
      <td><${Pausing} name=${name} pause=${load.paused} refresh=${refresh} /></td></tr>`)}</tbody></table></div>`;
}
