// All models at a glance: what is wrong, the totals, and a list that stays quick with thousands of models.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./lib.js";
import { bytes, count, duration, number, percent } from "./format.js";
import { store, useStore } from "./store.js";
import { FirstSteps } from "./first.js";
import { Empty, Icon, Meter, Spark, State } from "./parts.js";

const SPARK = 60;
const ROW = 44;
const TALL_ROW = 92;
const NARROW = "(max-width: 760px)";
const MARGIN_ROWS = 6;
const SHOWN_TROUBLES = 6;

const COLUMNS = [
  { id: "name", label: "Model", sort: (m) => m.name, text: true },
  { id: "state", label: "State", sort: (m) => m.state, text: true },
  { id: "rate", label: "Requests/s", sort: (m) => m.rate },
  { id: "p50", label: "p50", sort: (m) => m.row.p50 ?? 0, hint: "Half of the requests of the last minute took less" },
  { id: "p99", label: "p99", sort: (m) => m.row.p99 ?? 0, hint: "99 of 100 requests of the last minute took less" },
  { id: "queue", label: "Queued", sort: (m) => m.phases.queue || 0, hint: "Mean time in the queue in the last second, and how many requests wait now" },
  { id: "batch", label: "Batch", sort: (m) => m.batch || 0, hint: "Mean size of the executed batches" },
  { id: "use", label: "Instances", sort: (m) => m.use || 0, hint: "Share of the time in which the instances were busy" },
  { id: "failed", label: "Failed", sort: (m) => m.row.fail ?? 0, hint: "Failed requests since the server started" },
];

export function Overview() {
  const { loaded, models, connected } = useStore();
  return html`
    <h1 class="visually-hidden">Models</h1>
    <${Totals} />
    ${loaded && models.size > 0 && html`<${Troubles} /><${FirstSteps} />`}
    ${!loaded ? html`<${Skeleton} connected=${connected} />`
      : models.size === 0
        ? html`<${Empty} title="The server has no models.">Put a model into its repository; <code>halimede init FILE REPO</code> makes one of a file.<//>`
        : html`<${List} />`}`;
}

function Skeleton() {
  return html`<div class="skeleton" aria-hidden="true">${Array.from({ length: 8 }, () => html`<span></span>`)}</div>`;
}

/** @param {{label: string, value: string, unit?: string, values?: number[], kind?: string, high?: number, note?: string}} props */
function Tile({ label, value, unit = "", values, kind = "", high = 0, note = "" }) {
  return html`<div class="tile ${kind}">
    <dt>${label}</dt>
    <dd><span class="big">${value}</span>${unit && html` <span class="unit">${unit}</span>`}${note && html`<span class="note-text">${note}</span>`}</dd>
    ${values && html`<${Spark} values=${values} high=${high} />`}
  </div>`;
}

function Totals() {
  const { totals, tick, machine, models, gpuUse, loaded } = useStore();
  const last = (series) => series.last(tick, SPARK);
  const now = (series) => (tick < 0 ? NaN : series.last(tick, 1)[0]);
  const failing = now(totals.failures) > 0;
  let ready = 0;
  let failed = 0;
  for (const model of models.values()) {
    if (model.ready) ready += 1;
    else if (model.failed) failed += 1;
  }
  return html`<dl class="tiles" aria-label="Totals">
    <${Tile} label="In service" value=${loaded ? number(ready) : "–"} note=${failed ? `${failed} failed` : loaded ? `of ${models.size}` : ""} kind=${failed ? "bad part" : ""} />
    <${Tile} label="Requests" value=${number(now(totals.rate))} unit="/s" values=${last(totals.rate)} />
    <${Tile} label="Failures" value=${number(now(totals.failures))} unit="/s" values=${last(totals.failures)} kind=${failing ? "bad" : ""} />
    <${Tile} label="Waiting" value=${number(now(totals.waiting))} values=${last(totals.waiting)} kind="queue" />
    ${machine.cpu !== undefined && html`<${Tile} label="CPU" value=${percent(machine.cpu)} values=${last(totals.cpu)} high=${1} kind="plain" />`}
    ${machine.memoryTotal && html`<${Tile} label="Memory" value=${percent(machine.memoryUsed / machine.memoryTotal)} note=${bytes(machine.memoryUsed)} values=${last(totals.memory)} high=${1} kind="plain" />`}
    ${machine.gpus.map((gpu, i) => html`<${Tile} label=${`GPU ${i}`} value=${percent(gpu.use)} note=${gpu.memoryUsed ? bytes(gpu.memoryUsed) : ""} values=${last(gpuUse[gpu.id])} high=${1} kind="plain" />`)}
  </dl>`;
}

function Troubles() {
  useStore();
  const [all, setAll] = useState(false);
  const troubles = store.troubles();
  if (!troubles.length) return html`<p class="calm"><${Icon} name="ok" />Nothing needs attention.</p>`;
  const shown = all ? troubles : troubles.slice(0, SHOWN_TROUBLES);
  return html`<section class="troubles" aria-labelledby="troubles">
    <h2 id="troubles">Needs attention</h2>
    <ul>
      ${shown.map(({ level, model, text, detail }) => html`<li class=${level} key=${model.key + text}>
        <${Icon} name=${level} label=${level === "bad" ? "wrong" : "warning"} />
        <a href=${modelLink(model)}>${model.name}${model.version && html`<span class="version">v${model.version}</span>`}</a>
        <span class="what"><strong>${text}</strong>${detail && html`<span class="detail">${detail}</span>`}</span>
      </li>`)}
    </ul>
    ${troubles.length > SHOWN_TROUBLES && html`<button type="button" class="quiet small" onClick=${() => setAll(!all)}>${all ? "Show fewer" : `Show all ${troubles.length}`}</button>`}
  </section>`;
}

/** @param {import("./store.js").Model} model */
export function modelLink(model) {
  return `#/models/${encodeURIComponent(model.name)}${model.version ? `?version=${model.version}` : ""}`;
}

function useNarrow() {
  const [narrow, setNarrow] = useState(() => matchMedia(NARROW).matches);
  useEffect(() => {
    const query = matchMedia(NARROW);
    const listener = () => setNarrow(query.matches);
    query.addEventListener("change", listener);
    return () => query.removeEventListener("change", listener);
  }, []);
  return narrow;
}

/** Which rows of the list can be seen. */
function useWindow(ref, rows, height) {
  const [range, setRange] = useState([0, 40]);
  useLayoutEffect(() => {
    const look = () => {
      const top = ref.current?.getBoundingClientRect().top ?? 0;
      const first = Math.max(0, Math.floor(-top / height) - MARGIN_ROWS);
      const last = Math.min(rows, Math.ceil((innerHeight - top) / height) + MARGIN_ROWS);
      setRange((before) => (before[0] === first && before[1] === last ? before : [first, last]));
    };
    look();
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, [rows, height]);
  return range;
}

const FILTERS = [
  ["all", "All", () => true],
  ["active", "Active", (m) => m.active],
  ["wrong", "Failed", (m) => m.failed || m.row.fail > 0],
  ["idle", "Not loaded", (m) => m.unloaded],
];

function List() {
  const { models, tick } = useStore();
  const [sought, setSought] = useState("");
  const [filter, setFilter] = useState("all");
  const [order, setOrder] = useState({ id: "name", down: false });
  const narrow = useNarrow();
  const height = narrow ? TALL_ROW : ROW;
  const body = useRef(null);
  const search = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(() => {
    const listener = (event) => {
      const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        search.current?.focus();
      }
    };
    addEventListener("keydown", listener);
    return () => removeEventListener("keydown", listener);
  }, []);
  const rows = useMemo(() => {
    const words = sought.toLowerCase().split(/\s+/).filter(Boolean);
    const passes = /** @type {(m: any) => boolean} */ ((FILTERS.find(([id]) => id === filter) ?? FILTERS[0])[2]);
    const column = COLUMNS.find(({ id }) => id === order.id) ?? COLUMNS[0];
    const sign = order.down ? -1 : 1;
    return [...models.values()]
      .filter((m) => passes(m) && words.every((word) => m.name.toLowerCase().includes(word) || m.state.toLowerCase().includes(word)))
      .sort((a, b) => {
        const [x, y] = [column.sort(a), column.sort(b)];
        return (x < y ? -sign : x > y ? sign : 0) || a.name.localeCompare(b.name) || Number(a.version) - Number(b.version);
      });
  }, [sought, filter, order, tick, models.size]);
  const [first, last] = useWindow(body, rows.length, height);
  const names = new Set([...models.values()].map((m) => m.name)).size;
  return html`<section class="models" aria-labelledby="list">
    <div class="toolbar">
      <h2 id="list">${count(names, "model")}<span class="dim">${models.size > names ? `, ${models.size} versions` : ""}${rows.length < models.size ? ` · ${rows.length} shown` : ""}</span></h2>
      <div class="segments" role="group" aria-label="Which models">
        ${FILTERS.map(([id, label]) => html`<button type="button" aria-pressed=${filter === id ? "true" : "false"} onClick=${() => setFilter(/** @type {string} */ (id))}>${label}</button>`)}
      </div>
      <label class="search"><span class="visually-hidden">Search models</span>
        <input ref=${search} type="search" placeholder="Search, press /" value=${sought} onInput=${(event) => setSought(event.target.value)} />
      </label>
    </div>
    <div class="grid" role="table" aria-label="Models" aria-rowcount=${rows.length + 1}>
      <div class="head" role="row" aria-rowindex="1">
        ${COLUMNS.map((column) => html`<div role="columnheader" class=${column.text ? "" : "num"} aria-sort=${order.id === column.id ? (order.down ? "descending" : "ascending") : "none"}>
          <button type="button" title=${column.hint ?? null} onClick=${() => setOrder({ id: column.id, down: order.id === column.id ? !order.down : !column.text })}>${column.label}<span aria-hidden="true" class="arrow">${order.id === column.id ? (order.down ? "↓" : "↑") : ""}</span></button>
        </div>`)}
      </div>
      ${rows.length === 0
        ? html`<div role="row"><div role="cell"><${Empty} title="No model fits.">${sought ? `Nothing has “${sought}” in its name.` : "There are none of this kind now."}<//></div></div>`
        : html`<div role="rowgroup" ref=${body} class="rows" style=${{ height: `${rows.length * height}px` }}>
          ${rows.slice(first, last).map((model, i) => html`<${Row} key=${model.key} model=${model} tick=${tick} index=${first + i} top=${(first + i) * height} />`)}
        </div>`}
    </div>
  </section>`;
}

/** @param {{model: import("./store.js").Model, tick: number, index: number, top: number}} props */
function Row({ model, tick, index, top }) {
  const { row, phases } = model;
  const mean = row.p50 === undefined;
  const open = (event) => {
    if (!event.target.closest("a")) location.hash = modelLink(model);
  };
  const waiting = row.pending ? html`<span class="dim waiting">${number(row.pending)} waiting</span>` : null;
  const idle = model.active ? "" : "idle";
  return html`<div role="row" class="row ${idle}" aria-rowindex=${index + 2} style=${{ transform: `translateY(${top}px)` }} onClick=${open}>
    <div role="cell" class="name"><a href=${modelLink(model)} title=${model.name}>${model.name}</a>${model.version && html`<span class="version">v${model.version}</span>`}</div>
    <div role="cell" class="status"><${State} model=${model} /></div>
    <div role="cell" class="num rate" data-label="req/s"><${Spark} values=${model.values("rate", tick, SPARK)} />${number(model.rate)}</div>
    <div role="cell" class="num" data-label=${mean ? "mean" : "p50"} title=${mean ? "Mean of the last second: this server does not measure quantiles" : null}>${mean ? duration(model.latency) : duration(row.p50 / 1000)}</div>
    <div role="cell" class="num" data-label="p99">${row.p99 === undefined ? "–" : duration(row.p99 / 1000)}</div>
    <div role="cell" class="num" data-label="queued">${waiting}${duration(phases.queue)}</div>
    <div role="cell" class="num" data-label="batch">${number(model.batch)}</div>
    <div role="cell" class="num use" data-label="busy">${Number.isFinite(model.use) ? html`<${Meter} share=${model.use} label=${percent(model.use)} />` : null}${instances(model)}</div>
    <div role="cell" class="num ${row.fail ? "bad-text" : ""}" data-label="failed">${row.fail === undefined ? "–" : number(row.fail)}</div>
  </div>`;
}

function instances(model) {
  if (!model.row.instances) return "–"; // an ensemble has none
  return Number.isFinite(model.use) ? percent(model.use) : html`<span class="dim">${number(model.row.instances)}</span>`;
}
