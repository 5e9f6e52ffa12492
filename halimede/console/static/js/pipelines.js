// Ensembles, and models that call models, as graphs: which tensor goes where, how often and how long.

import { html, useMemo } from "./lib.js";
import { useConfigs } from "./configs.js";
import { count, duration, number } from "./format.js";
import { store, useStore } from "./store.js";
import { State, Empty, Note } from "./parts.js";

const BOX = { width: 160, height: 62, gapX: 104, gapY: 22 };
/** A graph is scaled down to this width; beyond it scrolls. */
const MIN_WIDTH = 760;
/** How far below the boxes an edge runs that passes a column. */
const DETOUR = 20;

export function Pipelines() {
  const { models, loaded, traces, tracing } = useStore();
  const names = useMemo(() => [...new Set([...models.values()].filter((model) => model.ready).map((model) => model.name))], [models.size, [...models.values()].filter((m) => m.ready).length]);
  const { configs, done } = useConfigs(names);
  const ensembles = names.filter((name) => configs.get(name)?.ensemble_scheduling);
  const callers = useMemo(() => callsOf(traces, new Set(ensembles)), [traces, ensembles.join()]);
  return html`
    <h1>Pipelines</h1>
    ${!loaded || !done ? html`<div class="skeleton" aria-hidden="true"><span></span><span></span></div>` : null}
    ${done && loaded && !ensembles.length && !callers.size && html`<${Empty} title="No model here is made of others.">An ensemble chains models in its configuration; a Python model can call others (BLS). Both appear here as graphs.<//>`}
    ${ensembles.map((name) => html`<${Panel} key=${name} name=${name} kind="ensemble" graph=${ensembleGraph(name, configs.get(name))} />`)}
    ${[...callers].map(([name, calls]) => html`<${Panel} key=${`calls ${name}`} name=${name} kind="calls models" graph=${callGraph(name, calls)} />`)}
    ${store.has("traces")
      ? !tracing && html`<${Note}>Calls of Python models are known from traces, if the model passes <code>trace=request.trace()</code> on. <a href="#/traces">Record requests</a> to see which models call which.<//>`
      : html`<${Note}>This server does not show its traces, so calls of Python models are not known.<//>`}`;
}

/** Which models call which, and how often in the traces that are kept. */
function callsOf(traces, ensembles) {
  /** @type {Map<string, Map<string, {calls: number, us: number, traces: number}>>} */
  const found = new Map();
  for (const trace of traces) {
    const byId = new Map(trace.spans.map((span) => [span.id, span]));
    for (const span of trace.spans) {
      const parent = byId.get(span.parent);
      if (!parent || ensembles.has(parent.model)) continue;
      const calls = found.get(parent.model) ?? new Map();
      found.set(parent.model, calls);
      const call = calls.get(span.model) ?? { calls: 0, us: 0, traces: 0 };
      call.calls += 1;
      call.us += (span.end ?? 0) - (span.stamps.request ?? 0);
      calls.set(span.model, call);
    }
  }
  return found;
}

/** @typedef {{id: string, model: string, label: string, io?: boolean}} Node */
/** @typedef {{from: string, to: string, label: string, call?: boolean, us?: number}} Edge */

/** @returns {{nodes: Node[], edges: Edge[]}} */
function ensembleGraph(name, config) {
  const steps = config.ensemble_scheduling.step ?? [];
  const nodes = [{ id: "in", model: "", label: "request", io: true }, ...steps.map((step, i) => ({ id: String(i), model: step.model_name, label: step.model_name })), { id: "out", model: "", label: "response", io: true }];
  const source = Object.fromEntries((config.input ?? []).map((input) => [input.name, "in"]));
  steps.forEach((step, i) => Object.values(step.output_map ?? {}).forEach((tensor) => (source[tensor] = String(i))));
  const edges = [];
  const add = (tensor, to) => {
    const from = source[tensor];
    if (from === undefined) return;
    const same = edges.find((edge) => edge.from === from && edge.to === to);
    if (same) same.label += `, ${tensor}`;
    else edges.push({ from, to, label: tensor });
  };
  steps.forEach((step, i) => Object.values(step.input_map ?? {}).forEach((tensor) => add(tensor, String(i))));
  (config.output ?? []).forEach((output) => add(output.name, "out"));
  return { nodes, edges };
}

/** @returns {{nodes: Node[], edges: Edge[]}} */
function callGraph(name, calls) {
  const nodes = [{ id: name, model: name, label: name }, ...[...calls.keys()].filter((callee) => callee !== name).map((callee) => ({ id: callee, model: callee, label: callee }))];
  const edges = [...calls].map(([to, { calls: amount, us }]) => ({ from: name, to, label: count(amount, "call"), call: true, us: us / amount }));
  return { nodes, edges };
}

/** Places the nodes in columns, each behind all that it needs. */
function layout({ nodes, edges }) {
  const depth = Object.fromEntries(nodes.map((node) => [node.id, 0]));
  // As often as there are nodes is enough; a circle of calls would never end.
  for (let i = 0; i < nodes.length; i += 1) {
    for (const { from, to } of edges) if (from !== to && depth[to] < depth[from] + 1 && depth[from] + 1 < nodes.length) depth[to] = depth[from] + 1;
  }
  const columns = /** @type {any[][]} */ ([]);
  for (const node of nodes) (columns[depth[node.id]] ??= []).push(node);
  const tallest = Math.max(...columns.map((column) => column.length));
  const height = tallest * (BOX.height + BOX.gapY) + BOX.gapY;
  const places = /** @type {Record<string, {x: number, y: number}>} */ ({});
  columns.forEach((column, c) => column.forEach((node, r) => {
    const used = column.length * (BOX.height + BOX.gapY) - BOX.gapY;
    places[node.id] = { x: 8 + c * (BOX.width + BOX.gapX), y: (height - used) / 2 + r * (BOX.height + BOX.gapY) };
  }));
  const long = edges.some(({ from, to }) => depth[to] - depth[from] > 1);
  return { places, depth, low: height - BOX.gapY / 2, height: height + (long ? DETOUR + 14 : 0), width: columns.length * (BOX.width + BOX.gapX) - BOX.gapX + 16 };
}

function Panel({ name, kind, graph }) {
  useStore();
  const { places, depth, low, width, height } = useMemo(() => layout(graph), [name, graph.nodes.length, graph.edges.length]);
  const model = store.versions(name).filter((each) => each.ready).at(-1);
  const of = (node) => (node.model ? store.versions(node.model).filter((each) => each.ready).at(-1) : model);
  const live = (edge) => {
    // A step's model may serve others too; of this pipeline each edge carries what the pipeline gets.
    return edge.call ? (of(graph.nodes.find((node) => node.id === edge.to))?.rate ?? 0) : (model?.rate ?? 0);
  };
  return html`<section class="panel" aria-label=${`Pipeline ${name}`}>
    <header><h2><a href=${`#/models/${encodeURIComponent(name)}`}>${name}</a></h2><span class="tag">${kind}</span>
      ${model && html`<span class="dim">${number(model.rate)} requests/s, ${duration(model.latency)}</span><${State} model=${model} />`}</header>
    <div class="body graph" tabindex="0" role="region" aria-label=${`Graph of ${name}`}>
      <svg style=${{ width: `${width}px`, minWidth: `${Math.min(width, MIN_WIDTH)}px` }} viewBox=${`0 0 ${width} ${height}`} role="group" aria-label=${`${name}: ${graph.edges.map((edge) => `${labelOf(graph, edge.from)} to ${labelOf(graph, edge.to)}: ${edge.label}`).join("; ")}`}>
        ${graph.edges.map((edge) => html`<${Line} edge=${edge} from=${places[edge.from]} to=${places[edge.to]} rate=${live(edge)} low=${depth[edge.to] - depth[edge.from] > 1 ? low : 0}
          early=${graph.edges.filter((each) => each.to === edge.to).length > 1 && graph.edges.filter((each) => each.from === edge.from).length === 1} />`)}
        ${graph.nodes.map((node) => html`<${Box} node=${node} at=${places[node.id]} model=${node.io ? null : of(node)} />`)}
      </svg>
    </div>
  </section>`;
}

function labelOf(graph, id) {
  return graph.nodes.find((node) => node.id === id)?.label ?? id;
}

/** `low` is the height of a detour below the boxes between, 0 without one; `early`: the label lies at the beginning. */
function Line({ edge, from, to, rate, low, early }) {
  const x1 = from.x + BOX.width;
  const y1 = from.y + BOX.height / 2;
  const x2 = to.x - 7;
  const y2 = to.y + BOX.height / 2;
  const bend = Math.max(30, (x2 - x1) / 2);
  const kind = `${rate > 0 ? "live" : ""} ${edge.call ? "call" : ""}`;
  const detail = edge.us !== undefined ? `${duration(edge.us / 1000)} each` : rate > 0 ? `${number(rate)}/s` : "";
  const lane = low + DETOUR;
  const path = low
    ? `M${x1} ${y1}C${x1 + 46} ${y1} ${x1 + 20} ${lane} ${x1 + 76} ${lane}H${x2 - 76}C${x2 - 20} ${lane} ${x2 - 46} ${y2} ${x2} ${y2}`
    : `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
  // Where edges have parted, so that labels do not lie on each other.
  const [x, y] = low ? [(x1 + x2) / 2, lane] : early ? [x1 + 46, y1] : [x2 - 46, y2];
  return html`<g>
    <path class="edge ${kind}" d=${path} />
    <path class="tip ${kind}" d=${`M${x2 + 7} ${y2}l-9 -4.5v9z`} />
    <text class="small" x=${x} y=${y - 7} text-anchor="middle">${cut(edge.label, 13)}<title>${edge.label}</title></text>
    ${detail && html`<text class="small" x=${x} y=${y + 15} text-anchor="middle">${detail}</text>`}
  </g>`;
}

function Box({ node, at, model }) {
  const bad = !node.io && (!model || model.failures > 0);
  const facts = !model ? (node.io ? "" : "not in service") : model.active ? `${number(model.rate)}/s · ${duration(model.latency)}` : "no requests";
  const waits = model?.active && Number.isFinite(model.phases.queue) ? `${duration(model.phases.queue)} queued` : "";
  const box = html`<g transform=${`translate(${at.x} ${at.y})`}>
    <rect class="box ${node.io ? "io" : ""} ${bad ? "bad" : ""}" width=${BOX.width} height=${BOX.height} rx="8" />
    <text class="name" x=${node.io ? BOX.width / 2 : 14} y=${node.io ? 36 : 22} text-anchor=${node.io ? "middle" : "start"}>${cut(node.label, 20)}</text>
    ${!node.io && html`<text class="small" x="14" y="39">${facts}</text><text class="small" x="14" y="54">${waits}</text>`}
  </g>`;
  return node.io ? box : html`<a href=${`#/models/${encodeURIComponent(node.model)}`}>${box}</a>`;
}

function cut(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
