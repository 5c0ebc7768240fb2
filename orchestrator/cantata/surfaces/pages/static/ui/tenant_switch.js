/** Switch of operators in the top bar: whose runs, inbox, schedules and batches the pages show. */

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { read } from "../api.js";

const ALL = "all";
const NONE = "none";
const NAMED = "of ";

/** The switch; nothing for a token that sees one tenant. `chosen` is a tenant, "" for what belongs to none, or null for all. */
export function TenantSwitch({ chosen, onChoose }) {
  const [known, setKnown] = useState(null);
  const refresh = () => read("/tenants").then(setKnown, () => {});
  useEffect(() => {
    refresh();
  }, []);
  if (!known?.sees_all) return null;
  const names = new Set([...known.tenants, ...(chosen ? [chosen] : [])].filter(Boolean));
  const choose = (value) => onChoose(value === ALL ? null : value === NONE ? "" : value.slice(NAMED.length));
  return html`<select class="tenant" aria-label="Tenant" value=${chosen === null ? ALL : chosen === "" ? NONE : NAMED + chosen}
      onFocus=${refresh} onChange=${(event) => choose(event.target.value)}>
    <option value=${ALL}>All tenants</option><option value=${NONE}>Without a tenant</option>
    ${[...names].sort().map((name) => html`<option key=${name} value=${NAMED + name}>${name}</option>`)}
    ${!known.is_complete && html`<option disabled>and more: open the page of a run of the tenant</option>`}
  </select>`;
}
