// One model: what it does, how it is configured, and what can be done with it.

import { html, useEffect, useMemo, useState } from "./lib.js";
import { getJson, modelPath, postJson } from "./api.js";
import { forgetConfigs } from "./configs.js";
import { Bars, Lanes, Legend, TimeChart } from "./charts.js";
import { ago, duration, number } from "./format.js";
import { KEPT, store, useStore } from "./store.js";
import { Empty, Note, State, TokenNeeded, useFetched, useToken } from "./parts.js";
import { ConfigPage } from "./config.js";
import { TryIt } from "./tryit.js";

const TABS = [
  ["", "Activity"],
  ["try", "Try it"],
  ["config", "Configuration"],
];

/** @param {{name: string, tab: string, query: URLSearchParams}} props */
export function ModelPage({ name, tab, query }) {
  const { loaded, connected } = useStore();
  const versions = store.versions(name);
  const wanted = query.get("version");
  const model = versions.find((each) => each.version === wanted) ?? versions.filter((each) => each.ready).at(-1) ?? versions.at(-1);
  if (!model) {
    if (!loaded) return html`<div class="skeleton" aria-hidden="true"><span></span><span></span><span></span></div>`;
    return html`<${Empty} title=${`There is no model “${name}”.`}><a href="#/">Back to all models</a><//>`;
  }
  const link = (path, version = model.version) => `#/models/${encodeURIComponent(name)}${path && `/${path}`}${versions.length > 1 ? `?version=${version}` : ""}`;
  return html`
    <div>
      <p class="crumbs"><a href="#/">Models</a> /</p>
      <div class="title">
        <div>
          <h1>${name}</h1>
          <div class="facts"><${State} model=${model} /><${Facts} model=${model} /></div>
        </div>
        ${versions.length > 1 && html`<label class="line"><span class="dim">Version</span><select value=${model.version} onChange=${(event) => (location.hash = link(tab, event.target.value))}>
          ${versions.map((each) => html`<option value=${each.version}>${each.version}${each.ready ? "" : ` (${each.state.toLowerCase()})`}</option>`)}
        </select></label>`}
        <${Actions} model=${model} alone=${!tab} />
      </div>
    </div>
    ${model.failed && html`<${Note} kind="bad" title="This version is not in service."><pre class="mono">${model.row.reason}</pre><//>`}
    <nav class="tabs" aria-label="Of this model">
      ${TABS.map(([path, label]) => html`<a href=${link(path)} aria-current=${tab === path ? "page" : null}>${label}</a>`)}
    </nav>
    ${tab === "config" ? html`<${ConfigPage} key=${model.key} model=${model} />`
      : tab === "try"
        ? html`<${TryIt} key=${model.key} model=${model} connected=${connected} />`
        : html`<${Activity} key=${model.key} model=${model} />`}`;
}

function Facts({ model }) {
  const { value } = useFetched(() => (model.ready ? getJson(`${modelPath(model.name, model.version)}`) : Promise.resolve(null)), [model.key, model.ready]);
  return html`
    ${value?.platform && html`<span>${value.platform}</span>`}
    ${model.row.last > 0 && html`<span>last request ${ago(model.row.last)}</span>`}`;
}

/** Loading and unloading. `alone`: nothing else on the page asks for the token. */
function Actions({ model, alone }) {
  const { hello } = useStore();
  const works = useToken();
  const [busy, setBusy] = useState("");
  const [failure, setFailure] = useState("");
  const control = hello.control;
  // A server whose mode is unknown says itself whether it takes the request.
  const can = control === "explicit" || control === "";
  const why = can ? "" : `Needs a server that was started with --model-control-mode=explicit; this one has mode ${control}.`;
  const act = async (verb, body = {}) => {
    setBusy(verb);
    setFailure("");
    try {
      await postJson(`/v2/repository/models/${encodeURIComponent(model.name)}/${verb}`, body);
      forgetConfigs(model.name);
    } catch (error) {
      setFailure(String(error.message ?? error));
    }
    setBusy("");
  };
  const off = !can || works === false || !!busy;
  const title = why || (works === false ? "Needs the token that the server prints when it starts." : null);
  return html`<div class="buttons">
    ${model.ready
      ? html`<button type="button" disabled=${off} title=${title} onClick=${() => act("load")}>${busy === "load" ? "Reloading …" : "Reload"}</button>
          <button type="button" class="danger" disabled=${off} title=${title} onClick=${() => act("unload")}>${busy === "unload" ? "Unloading …" : "Unload"}</button>`
      : html`<button type="button" class="main" disabled=${off} title=${title} onClick=${() => act("load")}>${busy === "load" ? "Loading …" : "Load"}</button>`}
    ${failure && html`<${Note} kind="bad">${failure}<//>`}
  </div>
  ${works === false && alone && html`<div class="wide"><${TokenNeeded} what="Loading and unloading" /></div>`}`;
}

const PHASES = [
  ["queue", "queue"],
  ["input", "compute input"],
  ["infer", "compute"],
  ["output", "compute output"],
];

/** @param {{model: import("./store.js").Model}} props */
function Activity({ model }) {
  const { tick } = useStore();
  const { row, phases } = model;
  const times = store.timesOf(KEPT);
  const known = times.findIndex((time) => !Number.isNaN(time));
  const data = useMemo(() => {
    const from = known < 0 ? KEPT : known;
    const of = (name) => model.values(name, tick, KEPT).slice(from);
    const x = times.slice(from);
    // The topmost of a stack is drawn first, and is the sum of all below.
    const parts = PHASES.map(([name]) => of(name));
    const stacked = parts.map((_, i) => parts[0].map((first, at) => {
      let sum = 0;
      for (let j = 0; j <= i; j += 1) sum += Number.isFinite(parts[j][at]) ? parts[j][at] : NaN;
      return Number.isFinite(sum) ? sum : null;
    }));
    const holes = (values) => values.map((value) => (Number.isFinite(value) ? value : null));
    return {
      rate: [x, holes(of("rate")), holes(of("failures"))],
      latency: [x, ...stacked.reverse()],
      quantiles: [x, holes(of("p50")), holes(of("p99"))],
      busy: of("busy"),
    };
  }, [tick, model.key]);
  const latencySeries = [...PHASES].reverse().map(([name, label]) => ({ label, colour: name, fill: true }));
  return html`
    <dl class="stats panel-like">
      <div><dt>Requests</dt><dd>${number(model.rate)} <span class="unit">/s</span></dd></div>
      <div><dt>Mean latency</dt><dd>${duration(model.latency)}</dd></div>
      <div><dt>p50</dt><dd>${row.p50 === undefined ? "–" : duration(row.p50 / 1000)}</dd></div>
      <div><dt>p99</dt><dd>${row.p99 === undefined ? "–" : duration(row.p99 / 1000)}</dd></div>
      <div><dt>Batch</dt><dd>${number(model.batch)}</dd></div>
      <div><dt>Waiting</dt><dd>${number(row.pending)}</dd></div>
      <div><dt>Requests in all</dt><dd>${number(row.success)}</dd></div>
      <div><dt>Failed in all</dt><dd class=${row.fail ? "bad-text" : ""}>${number(row.fail)}</dd></div>
      ${(row.hits > 0 || row.misses > 0) && html`<div><dt>From the cache</dt><dd>${Math.round((row.hits / (row.hits + row.misses)) * 100)} %</dd></div>`}
    </dl>
    <${Lacks} row=${row} />
    <div class="columns">
      <section class="panel wide" aria-labelledby="latency">
        <header><h2 id="latency">Where the time goes</h2>
          <${Legend} items=${PHASES.map(([name, label]) => ({ colour: name, label, value: duration(phases[name]) }))} />
        </header>
        <div class="body"><${TimeChart} data=${data.latency} series=${latencySeries} height=${210} format=${axisDuration} label=${`Mean time per request: ${duration(model.latency)} now`} />
        ${!model.active && !model.series.rate && html`<p class="dim">No requests since this page was opened. <a href=${`#/models/${encodeURIComponent(model.name)}/try?version=${model.version}`}>Send one</a>.</p>`}</div>
      </section>
      <section class="panel" aria-labelledby="rate">
        <header><h2 id="rate">Requests per second</h2>
          <${Legend} items=${[{ colour: "rate", label: "answered", value: number(model.rate) }, { colour: "failures", label: "failed", value: number(model.failures) }]} />
        </header>
        <div class="body"><${TimeChart} data=${data.rate} series=${[{ label: "answered", colour: "accent" }, { label: "failed", colour: "bad" }]} height=${150} format=${number} label=${`${number(model.rate)} requests per second now`} /></div>
      </section>
      ${row.p99 !== undefined && html`<section class="panel" aria-labelledby="quantiles">
        <header><h2 id="quantiles">Latency</h2>
          <${Legend} items=${[{ colour: "infer", label: "p50", value: duration(row.p50 / 1000) }, { colour: "p99", label: "p99", value: duration(row.p99 / 1000) }]} />
        </header>
        <div class="body"><${TimeChart} data=${data.quantiles} series=${[{ label: "p50", colour: "infer" }, { label: "p99", colour: "plain" }]} height=${150} format=${axisDuration} label=${`Half of the requests of the last minute took less than ${duration(row.p50 / 1000)}`} /></div>
      </section>`}
      <${Batches} model=${model} />
      ${row.instances > 0 && html`<section class="panel" aria-labelledby="instances">
        <header><h2 id="instances">Instances</h2><span class="dim">${number(row.busy)} of ${number(row.instances)} busy now</span></header>
        <div class="body"><${Lanes} values=${data.busy} lanes=${row.instances} /><p class="dim">Each lane is an instance, sorted by use; darker is busier. Five minutes, the newest at the right.</p></div>
      </section>`}
    </div>`;
}

/** What is missing on this page because the server does not tell it. */
function Lacks({ row }) {
  const quantiles = row.success > 0 && row.p99 === undefined;
  const instances = row.instances === undefined;
  return (quantiles || instances) && html`<p class="dim">
    ${quantiles && html`p50 and p99 are not known: the server needs <code>--metrics-config=summary_latencies=true</code> for them. `}
    ${instances && "This server does not tell how busy its instances are."}
  </p>`;
}

function axisDuration(ms) {
  return ms === 0 ? "0" : duration(ms);
}

/** How large the executed batches were, and how long each size took. */
function Batches({ model }) {
  const { tick } = useStore();
  const [batches, setBatches] = useState(/** @type {any[] | null} */ (null));
  useEffect(() => {
    if (tick % 2 || !model.row.executions) return;
    getJson(`${modelPath(model.name, model.version)}/stats`)
      .then((found) => setBatches(found.model_stats[0]?.batch_stats ?? []))
      .catch(() => setBatches(null));
  }, [tick, model.key]);
  if (!batches?.length) return null;
  const rows = batches
    .map((each) => ({ size: Number(each.batch_size), count: Number(each.compute_infer.count), ns: Number(each.compute_infer.ns) }))
    .sort((a, b) => a.size - b.size)
    .map(({ size, count, ns }) => ({ label: String(size), value: count, text: `${number(count)} × ${duration(ns / count / 1e6)}` }));
  return html`<section class="panel" aria-labelledby="batches">
    <header><h2 id="batches">Batch sizes</h2><span class="dim">executions × mean compute time</span></header>
    <div class="body"><${Bars} rows=${rows} /></div>
  </section>`;
}

