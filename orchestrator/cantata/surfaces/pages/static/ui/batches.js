/** Batches: the list, each in a line with a bar; and one of them with its failed rows and a download. */

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { open, send } from "../api.js";
import { age, clip, cost, count, plural, tokens } from "../core/format.js";
import { batchAddress, runAddress } from "../core/route.js";
import { batchIsOver, ofBatch, share } from "../core/states.js";
import { usePolled } from "../polling.js";
import { save } from "../saving.js";
import { urls } from "../settings.js";
import { useNow } from "../ticking.js";
import { Confirmed } from "./dialog.js";
import { State } from "./icons.js";

const SWITCHES = { running: "pause", paused: "resume" };

/** The page of all batches. */
export function BatchesPage() {
  const now = useNow(1000);
  const { found: value, fault } = usePolled("/batches?most=100");
  useEffect(() => {
    document.title = "Batches · Cantata";
  }, []);
  return html`<main id="main" class="list-page" tabindex="-1">
    <h1>Batches</h1>
    ${fault && html`<p class="fault" role="alert">${fault.message}</p>`}
    ${value && !value.batches.length && html`<div class="empty"><p>No batches yet.</p>
      <p class="muted">Begin one: <code>submit batch rows.csv --agent NAME --out results.csv</code></p></div>`}
    ${value && value.batches.length > 0 && html`<div class="table-scroller"><table class="runs batches">
      <thead><tr><th scope="col">Status</th><th scope="col">Batch</th><th scope="col">Rows</th><th scope="col" class="num">Failed</th>
        <th scope="col" class="num">Tokens</th><th scope="col" class="num">Cost</th><th scope="col" class="num">Age</th></tr></thead>
      <tbody>${value.batches.map((batch) => html`<tr key=${`${batch.tenant}/${batch.name}`}>
        <td class="cell-status"><${State} is=${ofBatch(batch)} /></td>
        <td class="cell-title"><a class="row-link" href=${batchAddress(urls.base, batch.name, batch.tenant)}>${batch.name}</a>${batch.tenant && html` <bdi class="label">${clip(batch.tenant, 60)}</bdi>`}
          <span class="row-more">${batch.unreadable ? clip(batch.unreadable, 300) : `${batch.target.kind} ${clip(batch.target.name, 60)}`}</span></td>
        <td class="cell-bar"><${Bar} batch=${batch} /></td><td class="num cell-failed ${batch.failed ? "fault" : ""}">${count(batch.failed)}</td><td class="num cell-tokens">${tokens(batch.usage)}</td>
        <td class="num cell-cost">${cost(batch.usage.cost_usd)}</td><td class="num cell-age">${age(now - batch.created_at)}</td>
      </tr>`)}</tbody></table></div>`}
  </main>`;
}

/** The page of one batch. */
export function BatchPage({ name, search }) {
  const tenant = new URLSearchParams(search).get("tenant");
  const more = tenant ? `&${new URLSearchParams({ tenant })}` : "";
  const query = more.replace("&", "?");
  const path = `/batches/${encodeURIComponent(name)}`;
  const [start, setStart] = useState(0);
  const { found: value, fault, refresh } = usePolled(path + query);
  const failures = usePolled(`${path}/results?failed=true&start=${start}${more}`);
  const [refusal, setRefusal] = useState(null);
  useEffect(() => {
    document.title = `${name} · Cantata`;
  }, [name]);
  const act = (what) => send(`${path}/${what}${query}`).then(() => setRefusal(null), setRefusal).then(refresh);
  const confirmed = (what) => () => send(`${path}/${what}${query}`).then(() => Promise.all([refresh(), failures.refresh()]));
  const what = SWITCHES[value?.state];
  const trouble = refusal ?? fault ?? failures.fault;
  return html`<main id="main" class="list-page" tabindex="-1">
    <p><a href=${`${urls.base}/batches`}>All batches</a></p>
    <h1>Batch ${name}</h1>
    ${trouble && html`<p class="fault" role="alert">${trouble.message}</p>`}
    ${value && html`<p><${State} is=${ofBatch(value)} /> ${value.target.kind} ${value.target.name}</p>
      <${Bar} batch=${value} />
      <p class="muted"><span class=${value.failed ? "fault" : ""}>${plural(value.failed, "failed row")}</span>, ${tokens(value.usage)} tokens, ${cost(value.usage.cost_usd)}${
        value.budget_usd ? ` of ${cost(value.budget_usd)}` : ""}${value.out && value.out !== "-" ? `, results in ${value.out}` : ""}</p>
      <div class="buttons">${what && html`<button type="button" onClick=${() => act(what)}>${what[0].toUpperCase() + what.slice(1)}</button>`}
        ${!batchIsOver(value.state) && html`<${Confirmed} question="Cancel this batch?" yes="Cancel the batch" className="danger" act=${confirmed("cancel")}
          explained="It submits no more rows, for good, and its open rows are cancelled. Delivered results stay.">Cancel<//>`}
        ${value.state === "done" && value.failed > 0 && !value.file && html`<${Confirmed} question="Retry the failed rows?" yes="Retry" className="primary"
          act=${confirmed("retry")} explained=${`${plural(value.failed, "row")} will run again. Read and acknowledge the results where the batch was begun.`}>
          Retry failed rows<//>`}
        ${!batchIsOver(value.state) && html`<button type="button" onClick=${() => download(path, name, more, setRefusal)}>Download results kept here</button>`}
        ${value.failed > 0 && html`<button type="button" onClick=${() => download(path, name, more, setRefusal, true)}>Download failed rows</button>`}</div>
      ${value.state === "done" && value.failed > 0 && value.file && html`<p class="muted">To retry the failed rows: <code>submit batch retry ${name}</code></p>`}`}
    ${failures.found && failures.found.rows.length > 0 && html`<h2>Failed rows</h2>
      <table class="runs failures"><thead><tr><th scope="col">Row</th><th scope="col">Error</th></tr></thead>
        <tbody>${failures.found.rows.map((row) => html`<tr key=${row.row}><td class="num">${count(row.row)}</td>
          <td>${row.error ? html`<a href=${runAddress(urls.base, row.run_id)}>${clip(row.error.message, 200)}</a>`
            : html`<span class="muted">its run is no longer kept</span>`}</td></tr>`)}</tbody></table>
      ${failures.found.next !== null && html`<button type="button" onClick=${() => setStart(failures.found.next)}>More</button>`}`}
  </main>`;
}

/** The delivered rows of a batch as a bar and a number, in the colour of its state if rows failed. */
export function Bar({ batch }) {
  const of = batch.total === null ? "" : ` of ${count(batch.total)}`;
  return html`<span class="delivered ${batch.failed ? `failing tone-${ofBatch(batch).tone}` : ""}">${batch.total !== null && html`<progress max="1" value=${share(batch)} aria-label="Rows of ${batch.name}" />`}
    <span>${count(batch.delivered)}${of}</span></span>`;
}

async function download(path, name, more, setFault, failed = false) {
  try {
    const response = await open(`${path}/download?failed=${failed}${more}`, { headers: { Accept: "application/x-ndjson" } });
    save(await response.blob(), `${name}${failed ? "-failed" : ""}.jsonl`);
    setFault(null);
  } catch (fault) {
    setFault(fault);
  }
}
