// What is known of the server, second by second: rows with rates, and the last minutes as series.

import { useEffect, useState } from "preact/hooks";

/** Seconds that are kept. */
export const KEPT = 300;
const MAX_LINES = 1000;
const MAX_TRACES = 150;
/** Seconds after which a failure is no news any more. */
const FAILURE_SECONDS = 60;

/** The last KEPT values of something. A second without a value has `fill`. */
export class Series {
  /** @param {number} fill */
  constructor(fill) {
    this.fill = fill;
    this.data = new Float32Array(KEPT).fill(fill);
    this.upTo = -1;
  }

  /** @param {number} tick @param {number} value */
  set(tick, value) {
    for (let at = Math.max(this.upTo + 1, tick - KEPT + 1); at < tick; at += 1) this.data[at % KEPT] = this.fill;
    this.data[tick % KEPT] = value;
    this.upTo = tick;
  }

  /**
   * The last `count` values up to `tick`, the oldest first.
   * @param {number} tick @param {number} count
   */
  last(tick, count) {
    const values = new Array(count);
    for (let i = 0; i < count; i += 1) {
      const at = tick - count + 1 + i;
      // Nothing is known of the time before the page was open.
      if (at < 0) values[i] = NaN;
      else values[i] = at <= this.upTo ? this.data[at % KEPT] : this.fill;
    }
    return values;
  }
}

const PHASES = ["queue", "input", "infer", "output"];

/** A version of a model. Rates are per second, times are means in milliseconds, NaN without requests. */
export class Model {
  constructor(row) {
    this.key = `${row.name}\n${row.version}`;
    this.name = row.name;
    this.version = row.version;
    this.row = row;
    this.rate = 0;
    this.failures = 0;
    this.latency = NaN;
    this.batch = NaN;
    this.use = NaN;
    this.phases = { queue: NaN, input: NaN, infer: NaN, output: NaN };
    this.lastFailure = -Infinity;
    this.recentFailures = 0;
    this.restarted = -Infinity;
    /** @type {Record<string, Series>} */
    this.series = {};
  }

  get state() {
    return this.row.state || "UNKNOWN";
  }

  get ready() {
    return this.row.state === "READY";
  }

  /** Whether nobody wants it in service: it was unloaded, or was never asked for. */
  get unloaded() {
    return !this.ready && (this.row.reason === "unloaded" || (!this.row.state && !this.row.reason));
  }

  get failed() {
    return this.row.state === "UNAVAILABLE" && !this.unloaded;
  }

  get active() {
    return this.rate > 0 || this.failures > 0;
  }

  /** @param {string} name */
  values(name, tick, count) {
    return (this.series[name] ?? new Series(ZERO.has(name) ? 0 : NaN)).last(tick, count);
  }

  put(name, tick, value) {
    this.series[name] ??= new Series(ZERO.has(name) ? 0 : NaN);
    this.series[name].set(tick, value);
  }

  /** @param {any} row @param {number} seconds since the last event @param {number} tick */
  update(row, seconds, tick) {
    const before = this.row;
    this.row = row;
    const since = (name) => Math.max(0, (row[name] ?? 0) - (before[name] ?? 0));
    const fresh = (row.success ?? 0) < (before.success ?? 0);
    const succeeded = fresh ? row.success : since("success");
    this.rate = succeeded / seconds;
    const failed = since("fail");
    this.failures = failed / seconds;
    if (failed) {
      this.recentFailures = tick - this.lastFailure > FAILURE_SECONDS ? failed : this.recentFailures + failed;
      this.lastFailure = tick;
    }
    if (since("restarts")) this.restarted = tick;
    const mean = (name) => (succeeded ? (fresh ? row[name] : since(name)) / succeeded / 1e6 : NaN);
    this.latency = mean("total");
    for (const phase of PHASES) this.phases[phase] = mean(phase);
    const executions = since("executions");
    this.batch = executions ? since("inferences") / executions : NaN;
    this.use =
      row.busySeconds === undefined || !row.instances
        ? NaN
        : Math.min(1, since("busySeconds") / seconds / row.instances);
    if (this.active || Object.keys(this.series).length) this.record(tick);
  }

  record(tick) {
    this.put("rate", tick, this.rate);
    this.put("failures", tick, this.failures);
    this.put("latency", tick, this.latency);
    this.put("p50", tick, this.rate ? (this.row.p50 ?? NaN) / 1000 : NaN);
    this.put("p99", tick, this.rate ? (this.row.p99 ?? NaN) / 1000 : NaN);
    for (const phase of PHASES) this.put(phase, tick, this.phases[phase]);
    this.put("busy", tick, Number.isNaN(this.use) ? NaN : this.use * this.row.instances);
    this.put("pending", tick, this.row.pending ?? 0);
  }
}

const ZERO = new Set(["rate", "failures", "pending"]);

export class Store {
  constructor() {
    /** @type {Map<string, Model>} */
    this.models = new Map();
    this.machine = /** @type {any} */ ({ gpus: [] });
    this.hello = /** @type {any} */ ({ features: [], control: "" });
    this.server = /** @type {any} */ (null);
    this.state = "connecting";
    this.status = 0;
    this.down = "";
    this.tick = -1;
    this.times = new Float64Array(KEPT);
    this.lastT = NaN;
    this.loaded = false;
    this.tracing = false;
    /** @type {any[]} */
    this.logs = [];
    /** @type {any[]} */
    this.traces = [];
    this.totals = { rate: new Series(0), failures: new Series(0), cpu: new Series(NaN), memory: new Series(NaN), waiting: new Series(0) };
    this.gpuUse = /** @type {Record<string, Series>} */ ({});
    this.listeners = new Set();
  }

  get connected() {
    return this.state === "live" && !this.down;
  }

  has(feature) {
    return this.hello.features.includes(feature);
  }

  changed() {
    for (const listener of this.listeners) listener();
  }

  setState(state, status) {
    if (this.state === state) return;
    this.state = state;
    this.status = status;
    this.changed();
  }

  take(event) {
    if (event.hello) {
      this.hello = event.hello;
      this.logs = [];
      this.traces = [];
      this.lastT = NaN;
      this.changed();
      return;
    }
    this.down = event.down ?? "";
    if (!this.down) this.takeReadings(event);
    if (event.tracing !== undefined) this.tracing = event.tracing;
    if (event.logs) this.logs = [...this.logs, ...event.logs].slice(-MAX_LINES);
    if (event.traces) this.traces = [...this.traces, ...event.traces].slice(-MAX_TRACES);
    this.changed();
  }

  takeReadings(event) {
    this.tick += 1;
    const tick = this.tick;
    this.times[tick % KEPT] = event.now / 1000;
    const seconds = Number.isNaN(this.lastT) ? NaN : Math.max(0.05, event.t - this.lastT);
    this.lastT = event.t;
    this.machine = event.machine ?? { gpus: [] };
    const updated = new Set();
    if (event.full) {
      const kept = new Set(event.models.map((row) => `${row.name}\n${row.version}`));
      for (const key of this.models.keys()) if (!kept.has(key)) this.models.delete(key);
    }
    for (const key of event.gone ?? []) this.models.delete(key);
    for (const row of event.models ?? []) {
      const key = `${row.name}\n${row.version}`;
      const model = this.models.get(key);
      updated.add(key);
      if (model && !Number.isNaN(seconds)) model.update(row, seconds, tick);
      else if (model) model.row = row;
      else this.models.set(key, new Model(row));
    }
    for (const model of this.models.values()) {
      // What did not change has no event, and did nothing.
      if (!updated.has(model.key) && model.active && seconds) model.update(model.row, seconds, tick);
    }
    this.total(tick);
    this.loaded = true;
  }

  total(tick) {
    let rate = 0;
    let failures = 0;
    let waiting = 0;
    for (const model of this.models.values()) {
      rate += model.rate;
      failures += model.failures;
      waiting += model.row.pending ?? 0;
    }
    this.totals.rate.set(tick, rate);
    this.totals.failures.set(tick, failures);
    this.totals.waiting.set(tick, waiting);
    this.totals.cpu.set(tick, this.machine.cpu ?? NaN);
    this.totals.memory.set(tick, (this.machine.memoryUsed ?? NaN) / (this.machine.memoryTotal ?? NaN));
    for (const gpu of this.machine.gpus) {
      this.gpuUse[gpu.id] ??= new Series(NaN);
      this.gpuUse[gpu.id].set(tick, gpu.use ?? NaN);
    }
  }

  /** The times of the last `count` events, in seconds since the epoch; NaN before the first. */
  timesOf(count) {
    return Array.from({ length: count }, (_, i) => {
      const at = this.tick - count + 1 + i;
      return at >= 0 && at > this.tick - KEPT ? this.times[at % KEPT] : NaN;
    });
  }

  /** @param {string} name */
  versions(name) {
    return [...this.models.values()]
      .filter((model) => model.name === name)
      .sort((a, b) => Number(a.version) - Number(b.version));
  }

  /**
   * What somebody should look at, the worst first: `level` is bad or warn.
   * @returns {{level: string, model: Model, text: string, detail: string}[]}
   */
  troubles() {
    const found = [];
    for (const model of this.models.values()) {
      const since = this.tick - model.lastFailure;
      if (model.failed) found.push({ level: "bad", model, text: "not in service", detail: model.row.reason });
      else if (since <= FAILURE_SECONDS) {
        const text = `${model.recentFailures} failed ${model.recentFailures === 1 ? "request" : "requests"}`;
        found.push({ level: "bad", model, text, detail: since < 3 ? "failing now" : `the last one ${since} s ago` });
      }
      if (this.tick - model.restarted <= FAILURE_SECONDS) {
        const detail = `${model.row.restarts} restarts since the server started; the log says why`;
        found.push({ level: "bad", model, text: "a worker process ended and was restarted", detail });
      }
      if ((model.row.oldest ?? 0) > 1) {
        const detail = `${model.row.pending} waiting, the oldest for ${model.row.oldest.toFixed(1)} s`;
        found.push({ level: "warn", model, text: "requests queue up", detail });
      }
      if (model.state === "LOADING" || model.state === "UNLOADING") {
        found.push({ level: "warn", model, text: model.state.toLowerCase(), detail: "" });
      }
    }
    return found.sort((a, b) => (a.level === b.level ? a.model.name.localeCompare(b.model.name) : a.level === "bad" ? -1 : 1));
  }
}

export const store = new Store();

/** Draws the component again after each event. */
export function useStore() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((n) => n + 1);
    store.listeners.add(listener);
    return () => void store.listeners.delete(listener);
  }, []);
  return store;
}
