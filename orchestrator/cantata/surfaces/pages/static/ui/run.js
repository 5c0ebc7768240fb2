/** One run: how it stands, and its graph, time line, events, tasks and request; beside them the step that was chosen. */

import { html, useCallback, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { refusalIn } from "../core/event_list.js";
import { clip } from "../core/format.js";
import { nameOf, withoutInternal } from "../core/internal_steps.js";
import { locationIn, runAddress } from "../core/route.js";
import { ofRun, runIsOver } from "../core/states.js";
import { useRun } from "../following.js";
import { isInFlower, urls } from "../settings.js";
import { useNow } from "../ticking.js";
import { CompareTab } from "./compare.js";
import { EventsTab } from "./events.js";
import { GraphTab } from "./graph.js";
import { Head } from "./head.js";
import { prepareLayouts } from "./layout.js";
import { LogTab } from "./log_tab.js";
import { Panel } from "./panel.js";
import { RequestTab } from "./request.js";
import { Tabs } from "./tabs.js";
import { TasksTab, useTasks } from "./tasks.js";
import { TimeTab } from "./timeline.js";

const none = new Set();
const BY_STEP = new Set(["graph", "time", "events"]); // tabs that show internal steps only if asked
const MAX_OPENED = 20; // maps whose items the API tells at once

/** The page. `search` is the query of its address, `go(address, {replace})` goes to another. */
export function RunPage({ runId, search, go }) {
  const { tab, step, other } = locationIn(search);
  const [opened, setOpened] = useState(none);
  const [timed, setTimed] = useState(none); // in the time line every map tells its items
  const maps = useRef(none);
  maps.current = mapsAmong([...timed, ...opened], maps.current);
  const { view, events, replies, connection, fault, reload, earlier } = useRun(runId, maps.current);
  const [withInternal, setInternal] = useState(false);
  const reduced = useMemo(() => view && withoutInternal(view), [view?.steps, view?.edges, view?.run]);
  const refusal = useMemo(() => refusalIn(events.entries), [events]);
  const isOpen = view !== null && !runIsOver(view.run.status);
  const now = useNow(500, isOpen);
  const tasks = useTasks(runId, isOpen);
  useTitle(view, runId);
  const inTime = tab === "time" && view ? view.maps.map((map) => map.id) : [];
  useEffect(() => setTimed(new Set(inTime)), [JSON.stringify(inTime)]);
  useEffect(prepareLayouts, []);

  const show = (part, how) => go(runAddress(urls.base, runId, { tab, step, other, ...part }), how);
  const select = useCallback((id) => show({ step: id }, { replace: step !== null }), [tab, step, other]);
  const close = useCallback(() => {
    show({ step: null }, { replace: true });
    requestAnimationFrame(() => document.querySelector(`[data-node="${CSS.escape(step ?? "")}"]`)?.focus({ preventScroll: true }));
  }, [tab, step, other]);
  const toggle = useCallback((id) => setOpened((known) => toggled(known, id)), []);

  if (!view) return html`<${Unread} runId=${runId} fault=${fault} />`;
  const tabs = [["graph", "Graph"], ["time", "Time line"], ["events", "Events"], ...(isInFlower ? [] : [["logs", "Log"]]), ...(tasks.length ? [["tasks", "Tasks"]] : []), ["request", "Request"], ...(tab === "compare" ? [["compare", "Compare"]] : [])];
  const nameAt = (id) => nameOf(view, id);
  const drawn = withInternal ? view : reduced.view;
  const shown = tabs.some(([id]) => id === tab) ? tab : "graph";
  return html`<main id="main" class="run-page ${step === null ? "" : "with-panel"}" tabindex="-1">
    <div class="run-main">
      <${Head} view=${view} refusal=${refusal} onSelect=${select} now=${now} connection=${connection} fault=${fault} reload=${reload} go=${go} />
      <div class="tabs-line"><${Tabs} tabs=${tabs} shown=${shown} onShow=${(id) => show({ tab: id }, { replace: true })} />
        ${reduced.hidden > 0 && BY_STEP.has(shown) && html`<label class="internal" title="Its start, gathers and ends: steps that only organize others">
          <input type="checkbox" checked=${withInternal} onChange=${() => setInternal(!withInternal)} /> Internal steps</label>`}</div>
      <div class="tab-body" role="tabpanel" id="tab-body" aria-labelledby="tab-${shown}">
        ${shown === "graph" && html`<${GraphTab} view=${drawn} hidden=${view.steps.size - drawn.steps.size} opened=${opened} onOpen=${toggle} selected=${step} onSelect=${select} now=${now} />`}
        ${shown === "time" && html`<${TimeTab} view=${drawn} now=${now} selected=${step} onSelect=${select} />`}
        ${shown === "events" && html`<${EventsTab} events=${events} isHidden=${(id) => view.steps.has(id) && !drawn.steps.has(id)} nameOf=${nameAt} onEarlier=${earlier} onSelect=${select} />`}
        ${shown === "logs" && html`<${LogTab} view=${view} isOpen=${isOpen} nameOf=${nameAt} onSelect=${select} />`}
        ${shown === "tasks" && html`<${TasksTab} tasks=${tasks} nameOf=${nameAt} onSelect=${select} />`}
        ${shown === "request" && html`<${RequestTab} run=${view.run} />`}
        ${shown === "compare" && html`<${CompareTab} run=${view.run} other=${other} onOther=${(id) => show({ tab: "compare", other: id, step: null })} onSelect=${select} />`}
      </div>
    </div>
    ${step !== null && html`<${Panel} key=${step} runId=${runId} stepId=${step} view=${view} replies=${replies.get(step)} now=${now} onClose=${close} reload=${reload} go=${go} />`}
  </main>`;
}

function Unread({ runId, fault }) {
  const gone = fault?.status === 404;
  return html`<main id="main" class="list-page" tabindex="-1"><p class="back"><a href=${`${urls.base}/`}>All runs</a></p>
    ${fault ? html`<h1>${gone ? "There is no such run" : "The run cannot be read"}</h1><p class="fault" role="alert">${fault.message}</p>`
      : html`<h1 class="muted">Reading the run…</h1>`}
    <p><bdi class="id">${clip(runId, 200)}</bdi></p></main>`;
}

/** The maps among the groups whose items are wanted, the last of them if there are many: the same set as before if they are the same. */
function mapsAmong(opened, before) {
  const maps = new Set(opened.filter((id) => !id.startsWith("+")).slice(-MAX_OPENED));
  return maps.size === before.size && [...maps].every((id) => before.has(id)) ? before : maps;
}

function toggled(known, id) {
  const next = new Set(known);
  if (!next.delete(id)) next.add(id);
  return next;
}

function useTitle(view, runId) {
  const label = view ? `${ofRun(view.run.status, view.run.failures).label}: ` : "";
  const title = `${label}${clip(view?.run.title || runId, 60)} · Cantata`;
  useEffect(() => {
    document.title = title;
  }, [title]);
}
