// The configuration of a model: every field with its meaning, what `halimede check` says, and an editor.

import { html, useMemo, useState } from "./lib.js";
import { call, getJson, modelPath, postJson } from "./api.js";
import { entries } from "./config_fields.js";
import { forgetConfigs } from "./configs.js";
import { diff } from "./diff.js";
import { store } from "./store.js";
import { Copy, Empty, Note, TokenNeeded, useFetched, useToken } from "./parts.js";

/** @param {{model: import("./store.js").Model}} props */
export function ConfigPage({ model }) {
  const { value, error, loading, again } = useFetched(() => getJson(`${modelPath(model.name, model.version)}/config`), [model.key, model.ready]);
  const [editing, setEditing] = useState(false);
  if (!model.ready && !value) {
    return html`<${Empty} title="The configuration is not known.">A server tells it of models in service only.${model.row.reason && !model.unloaded ? ` This one is not: ${model.row.reason}` : ""}<//><${Check} model=${model} />`;
  }
  if (error) return html`<${Note} kind="bad" title="The configuration could not be read.">${error}<//>`;
  if (!value) return html`<div class="skeleton" aria-hidden="true">${loading && html`<span></span><span></span><span></span>`}</div>`;
  return html`
    <${Check} model=${model} />
    ${editing
      ? html`<${Editor} model=${model} config=${value} close=${(loaded) => { setEditing(false); if (loaded) again(); }} />`
      : html`<${Fields} config=${value} edit=${() => setEditing(true)} />`}`;
}

function Fields({ config, edit }) {
  const [all, setAll] = useState(false);
  const rows = useMemo(() => entries(config), [config]);
  const shown = all ? rows : rows.filter((row) => !row.isDefault);
  return html`<section class="panel" aria-labelledby="fields">
    <header>
      <h2 id="fields">Configuration</h2>
      <label class="check"><input type="checkbox" checked=${all} onChange=${() => setAll(!all)} />show defaults (${rows.length - rows.filter((row) => !row.isDefault).length})</label>
      <${Copy} text=${JSON.stringify(config, null, 2)} label="Copy JSON" />
      <button type="button" onClick=${edit}>Edit and load</button>
    </header>
    <dl class="body config">
      ${shown.map(({ path, value, why, isDefault }) => html`<div class="entry ${isDefault ? "default" : ""}" key=${path.join(".")}>
        <dt class="path">${path.length > 1 && html`<span class="parent">${path.slice(0, -1).map((part) => html`${part}.<wbr />`)}</span>`}${path.at(-1)}</dt>
        <dd class="value">${text(value)}${isDefault && html`<span class="tag">default</span>`}</dd>
        <dd class="why">${why}</dd>
      </div>`)}
    </dl>
  </section>`;
}

function text(value) {
  if (Array.isArray(value)) return value.length ? `[${value.join(", ")}]` : "none";
  if (value !== null && typeof value === "object") {
    const pairs = Object.entries(value);
    return pairs.length ? pairs.map(([name, each]) => `${name} → ${typeof each === "object" ? JSON.stringify(each) : each}`).join("\n") : "none";
  }
  return value === "" ? "none" : String(value);
}

/** @param {{model: import("./store.js").Model, config: any, close: (loaded: boolean) => void}} props */
function Editor({ model, config, close }) {
  const works = useToken();
  const before = useMemo(() => JSON.stringify(config, null, 2), [config]);
  const [written, setWritten] = useState(before);
  const [state, setState] = useState({ busy: false, error: "" });
  const parsed = useMemo(() => {
    try {
      return { document: JSON.parse(written), error: "" };
    } catch (error) {
      return { document: null, error: String(error.message ?? error) };
    }
  }, [written]);
  const changed = written !== before;
  const lines = useMemo(() => (changed && parsed.document ? diff(before, JSON.stringify(parsed.document, null, 2)) : []), [written]);
  const explicit = store.hello.control === "explicit" || store.hello.control === "";
  const load = async () => {
    setState({ busy: true, error: "" });
    try {
      await postJson(`/v2/repository/models/${encodeURIComponent(model.name)}/load`, { parameters: { config: JSON.stringify(parsed.document) } });
      forgetConfigs(model.name);
      close(true);
    } catch (error) {
      setState({ busy: false, error: String(error.message ?? error) });
    }
  };
  return html`<section class="panel" aria-labelledby="editor">
    <header><h2 id="editor">Edit the configuration</h2>
      <div class="buttons">
        <button type="button" class="quiet" onClick=${() => close(false)}>Cancel</button>
        <button type="button" class="main" disabled=${!changed || !parsed.document || !explicit || works === false || state.busy} onClick=${load}>${state.busy ? "Loading …" : "Load with this"}</button>
      </div>
    </header>
    <div class="body">
      <p class="dim">The model is loaded with this configuration instead of its file, until the next load. If it cannot be loaded, the present one goes on serving. The file does not change.</p>
      ${!explicit && html`<${Note} kind="warn">A configuration can be loaded if the server was started with <code>--model-control-mode=explicit</code>.<//>`}
      ${works === false && html`<${TokenNeeded} what="Loading" />`}
      ${state.error && html`<${Note} kind="bad" title="The model was not loaded."><pre class="mono">${state.error}</pre><//>`}
      <div class="columns">
        <label class="field"><span>Configuration as JSON</span><textarea class="editor" spellcheck="false" value=${written} aria-invalid=${parsed.error ? "true" : null} onInput=${(event) => setWritten(event.target.value)}></textarea></label>
        <div class="field"><h3>${parsed.error ? "This is not JSON" : changed ? "What changes" : "Nothing changed yet"}</h3>
          ${parsed.error ? html`<p class="bad-text">${parsed.error}</p>`
            : html`<div class="diff" role="region" aria-label="Difference" tabindex="0">${lines.map((line) => html`<div class=${line.kind}>${line.kind === "add" ? "+ " : line.kind === "del" ? "− " : "  "}${line.text}</div>`)}</div>`}
        </div>
      </div>
    </div>
  </section>`;
}

const VERDICTS = {
  serves: ["good", "It can serve."],
  "serves-without": ["warn", "It can serve, but something of it has no effect or may fail."],
  unknown: ["warn", "Only a load shows whether it can serve."],
  "cannot-serve": ["bad", "It cannot serve."],
};

/** What `halimede check` says of the model. */
function Check({ model }) {
  const works = useToken();
  const [state, setState] = useState(/** @type {{busy: boolean, found?: any, error?: string}} */ ({ busy: false }));
  const has = store.has("check");
  const run = async () => {
    setState({ busy: true });
    try {
      const answer = await postCheck(model.name);
      setState({ busy: false, found: answer ?? {} });
    } catch (error) {
      setState({ busy: false, error: String(error.message ?? error) });
    }
  };
  const verdict = state.found?.verdict;
  const problems = state.found?.problems ?? [];
  return html`<section class="panel" aria-labelledby="check">
    <header><h2 id="check">Check</h2>
      <span class="dim">${has ? "Looks for mistakes in the model's files, as the command halimede check does." : "Only a server that runs Halimede can check its repository."}</span>
      <button type="button" disabled=${!has || works === false || state.busy} title=${works === false ? "Needs the token that the server prints when it starts." : null} onClick=${run}>${state.busy ? "Checking …" : "Check"}</button>
    </header>
    ${(state.found || state.error) && html`<div class="body">
      ${state.error && html`<${Note} kind="bad">${state.error}<//>`}
      ${state.found && !verdict && html`<${Note} kind="warn">The model is not in the repository any more.<//>`}
      ${verdict && html`<${Note} kind=${VERDICTS[verdict.state]?.[0] ?? "warn"} title=${VERDICTS[verdict.state]?.[1] ?? verdict.state}>${verdict.text && `${verdict.text}. `}${verdict.do && `To do: ${verdict.do}.`}${!verdict.text && !problems.length && "No problem was found."}<//>`}
      ${problems.map((problem) => html`<${Note} kind=${problem.severity === "error" ? "bad" : "warn"} title=${problem.code}>${problem.text}${problem.file && html` <code>${problem.file}${problem.line ? `:${problem.line}` : ""}</code>`}${problem.instead && html`<div>${problem.instead}</div>`}<//>`)}
    </div>`}
  </section>`;
}

async function postCheck(name) {
  return (await call(`/check/${encodeURIComponent(name)}`, { method: "POST" })).json();
}
