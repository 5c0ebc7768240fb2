/** Batches: the list, each in a line with a bar; and one of them with its failed rows and a download. */

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { open, read, send } from "../api.js";
import { age, clip, cost, count, plural, tokens } from "../core/format.js";
import { batchAddress, runAddress } from "../core/route.js";
import { batchIsOver, ofBatch, share } from "../core/states.js";
import { urls } from "../settings.js";
import { useNow } from "../ticking.js";
import { State } from "./icons.js";

const REFRESH_MS = 2000;
const ACTIONS = { running: ["pause", "cancel"], paused: ["resume", "cancel"], budget_spent: ["cancel"] };

/** Return {value, fault, refresh}: what a function reads, again and again while the page is visible. */
function useReading(reading, dependencies) {
  const [state, setState] = useState({ value: null, fault: null });
  const refresh = () => reading().then((value) => setState({ value, fault: null }), (fault) => setState((before) => ({ ...before, fault })));
  useEffect(() => {
    refresh();
    const timer = setInterval(() => document.hidden || refresh(), REFRESH_MS);
    return () => clearInterval(timer);
  }, dependencies);
  return { ...state, refresh };
}

/** The page of all batches. */
export function BatchesPage() {
  const now = useNow(1000);
  const { value, fault } = useReading(() => read("/batches?most=100"), []);
  useEffect(() => {
    document.title = "Batches · Cantata";
  }, []);
  return html`<main id="main" class="list-page" tabindex="-1">
    <h1>Batches</h1>
    ${fault && html`<p class="fault" role="alert">${fault.message}</p>`}
    ${value && !value.batches.length && html`<div class="empty"><p>No batches yet.</p>
      <p class="muted">Begin one: <code>submit batch rows.csv --agent NAME --out results.csv</code></p></div>`}
    ${value && value.batches.length > 0 && html`<table class="runs batches">
      <thead><tr><th scope="col">Status</th><th scope="col">Batch</th><th scope="col">Rows</th><th scope="col" class="num">Failed</th>
        <th scope="col" class="num">Tokens</th><th scope="col" class="num">Cost</th><th scope="col" class="num">Age</th></tr></thead>
      <tbody>${value.batches.map((batch) => html`<tr key=${batch.name}>
        <td class="cell-status"><${State} is=${ofBatch(batch.state)} /></td>
        <td class="cell-title"><a class="row-link" href=${batchAddress(urls.base, batch.name)}>${batch.name}</a>
          <span class="row-more">${batch.target.kind} ${clip(batch.target.name, 60)}</span></td>
        <td><${Bar} batch=${batch} /></td><td class="num">${count(batch.failed)}</td><td class="num">${tokens(batch.usage)}</td>
        <td class="num">${cost(batch.usage.cost_usd)}</td><td class="num">${age(now - batch.created_at)}</td>
      </tr>`)}</tbody></table>`}
  </main>`;
}

/** The page of one batch. */
export function BatchPage({ name }) {
  const path = `/batches/${encodeURIComponent(name)}`;
  const [start, setStart] = useState(0);
  const { value, fault, refresh } = useReading(() => read(path), [name]);
  const failures = useReading(() => read(`${path}/results?failed=true&start=${start}`), [name, start]);
  const [refusal, setRefusal] = useState(null);
  useEffect(() => {
    document.title = `${name} · Cantata`;
  }, [name]);
  const act = (what) => send(`${path}/${what}`).then(() => setRefusal(null), setRefusal).then(refresh);
  const trouble = refusal ?? fault ?? failures.fault;
  return html`<main id="main" class="list-page" tabindex="-1">
    <h1>Batch ${name}</h1>
    ${trouble && html`<p class="fault" role="alert">${trouble.message}</p>`}
    ${value && html`<p><${State} is=${ofBatch(value.state)} /> ${value.target.kind} ${value.target.name}</p>
      <${Bar} batch=${value} />
      <p class="muted">${plural(value.failed, "failed row")}, ${tokens(value.usage)} tokens, ${cost(value.usage.cost_usd)}${
        value.budget_usd ? ` of ${cost(value.budget_usd)}` : ""}${value.out && value.out !== "-" ? `, results in ${value.out}` : ""}</p>
      <p class="buttons">${(ACTIONS[value.state] ?? []).map((what) => html`<button type="button" key=${what} onClick=${() => act(what)}>
          ${what[0].toUpperCase() + what.slice(1)}</button>`)}
        ${!batchIsOver(value.state) && html`<button type="button" onClick=${() => download(path, name, setRefusal)}>Download results kept here</button>`}
        ${value.failed > 0 && html`<button type="button" onClick=${() => download(`${path}`, name, setRefusal, true)}>Download failed rows</button>`}</p>`}
    ${failures.value && failures.value.rows.length > 0 && html`<h2>Failed rows</h2>
      <table class="runs failures"><thead><tr><th scope="col">Row</th><th scope="col">Error</th></tr></thead>
        <tbody>${failures.value.rows.map((row) => html`<tr key=${row.row}><td class="num">${count(row.row)}</td>
          <td>${row.error ? html`<a href=${runAddress(urls.base, row.run_id)}>${clip(row.error.message, 200)}</a>`
            : html`<span class="muted">its run is no longer kept</span>`}</td></tr>`)}</tbody></table>
      ${failures.value.next !== null && html`<button type="button" onClick=${() => setStart(failures.value.next)}>More</button>`}`}
  </main>`;
}

function Bar({ batch }) {
  const of = batch.total === null ? "" : ` of ${count(batch.total)}`;
  return html`<span class="bar">${batch.total !== null && html`<progress max="1" value=${share(batch)} aria-label="Rows of ${batch.name}" />`}
    <span>${count(batch.delivered)}${of}</span></span>`;
}

async function download(path, name, setFault, failed = false) {
  try {
    const response = await open(`${path}/download${failed ? "?failed=true" : ""}`, { headers: { Accept: "application/x-ndjson" } });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await response.blob());
    link.download = `${name}${failed ? "-failed" : ""}.jsonl`;
    link.click();
    URL.revokeObjectURL(link.href);
    setFault(null);
  } catch (fault) {
    setFault(fault);
  }
}
