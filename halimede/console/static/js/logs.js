// The last lines of the log, with filters.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";
import { clock, count } from "./format.js";
import { store, useStore } from "./store.js";
import { Empty } from "./parts.js";

const LEVELS = ["error", "warning", "info", "verbose"];
const SHOWN = 600;
const NEAR_END = 40;

export function Logs() {
  const { logs } = useStore();
  const [level, setLevel] = useState("info");
  const [sought, setSought] = useState("");
  const [held, setHeld] = useState(/** @type {any[] | null} */ (null));
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const follows = useRef(true);
  const lines = held ?? logs;
  const words = sought.toLowerCase();
  const shown = lines.filter((line) => LEVELS.indexOf(line.level) <= LEVELS.indexOf(level) && (!words || `${line.text} ${line.model} ${line.where}`.toLowerCase().includes(words))).slice(-SHOWN);
  useLayoutEffect(() => {
    if (follows.current && list.current) list.current.scrollTop = list.current.scrollHeight;
  }, [shown.at(-1)?.number, shown.length]);
  useEffect(() => {
    follows.current = true;
  }, [level]);
  if (!store.has("logs")) {
    return html`<h1>Log</h1><${Empty} title="This server does not show its log.">A server of Triton writes it to its console or to a file. <a href="#/settings">Its log settings</a> can be changed here.<//>`;
  }
  const scrolled = () => {
    const at = list.current;
    if (at) follows.current = at.scrollHeight - at.scrollTop - at.clientHeight < NEAR_END;
  };
  return html`
    <h1>Log</h1>
    <div class="toolbar">
      <div class="segments" role="group" aria-label="Level">${LEVELS.map((each) => html`<button type="button" aria-pressed=${level === each ? "true" : "false"} onClick=${() => setLevel(each)}>${{ error: "Errors", warning: "Warnings", info: "Info", verbose: "All" }[each]}</button>`)}</div>
      <button type="button" aria-pressed=${held ? "true" : "false"} onClick=${() => setHeld(held ? null : logs)}>${held ? "Continue" : "Pause"}</button>
      <span class="dim grow">${count(shown.length, "line")}${held ? `, ${logs.length ? logs.at(-1).number - (held.at(-1)?.number ?? -1) : 0} new since the pause` : ""}</span>
      <label class="search"><span class="visually-hidden">Search the log</span><input type="search" placeholder="Search the log" value=${sought} onInput=${(event) => setSought(event.target.value)} /></label>
    </div>
    <section class="panel log" ref=${list} onScroll=${scrolled} tabindex="0" role="log" aria-label="Lines of the log">
      ${shown.length === 0 && html`<${Empty} title=${lines.length ? "No line fits." : "Nothing was logged yet."} />`}
      ${shown.map((line) => html`<div class="entry ${line.level}" key=${line.number}><time title=${new Date(line.time).toISOString()}>${clock(line.time, true)}</time><span class="level">${line.level}</span><span class="text ${line.text.includes("\n") ? "lines" : ""}" tabindex=${line.text.includes("\n") ? "0" : null} title=${line.where}>${line.text}</span></div>`)}
    </section>`;
}
