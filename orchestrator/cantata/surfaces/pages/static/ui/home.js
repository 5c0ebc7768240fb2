/** Home: what runs, what failed, what waits; queues and workers; cost by day. */

import { html, useEffect } from "../vendor/htm-preact.js";
import { age, clip, cost, count, plural } from "../core/format.js";
import { apiQuery, batchAddress, listAddress, runAddress } from "../core/route.js";
import { ofBatch, ofRun } from "../core/states.js";
import { usePolled } from "../polling.js";
import { isInFlower, urls } from "../settings.js";
import { syncClock, useNow } from "../ticking.js";
import { Bar } from "./batches.js";
import { Icon, State } from "./icons.js";
import { Markdown } from "./markdown.js";
import { messageOf } from "./row.js";
import { PausedModels, Queues } from "./workers.js";

const SHOWN = 5;
const DAYS = 7;
const COUNTS_MS = 10_000;
const STATUS_MS = 5_000;
const DAY = { since: "24h" };
const FAILED = ["failed", "timed_out", "exhausted"];
const PROBLEMS = { failing: { tone: "tone-bad", icon: "cross" }, degraded: { tone: "tone-wait", icon: "spent" } };

/** The page. */
export function HomePage() {
  const now = useNow(1000);
  const since = Math.floor(now / 60) * 60;
  const open = usePolled("/runs/counts", COUNTS_MS);
  const day = usePolled(`/runs/counts?${apiQuery(DAY, since)}`, COUNTS_MS);
  const running = usePolled(`/runs?status=running&status=cancelling&most=${SHOWN}`);
  const failed = usePolled(`/runs?${apiQuery({ ...DAY, statuses: FAILED }, since)}&most=${SHOWN}`);
  const inbox = usePolled(`/inbox?most=${SHOWN}`);
  const costs = usePolled(`/costs?days=${DAYS}`, COUNTS_MS);
  const batches = usePolled(isInFlower ? null : `/batches?most=${SHOWN}`, COUNTS_MS);
  const fleet = usePolled(isInFlower ? null : "/workers");
  const status = usePolled(isInFlower ? null : "/status", STATUS_MS);
  syncClock((running.found?.runs[0] ?? failed.found?.runs[0])?.now);
  useEffect(() => {
    document.title = "Home · Cantata";
  }, []);
  const fault = open.fault ?? running.fault;
  const tile = (counts, statuses, filter = {}) => html`<${Tile} key=${statuses[0]} statuses=${statuses} counts=${counts.found} filter=${filter} />`;
  return html`<main id="main" class="list-page home" tabindex="-1">
    <h1>Home</h1>
    ${fault && html`<p class="fault" role="alert">${fault.message}</p>`}
    ${status.found && html`<${Problems} checks=${status.found.checks} />`}
    <ul class="tiles" aria-label="Runs by status">${tile(open, ["running"])}${tile(open, ["accepted"])}${tile(open, ["waiting"])}
      ${tile(day, FAILED, DAY)}${tile(day, ["succeeded"], DAY)}</ul>
    <div class="home-parts">
      <${Part} title="Running" more=${listAddress(urls.base, { statuses: ["running"] })} reading=${running}>${running.found?.runs.map((run) => html`<${Line} key=${run.run_id}
        run=${run} now=${now} />`)}<//>
      <${Part} title="Failed in the last 24 hours" more=${listAddress(urls.base, { statuses: FAILED, ...DAY })} reading=${failed}>
        ${failed.found?.runs.map((run) => html`<${Line} key=${run.run_id} run=${run} now=${now} />`)}<//>
      <${Part} title="Waiting for a person" more=${`${urls.base}/inbox`} reading=${inbox}>${inbox.found?.items.map((item) => html`<li key=${item.id}>
        <a href=${runAddress(urls.base, item.run_id, { step: item.step })}>${clip(item.title || item.run_id, 80)}: ${clip(item.step, 60)}</a>
        <span class="muted">${age(now - item.since)}</span>${item.question && html`<div class="asked"><${Markdown} text=${item.question}
          className=${isLong(item.question) ? "folded" : ""} /></div>`}</li>`)}<//>
      ${batches.found?.batches.length > 0 && html`<${Part} title="Newest batches" more=${`${urls.base}/batches`} reading=${batches}>${batches.found.batches.map((batch) => html`
        <li key=${`${batch.tenant}/${batch.name}`}><${State} is=${ofBatch(batch)} /> <a href=${batchAddress(urls.base, batch.name, batch.tenant)}>${clip(batch.name, 80)}</a> <${Bar} batch=${batch} />
          ${batch.failed > 0 && html`<span class="fault">${plural(batch.failed, "failed row")}</span>`}</li>`)}<//>`}
      ${costs.found && html`<section class="card" aria-labelledby="costs"><h2 id="costs">Cost by day (UTC)</h2><${Costs} costs=${costs.found.costs} /></section>`}
      ${fleet.found && html`<section class="card wide" aria-labelledby="queues"><div class="part-head"><h2 id="queues">Queues</h2>
        <a href=${`${urls.base}/workers`}>${fleet.found.write_error ? "Workers: unknown" : plural(fleet.found.workers.length, "worker")}</a></div><${Queues} fleet=${fleet.found} />
      <${PausedModels} models=${fleet.found.paused_models} now=${now} /></section>`}
    </div>
  </main>`;
}

/** The checks of `submit status` that are not ok, with what to do. */
function Problems({ checks }) {
  const found = checks.filter((check) => check.status !== "ok");
  return html`<div role="status" aria-label="Problems">${found.length > 0 && html`<ul class="problems">${found.map((check) => html`<li key=${check.name} class=${PROBLEMS[check.status].tone}>
    <${Icon} of=${PROBLEMS[check.status].icon} tone=${PROBLEMS[check.status].tone.slice(5)} /><div><b>${check.name}</b> ${clip(check.message, 600)}${check.action && html`
      <span class="muted">${clip(check.action, 400)}</span>`}</div></li>`)}</ul>`}</div>`;
}

/** Return whether only the beginning of a question is shown here. */
function isLong(text) {
  return text.length > 400 || text.split("\n").length > 6;
}

/** A number of runs, which leads to their list. */
function Tile({ statuses, counts, filter }) {
  const is = ofRun(statuses[0]);
  const sum = statuses.reduce((before, status) => before + (counts?.counts[status] ?? 0), 0);
  return html`<li><a class="tile tone-${is.tone}" href=${listAddress(urls.base, { ...filter, statuses })}>
    <span class="tile-count">${counts ? `${count(sum)}${counts.is_complete ? "" : "+"}` : "–"}</span>
    <span class="tile-name"><${Icon} of=${is.icon} tone=${is.tone} />${is.label}${filter.since ? ", 24 h" : ""}</span></a></li>`;
}

function Part({ title, more, reading, children }) {
  const lines = children?.flat?.().filter(Boolean) ?? [];
  return html`<section class="card" aria-label=${title}><div class="part-head"><h2>${title}</h2><a href=${more} aria-label="${title}: all">All</a></div>
    ${lines.length ? html`<ul class="lines">${lines}</ul>` : html`<p class="muted">${reading.found ? "None" : (reading.fault?.message ?? "Reading…")}</p>`}</section>`;
}

function Line({ run, now }) {
  return html`<li><${State} is=${ofRun(run.status, run.failures)} /> <a href=${runAddress(urls.base, run.run_id)}>${clip(run.title || run.run_id, 80)}</a>
    <span class="muted">${age(now - run.created_at)}</span>${run.error && html`<bdi class="row-error">${clip(messageOf(run.error), 160)}</bdi>`}</li>`;
}

function Costs({ costs }) {
  const most = Math.max(...costs.map((each) => each.cost_usd), 1e-9);
  return html`<table class="costs"><thead><tr><th scope="col">Day</th><th scope="col">Share of the most expensive</th><th scope="col" class="num">Cost</th></tr></thead>
    <tbody>${costs.map(({ day, cost_usd: usd }) => html`<tr key=${day}><th scope="row">${day}</th>
      <td><progress max="1" value=${usd / most} aria-label=${`Cost on ${day}`} /></td><td class="num">${cost(usd)}</td></tr>`)}</tbody></table>`;
}
