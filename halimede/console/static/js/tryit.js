// A form for a request to a model, made of its metadata, and what the model answers.

import { html, useEffect, useMemo, useRef, useState } from "./lib.js";
import { call, eventsOf, getJson, modelPath } from "./api.js";
import { Answer, Stream } from "./answer.js";
import { InputForm, valuesOf, startOf } from "./input_form.js";
import { curl, python } from "./snippets.js";
import { store } from "./store.js";
import { duration, shape } from "./format.js";
import { isText, request, response } from "./tensors.js";
import { Copy, Empty, Note, TokenNeeded, useFetched, useToken } from "./parts.js";

const CLASSES = 5;
const MAX_TOKENS = 5000;

/** @param {{model: import("./store.js").Model, connected: boolean}} props */
export function TryIt({ model, connected }) {
  const path = modelPath(model.name, model.version);
  const { value, error, loading } = useFetched(
    () => (model.ready ? Promise.all([getJson(path), getJson(`${path}/config`)]) : Promise.resolve(null)),
    [model.key, model.ready],
  );
  if (!model.ready) return html`<${Empty} title="The model is not in service.">${model.unloaded ? "Load it to try it." : "It can be tried once it is."}<//>`;
  if (error) return html`<${Note} kind="bad" title="The model could not be described.">${error}<//>`;
  if (!value || loading) return html`<div class="skeleton" aria-hidden="true"><span></span><span></span><span></span></div>`;
  return html`<${Form} model=${model} path=${path} metadata=${value[0]} config=${value[1]} connected=${connected} />`;
}

/** The outputs that are numbers for classes: of one fixed dimension. */
function classOutputs(metadata, config) {
  const batched = Number(config.max_batch_size) > 0;
  return metadata.outputs.filter(({ datatype, shape: dims }) => {
    const own = batched ? dims.slice(1) : dims;
    return !isText(datatype) && own.length === 1 && Number(own[0]) > 1;
  });
}

function Form({ model, path, metadata, config, connected }) {
  const works = useToken();
  const batched = Number(config.max_batch_size) > 0;
  const decoupled = config.model_transaction_policy?.decoupled === true;
  const sequence = Boolean(config.sequence_batching) && !config.sequence_batching?.iterative_sequence;
  const labelled = new Set((config.output ?? []).filter((output) => output.label_filename).map((output) => output.name));
  const classable = useMemo(() => classOutputs(metadata, config), [metadata]);
  const [forms, setForms] = useState(() => Object.fromEntries(metadata.inputs.map((input) => [input.name, startOf(input, batched)])));
  const [classes, setClasses] = useState(() => new Set(classable.filter(({ name }) => labelled.has(name) || config.ensemble_scheduling).map(({ name }) => name)));
  const [seq, setSeq] = useState({ id: 1 + Math.floor(Math.random() * 1e6), start: true, end: false });
  const [state, setState] = useState(/** @type {any} */ ({ busy: false }));
  const abort = useRef(/** @type {AbortController | null} */ (null));
  useEffect(() => () => abort.current?.abort(), []);

  const optional = new Set((config.input ?? []).filter((input) => input.optional).map((input) => input.name));
  const built = useMemo(() => {
    const inputs = [];
    const problems = /** @type {Record<string, string>} */ ({});
    for (const input of metadata.inputs) {
      const form = forms[input.name];
      if (form.mode === "none") continue;
      try {
        inputs.push(valuesOf(input, form));
      } catch (problem) {
        problems[input.name] = String(problem.message ?? problem);
      }
    }
    return { inputs, problems };
  }, [forms]);
  const outputs = metadata.outputs.map(({ name, shape: dims }) => ({ name, classes: classes.has(name) ? Math.min(CLASSES, Number(dims.at(-1))) : 0 }));
  const parameters = sequence ? { sequence_id: seq.id, sequence_start: seq.start, sequence_end: seq.end } : {};
  const broken = Object.keys(built.problems).length > 0;

  const send = async (event) => {
    event?.preventDefault();
    if (broken || works === false || state.busy) return;
    abort.current = new AbortController();
    setState({ busy: true });
    const began = performance.now();
    try {
      if (decoupled) await stream(began);
      else await once(began);
      if (sequence) setSeq((before) => (before.end ? { id: before.id + 1, start: true, end: false } : { ...before, start: false }));
    } catch (problem) {
      if (abort.current.signal.aborted) setState((before) => ({ ...before, busy: false, stopped: true }));
      else setState((before) => ({ ...before, busy: false, error: String(problem.message ?? problem), ms: performance.now() - began }));
    }
  };

  const once = async (began) => {
    const before = await phases(path);
    const { body, headers } = request(built.inputs, outputs, parameters);
    const sent = performance.now();
    const answer = await call(`${path}/infer`, { method: "POST", body, headers, signal: abort.current?.signal });
    const tensors = await response(answer);
    const ms = performance.now() - sent;
    const after = await phases(path);
    setState({ busy: false, tensors, ms, phases: between(before, after) });
  };

  const stream = async (began) => {
    const document = Object.fromEntries(built.inputs.map(({ name, values }) => [name, values.length === 1 ? values[0] : values]));
    const answer = await call(`${path}/generate_stream`, {
      method: "POST",
      body: JSON.stringify({ ...document, ...parameters }),
      headers: { "Content-Type": "application/json" },
      signal: abort.current?.signal,
    });
    const parts = [];
    for await (const event of eventsOf(/** @type {any} */ (answer.body))) {
      if (event.error) throw new Error(event.error);
      parts.push({ ms: performance.now() - began, event });
      if (parts.length <= MAX_TOKENS) setState({ busy: true, parts: [...parts] });
    }
    setState({ busy: false, parts, ms: performance.now() - began });
  };

  const files = Object.fromEntries(Object.entries(forms).filter(([, form]) => form.mode === "file" && form.file).map(([name, form]) => [name, form.file.name]));
  const snippetCall = { ...addresses(), model: model.name, version: store.versions(model.name).length > 1 ? model.version : "", inputs: built.inputs, outputs, parameters, stream: decoupled, files };
  return html`<div class="columns">
    <form class="panel" aria-labelledby="request" onSubmit=${send}>
      <header><h2 id="request">Request</h2>${decoupled && html`<span class="tag">stream</span>`}${sequence && html`<span class="tag">sequence</span>`}</header>
      <div class="body">
        <div class="inputs">
          ${metadata.inputs.map((input) => html`<${InputForm} key=${input.name} input=${input} batched=${batched} optional=${optional.has(input.name)} form=${forms[input.name]} problem=${built.problems[input.name]}
            change=${(form) => setForms((before) => ({ ...before, [input.name]: { ...before[input.name], ...form } }))} />`)}
        </div>
        ${sequence && html`<fieldset class="line sequence">
          <legend class="visually-hidden">Sequence</legend>
          <label class="line"><span class="dim">Sequence</span><input type="number" min="1" value=${seq.id} onInput=${(event) => setSeq({ ...seq, id: Number(event.target.value), start: true })} /></label>
          <label class="check"><input type="checkbox" checked=${seq.start} onChange=${() => setSeq({ ...seq, start: !seq.start })} />starts here</label>
          <label class="check"><input type="checkbox" checked=${seq.end} onChange=${() => setSeq({ ...seq, end: !seq.end })} />ends here</label>
        </fieldset>`}
        ${classable.length > 0 && !decoupled && html`<div class="line wrap">${classable.map(({ name }) => html`<label class="check"><input type="checkbox" checked=${classes.has(name)} onChange=${() => setClasses((before) => toggled(before, name))} /><span><code>${name}</code> as classes</span></label>`)}</div>`}
        <${TokenNeeded} what="A request" />
        <div class="buttons">
          <button type="submit" class="main" disabled=${broken || works === false || state.busy || !connected}>${state.busy ? "Running …" : "Send"}</button>
          ${state.busy && html`<button type="button" onClick=${() => abort.current?.abort()}>Stop</button>`}
        </div>
      </div>
    </form>
    <section class="panel" aria-labelledby="answer" aria-live="polite">
      <header><h2 id="answer">Answer</h2>${state.ms !== undefined && html`<${Timing} state=${state} />`}</header>
      <div class="body">
        ${state.error && html`<${Note} kind="bad" title="The server refused the request."><pre class="mono">${state.error}</pre><//>`}
        ${state.stopped && html`<p class="dim">Stopped.</p>`}
        ${state.parts && html`<${Stream} parts=${state.parts} outputs=${metadata.outputs} busy=${state.busy} />`}
        ${state.tensors && html`<${Answer} tensors=${state.tensors} outputs=${outputs} batched=${batched} />`}
        ${!state.tensors && !state.parts && !state.error && !state.busy && html`<${Outputs} outputs=${metadata.outputs} />`}
        ${state.busy && !state.parts && html`<p class="dim">Waiting for the model …</p>`}
      </div>
    </section>
    <${Snippets} made=${snippetCall} broken=${broken} />
  </div>`;
}

function toggled(set, name) {
  const made = new Set(set);
  if (!made.delete(name)) made.add(name);
  return made;
}

function Outputs({ outputs }) {
  return html`<p class="dim">The model answers with:</p><ul class="tensor-list">${outputs.map(({ name, datatype, shape: dims }) => html`<li><code>${name}</code> <span class="dim">${datatype} ${shape(dims)}</span></li>`)}</ul>`;
}

/** The server's own counts, before and after: if this was the only request between, they tell where its time went. */
async function phases(path) {
  try {
    const found = (await getJson(`${path}/stats`)).model_stats[0].inference_stats;
    return Object.fromEntries(["success", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit"].map((name) => [name, { count: Number(found[name]?.count ?? 0), ns: Number(found[name]?.ns ?? 0) }]));
  } catch {
    return null;
  }
}

function between(before, after) {
  if (!before || !after || after.success.count - before.success.count !== 1) return null;
  return Object.fromEntries(Object.keys(after).map((name) => [name, { count: after[name].count - before[name].count, ms: (after[name].ns - before[name].ns) / 1e6 }]));
}

function Timing({ state }) {
  const { ms, phases: found } = state;
  return html`<div class="timing"><span>whole call <b>${duration(ms)}</b></span>
    ${found && html`<span>in the server <b>${duration(found.success.ms)}</b></span>
      ${found.cache_hit.count > 0 ? html`<span>from the cache</span>` : html`<span>queue <b>${duration(found.queue.ms)}</b></span>
      <span>compute <b>${duration(found.compute_input.ms + found.compute_infer.ms + found.compute_output.ms)}</b></span>`}`}
  </div>`;
}

/** Addresses for examples: on all interfaces the browser knows the machine by the name in its own address. */
function addresses() {
  const fix = (address, port) => {
    const found = address || `${location.hostname}:${port}`;
    return found.replace(/^(0\.0\.0\.0|\[::\])/, location.hostname);
  };
  return { host: fix(store.hello.http, 8000), grpc: fix(store.hello.grpc, 8001) };
}

const KINDS = [
  ["curl", "curl"],
  ["http", "Python"],
  ["grpc", "Python, gRPC"],
];

function Snippets({ made, broken }) {
  const [kind, setKind] = useState("curl");
  if (broken) return null;
  const text = kind === "curl" ? curl(made) : python(/** @type {any} */ (kind), made);
  return html`<section class="panel wide" aria-labelledby="code">
    <header><h2 id="code">The same call</h2>
      <div class="segments" role="group" aria-label="Language">${KINDS.map(([id, label]) => html`<button type="button" aria-pressed=${kind === id ? "true" : "false"} onClick=${() => setKind(id)}>${label}</button>`)}</div>
      <${Copy} text=${text} />
    </header>
    <div class="body"><pre class="code" tabindex="0" aria-label="Code">${text}</pre></div>
  </section>`;
}

