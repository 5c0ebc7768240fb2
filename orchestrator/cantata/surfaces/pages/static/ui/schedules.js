/** Pages of schedules: the list, and one with its next times, its last runs and its buttons. */

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { send } from "../api.js";
import { age, clip, count, duration, moment, plural, value } from "../core/format.js";
import { runAddress, scheduleAddress } from "../core/route.js";
import { ofRun } from "../core/states.js";
import { usePolled } from "../polling.js";
import { urls } from "../settings.js";
import { useNow } from "../ticking.js";
import { State } from "./icons.js";

const STATES = {
  active: { label: "Active", tone: "good", icon: "clock" },
  paused: { label: "Paused", tone: "wait", icon: "hand" },
  over: { label: "Over", tone: "idle", icon: "check" },
  unreadable: { label: "Unreadable", tone: "bad", icon: "cross" },
};

/** The list of schedules. */
export function SchedulesPage() {
  const { found, fault } = usePolled("/schedules");
  const now = useNow(1000);
  useEffect(() => {
    document.title = "Schedules · Cantata";
  }, []);
  return html`<main id="main" class="list-page" tabindex="-1">
    <h1>Schedules</h1>
    ${fault && html`<p class="fault" role="alert">${fault.message}</p>`}
    ${found && !found.schedules.length && html`<div class="empty"><p>No schedules yet.</p>
      <p class="muted">Declare them in the configuration: <code>submit schedules apply</code></p></div>`}
    ${found?.schedules.length > 0 && html`<div class="table-scroller" tabindex="0" role="group" aria-label="Table of schedules"><table class="data schedules">
      <thead><tr><th scope="col">State</th><th scope="col">Schedule</th><th scope="col">Times</th><th scope="col">Next</th>
        <th scope="col">Last run</th><th scope="col" class="num">Fired</th></tr></thead>
      <tbody>${found.schedules.map((each) => html`<tr key=${`${each.tenant}/${each.name}`}>
        <td><${State} is=${STATES[each.state]} /></td>
        <td><a href=${scheduleAddress(urls.base, each.name, each.tenant)}>${each.name}</a>${each.tenant && html` <bdi class="label">${clip(each.tenant, 60)}</bdi>`}
          <span class="row-more muted"><bdi>${clip(each.unreadable || each.target, 300)}</bdi></span></td>
        <td>${clip(each.timing, 60)}</td>
        <td>${each.next_at.length ? `in ${duration(each.next_at[0] - now)}` : "–"}</td>
        <td>${each.runs.length ? html`<${RunLink} run=${each.runs[0]} />` : "–"}</td>
        <td class="num">${count(each.fired)}</td>
      </tr>`)}</tbody>
    </table></div>`}
  </main>`;
}

/** One schedule. `search` is the query of its URL, `go(url)` navigates. */
export function SchedulePage({ name, search, go }) {
  const tenant = new URLSearchParams(search).get("tenant") ?? "";
  const query = tenant ? `?${new URLSearchParams({ tenant })}` : "";
  const path = `/schedules/${encodeURIComponent(name)}`;
  const { found, fault, refresh } = usePolled(path + query);
  const [answer, setAnswer] = useState(null);
  const now = useNow(1000);
  useEffect(() => {
    document.title = `${name} · Cantata`;
  }, [name]);
  const act = async (action) => {
    try {
      const done = await send(`${path}/${action}${query}`);
      if (done.run_id) return go(runAddress(urls.base, done.run_id));
      setAnswer(action === "trigger" ? { text: `${done.outcome}: a run of this schedule is open, or its session is full` } : null);
    } catch (error) {
      setAnswer({ text: error.message, isFault: true });
    }
    return refresh();
  };
  return html`<main id="main" class="list-page schedule-page" tabindex="-1">
    <p><a href=${`${urls.base}/schedules`}>All schedules</a></p>
    <h1><bdi>${clip(name, 100)}</bdi></h1>
    ${fault && html`<p class="fault" role="alert">${fault.message}</p>`}
    ${found && html`<p><${State} is=${STATES[found.state]} /> ${clip(found.timing, 200)}${found.pause_note && ` · ${clip(found.pause_note, 200)}`}</p>
    <div class="buttons">
      <button type="button" onClick=${() => act("trigger")}>Run now</button>
      ${found.state === "paused" ? html`<button type="button" onClick=${() => act("resume")}>Resume</button>`
        : html`<button type="button" onClick=${() => act("pause")}>Pause</button>`}
    </div>
    <p aria-live="polite" class=${answer?.isFault ? "fault" : "muted"}>${answer?.text}</p>
    ${(found.unreadable || found.error) && html`<p class="fault">${clip(found.unreadable || found.error, 500)}</p>`}
    <p class="muted">${count(found.fired)} fired, ${count(found.skipped)} skipped, ${count(found.missed)} missed, ${count(found.pending)} waiting</p>
    <h2>Next</h2>
    ${found.next_at.length ? html`<ol>${found.next_at.map((at) => html`<li key=${at}>${moment(at)} <span class="muted">in ${duration(at - now)}</span></li>`)}</ol>`
      : html`<p class="muted">None</p>`}
    <h2>Last runs</h2>
    <${LastRuns} runs=${found.runs} now=${now} />
    ${found.schedule && html`<h2>Declaration</h2>
    <pre class="text boxed" tabindex="0">${value(stated(found.schedule))}</pre>`}`}
  </main>`;
}

/** Return a declaration without the fields that say nothing. */
function stated(json) {
  return JSON.parse(JSON.stringify(json, (_, each) => (each === null || each === "" || each?.length === 0 ? undefined : each)));
}

function LastRuns({ runs, now }) {
  if (!runs.length) return html`<p class="muted">None</p>`;
  return html`<div class="table-scroller" tabindex="0" role="group" aria-label="Table of runs"><table class="data schedules" aria-label=${plural(runs.length, "run")}>
    <thead><tr><th scope="col">Run</th><th scope="col">Scheduled</th><th scope="col" class="num">Started after</th><th scope="col" class="num">Age</th></tr></thead>
    <tbody>${runs.map((run) => html`<tr key=${run.run_id}><td><${RunLink} run=${run} /></td><td>${moment(run.scheduled_at)}</td>
      <td class="num">${duration(run.started_at === null ? null : run.started_at - run.scheduled_at)}</td>
      <td class="num">${age(now - (run.started_at ?? run.scheduled_at))}</td></tr>`)}</tbody>
  </table></div>`;
}

function RunLink({ run }) {
  if (!run.status) return html`<span class="muted">expired</span>`;
  return html`<a href=${runAddress(urls.base, run.run_id)}><${State} is=${ofRun(run.status)} /></a>`;
}
