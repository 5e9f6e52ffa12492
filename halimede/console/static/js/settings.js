// Settings of the log and of traces, by the protocol's own calls, and what is known of the server.

import { html, useEffect, useState } from "./lib.js";
import { getJson, postJson } from "./api.js";
import { store, useStore } from "./store.js";
import { Empty, Note, TokenNeeded, useFetched, useToken } from "./parts.js";

export function Settings() {
  const { server, hello } = useStore();
  return html`
    <h1>Settings</h1>
    <${TokenNeeded} what="A change" />
    <div class="columns">
      <${Section} title="Log" path="/v2/logging" form=${LogForm} />
      <${Section} title="Traces" path="/v2/trace/setting" form=${TraceForm} />
      <section class="panel wide" aria-labelledby="server">
        <header><h2 id="server">Server</h2></header>
        <div class="body"><table class="table"><tbody>
          ${server && html`<tr><th scope="row">Name and version</th><td>${server.name} ${server.version}</td></tr>`}
          <tr><th scope="row">HTTP</th><td class="mono">${hello.http || "closed"}</td></tr>
          <tr><th scope="row">gRPC</th><td><span class="mono">${hello.grpc || "closed"}</span>${hello.control ? "" : ", if it is the usual port"}</td></tr>
          <tr><th scope="row">Metrics</th><td class="mono">${hello.metrics || "none found"}</td></tr>
          <tr><th scope="row">Model control</th><td>${{ none: "none: models are loaded at the start", poll: "poll: changes of the repository are loaded", explicit: "explicit: models are loaded by request" }[hello.control] ?? "not known"}</td></tr>
          ${server && html`<tr><th scope="row">Extensions</th><td>${server.extensions.map((name) => html`<span class="tag flat">${name}</span>`)}</td></tr>`}
          <tr><th scope="row">Console</th><td>Halimede ${hello.console}, with preact, htm and uPlot (<a href="/vendor/README.txt">licences</a>)</td></tr>
        </tbody></table></div>
      </section>
    </div>`;
}

function Section({ title, path, form: Form }) {
  const { connected } = useStore();
  const works = useToken();
  const { value, error, again } = useFetched(() => getJson(path), [connected]);
  const [edited, setEdited] = useState(/** @type {any} */ (null));
  const [state, setState] = useState({ busy: false, error: "", saved: false });
  useEffect(() => setEdited(null), [value]);
  const now = { ...(value ?? {}), ...(edited ?? {}) };
  const save = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: "", saved: false });
    try {
      await postJson(path, edited);
      setState({ busy: false, error: "", saved: true });
      again();
    } catch (problem) {
      setState({ busy: false, error: String(problem.message ?? problem), saved: false });
    }
  };
  const set = (name, to) => {
    setState({ busy: false, error: "", saved: false });
    setEdited({ ...(edited ?? {}), [name]: to });
  };
  const id = title.toLowerCase();
  return html`<form class="panel" aria-labelledby=${id} onSubmit=${save}>
    <header><h2 id=${id}>${title}</h2>
      ${state.saved && !edited && html`<span class="state ok" role="status">saved</span>`}
      <button type="submit" class="main" disabled=${!edited || works === false || state.busy}>Save</button></header>
    <div class="body">
      ${error && html`<${Empty} title="This server has no such settings.">${error}<//>`}
      ${state.error && html`<${Note} kind="bad" title="The settings were not changed.">${state.error}<//>`}
      ${value && html`<${Form} now=${now} set=${set} />`}
    </div>
  </form>`;
}

function Check({ label, on, set }) {
  return html`<label class="check"><input type="checkbox" checked=${on} onChange=${(event) => set(event.target.checked)} />${label}</label>`;
}

function LogForm({ now, set }) {
  return html`<div class="line wrap">
      <${Check} label="information" on=${now.log_info} set=${(on) => set("log_info", on)} />
      <${Check} label="warnings" on=${now.log_warning} set=${(on) => set("log_warning", on)} />
      <${Check} label="errors" on=${now.log_error} set=${(on) => set("log_error", on)} />
    </div>
    <div class="form">
      <label class="field"><span>Verbose up to level</span><input type="number" min="0" max="9" value=${now.log_verbose_level} onInput=${(event) => set("log_verbose_level", Number(event.target.value))} /></label>
      <label class="field"><span>Format</span><select value=${now.log_format} onChange=${(event) => set("log_format", event.target.value)}>${["default", "ISO8601", ...(store.has("logs") ? ["json"] : [])].map((name) => html`<option>${name}</option>`)}</select></label>
    </div>
    <p class="dim">${now.log_file ? html`It is written to <code>${now.log_file}</code>.` : "It is written to the server's console."}</p>`;
}

function TraceForm({ now, set }) {
  const levels = new Set([now.trace_level ?? []].flat().filter((level) => level !== "OFF"));
  const toggle = (level) => (on) => {
    const made = new Set(levels);
    if (on) made.add(level);
    else made.delete(level);
    set("trace_level", made.size ? [...made] : ["OFF"]);
  };
  return html`<div class="line wrap">
      <${Check} label="time stamps" on=${levels.has("TIMESTAMPS")} set=${toggle("TIMESTAMPS")} />
      <${Check} label="tensors" on=${levels.has("TENSORS")} set=${toggle("TENSORS")} />
    </div>
    <div class="form">
      <label class="field"><span>One request in</span><input type="number" min="0" value=${now.trace_rate} onInput=${(event) => set("trace_rate", event.target.value)} /></label>
      <label class="field"><span>So many traces (-1: any number)</span><input type="number" min="-1" value=${now.trace_count} onInput=${(event) => set("trace_count", event.target.value)} /></label>
      <label class="field"><span>A new file after (0: never)</span><input type="number" min="0" value=${now.log_frequency} onInput=${(event) => set("log_frequency", event.target.value)} /></label>
    </div>
    <p class="dim">Mode ${now.trace_mode}. ${now.trace_file ? html`They are written to <code>${now.trace_file}</code>.` : "The server was started without a file for traces."} They are for other programs.${store.has("traces") ? html` What <a href="#/traces">Traces</a> shows does not depend on them.` : ""}</p>`;
}
