/** The run pages: the current page, and the top bar. */

import { html, render, useCallback, useEffect, useState } from "./vendor/htm-preact.js";
import { setTokenHandler } from "./api.js";
import { pageOf } from "./core/route.js";
import { isInFlower, keepTenant, keepToken, switchTheme, tenant, theme, token, urls } from "./settings.js";
import { BatchPage, BatchesPage } from "./ui/batches.js";
import { HomePage } from "./ui/home.js";
import { InboxPage } from "./ui/inbox.js";
import { ListPage } from "./ui/list.js";
import { RunPage } from "./ui/run.js";
import { SchedulePage, SchedulesPage } from "./ui/schedules.js";
import { SignIn } from "./ui/signin.js";
import { TenantSwitch } from "./ui/tenant_switch.js";
import { WorkersPage } from "./ui/workers.js";

function App() {
  const [address, go] = useAddress();
  const [wanted, setWanted] = useState(null);
  useEffect(() => setTokenHandler((hadOne) => setWanted({ hadOne })), []);
  const [chosen, setChosen] = useState(tenant());
  const choose = (name) => {
    keepTenant(name);
    setChosen(name);
  };
  const signOut = () => {
    keepToken("");
    setChosen(null);
    setWanted({ hadOne: false });
  };
  const signedIn = () => setWanted(null);
  return html`<a class="skip" href="#main">Skip to the content</a>
    <${TopBar} shown=${pageOf(urls.base, address.path).page} onSignOut=${token() && !wanted ? signOut : null}
      tenantSwitch=${!isInFlower && !wanted && html`<${TenantSwitch} chosen=${chosen} onChoose=${choose} />`} />
    ${wanted ? html`<${SignIn} wasRefused=${wanted.hadOne} onDone=${signedIn} />` : html`<${Page} key=${chosen ?? "of all tenants"} address=${address} go=${go} />`}`;
}

function Page({ address, go }) {
  const found = pageOf(urls.base, address.path);
  if (found.page === "list") return html`<${ListPage} search=${address.search} go=${go} />`;
  if (found.page === "home") return html`<${HomePage} />`;
  if (found.page === "workers") return html`<${WorkersPage} />`;
  if (found.page === "inbox") return html`<${InboxPage} />`;
  if (found.page === "run") return html`<${RunPage} key=${found.runId} runId=${found.runId} search=${address.search} go=${go} />`;
  if (found.page === "batches") return html`<${BatchesPage} />`;
  if (found.page === "batch") return html`<${BatchPage} key=${found.name} name=${found.name} search=${address.search} />`;
  if (found.page === "schedules") return html`<${SchedulesPage} />`;
  if (found.page === "schedule") return html`<${SchedulePage} key=${found.name} name=${found.name} search=${address.search} go=${go} />`;
  return html`<main id="main" class="list-page" tabindex="-1"><h1>There is no such page</h1><p><a href=${`${urls.base}/`}>All runs</a></p></main>`;
}

const NAVIGATION = [
  ["/home", "Home", "home"], ["/", "Runs", "list", "run"], ["/inbox", "Inbox", "inbox"], ["/schedules", "Schedules", "schedules", "schedule"],
  ...(isInFlower ? [] : [["/batches", "Batches", "batches", "batch"], ["/workers", "Workers", "workers"]]),
];
const FLOWER = isInFlower ? { Workers: "workers", Tasks: "tasks", Broker: "broker" } : urls.flower ? { "Tasks in Flower": "tasks" } : {};

function TopBar({ shown, onSignOut, tenantSwitch }) {
  const [now, setTheme] = useState(theme());
  const other = now === "dark" ? "light" : "dark";
  return html`<header class="top">
    <a class="brand" href=${`${urls.base}/home`}><img src=${`${urls.base}/static/icon.svg`} width="22" height="22" alt="" />Cantata</a>
    <nav aria-label="Pages">${NAVIGATION.map(([path, label, ...pages]) => html`<a key=${path} href=${urls.base + path}
        aria-current=${pages.includes(shown) ? "page" : undefined}>${label}</a>`)}
      ${isInFlower && html`<span class="muted" aria-hidden="true">Flower:</span>`}
      ${Object.entries(FLOWER).map(([label, page]) => html`<a key=${page} href=${`${urls.flower}/${page}`} data-outside>${label}</a>`)}</nav>
    ${tenantSwitch}
    ${onSignOut && html`<button type="button" class="quiet" onClick=${onSignOut}>Sign out</button>`}
    <button type="button" class="quiet only-icon" onClick=${() => setTheme(switchTheme())} aria-label="Show the ${other} theme" title="Show the ${other} theme">
      <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true"><circle cx="8" cy="8" r="5.5" /><path class="filled" d="M8 2.5a5.5 5.5 0 0 1 0 11z" /></svg>
    </button>
  </header>`;
}

/** Return the URL, and a function that navigates to another of our pages without loading the document again. */
function useAddress() {
  const here = () => ({ path: location.pathname, search: location.search });
  const [address, setAddress] = useState(here);
  const go = useCallback((to, { replace = false } = {}) => {
    const isOtherPage = new URL(to, location.href).pathname !== location.pathname;
    history[replace ? "replaceState" : "pushState"](null, "", to);
    setAddress(here());
    if (isOtherPage) scrollTo(0, 0);
  }, []);
  useEffect(() => {
    const moved = () => setAddress(here());
    const clicked = (event) => {
      const link = event.target.closest?.("a[href]");
      if (!link || !isOurs(link) || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      go(link.getAttribute("href"));
    };
    addEventListener("popstate", moved);
    document.addEventListener("click", clicked);
    return () => {
      removeEventListener("popstate", moved);
      document.removeEventListener("click", clicked);
    };
  }, []);
  return [address, go];
}

function isOurs(link) {
  return link.origin === location.origin && !link.hash && pageOf(urls.base, link.pathname).page !== "none" && !("outside" in link.dataset);
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
