// The last slow and failed requests, each as a waterfall of its steps and calls.

import { html, useState } from "./lib.js";
import { call } from "./api.js";
import { Legend } from "./charts.js";
import { clock, count, duration } from "./format.js";
import { store, useStore } from "./store.js";
import { Empty, Note, TokenNeeded, useToken } from "./parts.js";

const SHOWN = 150;
const PHASES = [
  ["request", "queue", "request", "before the queue"],
  ["queue", "input", "queue", "queue"],
  ["input", "infer", "input", "compute input"],
  ["infer", "output", "infer", "compute"],
  ["output", "done", "output", "compute output"],
];
const FILTERS = [
  ["all", "All", () => true],
  ["failed", "Failed", (trace) => trace.error !== ""],
  ["calls", "With steps", (trace) => trace.calls > 0],
];

export function Traces() {
  const { traces, tracing } = useStore();
  const works = useToken();
  const [chosen, setChosen] = useState(/** @type {number | null} */ (null));
  const [filter, setFilter] = useState("all");
  const [order, setOrder] = useState("new");
  const [error, setError] = useState("");
  if (!store.has("traces")) {
    return html`<h1>Traces</h1><${Empty} title="This server does not show its traces.">A server of Triton writes them to a file or to a collector of OpenTelemetry. <a href="#/settings">Its trace settings</a> can be changed here.<//>`;
  }
  const turn = async () => {
    try {
      await call("/tracing", { method: "POST", body: JSON.stringify({ on: !tracing }) });
      setError("");
    } catch (problem) {
      setError(String(problem.message ?? problem));
    }
  };
  const passes = /** @type {(trace: any) => boolean} */ ((FILTERS.find(([id]) => id === filter) ?? FILTERS[0])[2]);
  const shown = traces.filter(passes).sort((a, b) => (order === "slow" ? b.us - a.us : b.number - a.number)).slice(0, SHOWN);
  const trace = shown.find((each) => each.number === chosen) ?? shown[0];
  return html`
    <div class="title"><div><h1>Traces</h1><div class="facts">${tracing ? "Up to 100 requests per second are recorded; of each second the failed and the slowest are kept." : "Nothing is recorded now."}</div></div>
      <button type="button" class=${tracing ? "" : "main"} disabled=${works === false} onClick=${turn}>${tracing ? "Stop recording" : "Record requests"}</button></div>
    <${TokenNeeded} what="Recording" />
    ${error && html`<${Note} kind="bad">${error}<//>`}
    ${traces.length === 0
      ? html`<${Empty} title=${tracing ? "No request has come yet." : "No traces."}>${tracing ? "Each request that is recorded appears here a second later." : "Record requests to see where single ones spend their time, across the steps of ensembles and the calls of models."}<//>`
      : html`<div class="toolbar">
          <div class="segments" role="group" aria-label="Which traces">${FILTERS.map(([id, label]) => html`<button type="button" aria-pressed=${filter === id ? "true" : "false"} onClick=${() => setFilter(/** @type {string} */ (id))}>${label}</button>`)}</div>
          <div class="segments" role="group" aria-label="Order"><button type="button" aria-pressed=${order === "new" ? "true" : "false"} onClick=${() => setOrder("new")}>Newest</button><button type="button" aria-pressed=${order === "slow" ? "true" : "false"} onClick=${() => setOrder("slow")}>Slowest</button></div>
          <span class="dim">${count(shown.length, "trace")}</span>
        </div>
        ${shown.length === 0 ? html`<${Empty} title="No trace of this kind." />` : html`<div class="split">
          <div class="panel picks" role="group" aria-label="Traces" onKeyDown=${(event) => step(event, shown, trace, setChosen)}>
            ${shown.map((each) => html`<button type="button" key=${each.number} aria-pressed=${each === trace ? "true" : "false"} onClick=${() => setChosen(each.number)}>
              <span class="name">${each.model}</span><span class="num">${duration(each.us / 1000)}</span>
              <span class="small ${each.error ? "bad-text" : ""}">${each.error || `${each.protocol}${each.calls ? `, ${count(each.calls, "step")}` : ""}${each.request ? `, ${each.request}` : ""}`}</span><span class="small">${clock(each.start)}</span>
            </button>`)}
          </div>
          ${trace && html`<${Waterfall} trace=${trace} />`}
        </div>`}`}`;
}

/** Arrow keys go through the list. */
function step(event, shown, trace, choose) {
  const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
  if (!by) return;
  event.preventDefault();
  const next = shown[shown.indexOf(trace) + by];
  if (!next) return;
  choose(next.number);
  const buttons = event.currentTarget.querySelectorAll("button");
  buttons[shown.indexOf(next)]?.focus();
}

function Waterfall({ trace }) {
  const spans = ordered(trace.spans);
  return html`<section class="panel" aria-label="The chosen trace">
    <header><h2><a href=${`#/models/${encodeURIComponent(trace.model)}?version=${trace.version}`}>${trace.model}</a><span class="version">v${trace.version}</span></h2>
      <span class="dim">${clock(trace.start, true)}, ${trace.protocol}${trace.request && `, id ${trace.request}`}</span><strong>${duration(trace.us / 1000)}</strong></header>
    <div class="body">
      ${trace.error && html`<${Note} kind="bad" title="It failed."><pre class="mono">${trace.error}</pre><//>`}
      <div class="fall">${spans.map(({ span, depth }) => html`<${Span} span=${span} depth=${depth} whole=${trace.us} />`)}</div>
      <${Legend} items=${PHASES.slice(0, 5).map(([, , colour, label]) => ({ colour, label, value: "" }))} />
    </div>
  </section>`;
}

/** Each span behind its parent, with how deep it lies. */
function ordered(spans) {
  const found = [];
  const walk = (parent, depth) => {
    for (const span of spans.filter((each) => each.parent === parent && each.id !== parent)) {
      found.push({ span, depth });
      walk(span.id, depth + 1);
    }
  };
  walk(0, 0);
  return found;
}

function Span({ span, depth, whole }) {
  const total = Math.max(whole, 1);
  const { stamps } = span;
  const start = stamps.request ?? stamps.queue ?? 0;
  const end = span.end ?? stamps.done ?? start;
  const parts = PHASES.flatMap(([from, to, colour, label]) => {
    const begin = stamps[from];
    const over = stamps[to] ?? (from === "infer" ? stamps.done : undefined);
    return begin === undefined || over === undefined || over < begin ? [] : [{ begin, size: over - begin, colour, label }];
  });
  // An ensemble does not compute; its steps do, and they have lines of their own.
  const drawn = span.computes && parts.length ? parts : [{ begin: start, size: end - start, colour: "request", label: "whole" }];
  const text = drawn.map(({ label, size }) => `${label} ${duration(size / 1000)}`).join(", ");
  return html`<span class="label" style=${{ paddingLeft: `${depth * 14}px` }} title=${span.model}>${span.model}</span>
    <svg class="track" viewBox="0 0 1000 16" preserveAspectRatio="none" role="img" aria-label=${`${span.model}: ${text}`}><title>${text}</title>
      <rect class="rest" width="1000" height="16" rx="3" />
      ${drawn.map(({ begin, size, colour }) => html`<rect class=${`f-${colour}`} x=${(begin / total) * 1000} width=${Math.max(2, (size / total) * 1000)} height="16" />`)}
    </svg>
    <span class="num">${duration((end - start) / 1000)}</span>`;
}
