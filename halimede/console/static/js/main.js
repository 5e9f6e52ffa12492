// The frame of the page: where one is, what is connected, and the page of the address.

import { html, render, useEffect, useState } from "./lib.js";
import { follow, getJson, takeToken } from "./api.js";
import { forgetConfigs } from "./configs.js";
import { store, useStore } from "./store.js";
import { Icon, Note, TokenNeeded } from "./parts.js";
import { Overview } from "./overview.js";
import { ModelPage } from "./model.js";
import { Pipelines } from "./pipelines.js";
import { Traces } from "./traces.js";
import { Logs } from "./logs.js";
import { Settings } from "./settings.js";

/** The part of the address, the name, the page, and the feature that it needs of the server. */
const PAGES = /** @type {[string, string, any, string?][]} */ ([
  ["", "Models", Overview],
  ["pipelines", "Pipelines", Pipelines],
  ["traces", "Traces", Traces, "traces"],
  ["logs", "Log", Logs, "logs"],
  ["settings", "Settings", Settings],
]);

const LACKS = { class: "lacks", title: "This server does not show it" };

/** The parts of the address after `#`, and its query. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

function usePlace() {
  const [at, setAt] = useState(place);
  useEffect(() => {
    const listener = () => {
      setAt(place());
      scrollTo(0, 0);
      document.getElementById("content")?.focus({ preventScroll: true });
    };
    addEventListener("hashchange", listener);
    return () => removeEventListener("hashchange", listener);
  }, []);
  return at;
}

function ThemeButton() {
  const dark = () => document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const [theme, setTheme] = useState(dark);
  const turn = () => {
    const next = theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("theme", next);
    setTheme(next);
    store.changed();
  };
  return html`<button type="button" class="quiet small" onClick=${turn}>${theme === "dark" ? "Light" : "Dark"} colours</button>`;
}

function Connection() {
  const { connected, down, state, server } = useStore();
  const kind = connected ? "ok" : state === "connecting" ? "warn" : "bad";
  const text = connected ? "live" : state === "connecting" ? "connecting" : down ? "server away" : "disconnected";
  return html`<div class="connection">
    <span class="state ${kind}" role="status"><${Icon} name=${kind} /><span>${text}</span></span>
    ${server && html`<span class="dim">${server.name} ${server.version}</span>`}
  </div>`;
}

function Banner() {
  const { connected, state, down, status, loaded, hello } = useStore();
  if (connected || state === "connecting") return null;
  if (status === 403 && !hello.readsFreely) return html`<${Note} kind="warn">${state}<//><${TokenNeeded} what="This console" />`;
  return html`<${Note} kind="bad" title=${down ? "The server does not answer." : "The console does not answer."}>
    ${down || state}. ${loaded ? "The page shows what it was last told, and goes on by itself when the server is back." : "The page tries again every few seconds."}
  <//>`;
}

function Frame() {
  const { parts, query } = usePlace();
  const { models, loaded } = useStore();
  const [first = "", name = "", tab = ""] = parts;
  const found = PAGES.find(([path]) => path === first);
  const Page = first === "models" ? ModelPage : found ? found[2] : Overview;
  const title = first === "models" ? name : found ? found[1] : "Models";
  useEffect(() => {
    document.title = `${title} · Halimede`;
  }, [title]);
  const troubles = store.troubles().filter((trouble) => trouble.level === "bad").length;
  return html`
    <a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.getElementById("content")?.focus(); }}>Skip to the content</a>
    <header class="rail">
      <a class="brand" href="#/"><img src="/icon.svg" alt="" width="24" height="24" />Halimede</a>
      <nav aria-label="Pages">
        ${PAGES.map(([path, label, , feature]) => html`<a href=${`#/${path}`} ...${loaded && feature && !store.has(feature) ? LACKS : {}} aria-current=${(first === path || (first === "models" && !path)) ? "page" : null}>
          ${label}${!path && troubles > 0 && html`<span class="badge" title="Things that need attention">${troubles}<span class="visually-hidden"> need attention</span></span>`}
        </a>`)}
      </nav>
      <div class="foot"><${Connection} /><${ThemeButton} /></div>
    </header>
    <main id="content" tabindex="-1">
      <${Banner} />
      <${Page} key=${first === "models" ? name : first} name=${name} tab=${tab} query=${query} count=${models.size} />
    </main>`;
}

takeToken();
const app = /** @type {HTMLElement} */ (document.getElementById("app"));
app.replaceChildren();
render(html`<${Frame} />`, app);

let known = "";
follow(
  (event) => {
    store.take(event);
    // After a restart another server may answer.
    if (event.hello) forgetConfigs();
    if (event.hello || (!store.server && !event.down)) known = "";
    if (!event.hello && !event.down && !known) {
      known = "asked";
      getJson("/v2").then((server) => {
        store.server = server;
        store.changed();
      }, () => (known = ""));
    }
  },
  (state, status) => store.setState(state, status),
);
