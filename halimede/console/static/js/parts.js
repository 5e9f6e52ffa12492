// Parts that several pages use.

import { html, useEffect, useRef, useState } from "./lib.js";
import { store } from "./store.js";
import { tokenWorks, setToken, token } from "./api.js";

const ICONS = {
  ok: "M4 8.5l3 3 5.5-6.5",
  bad: "M8 3.5v5.5M8 12v.5",
  warn: "M8 3.5v5.5M8 12v.5",
  off: "M5 8h6",
  copy: "M6 6h7v7H6zM3 10V3h7",
};

/** @param {{name: string, label?: string}} props */
export function Icon({ name, label = "" }) {
  return html`<svg class="icon ${name}" viewBox="0 0 16 16" role=${label ? "img" : null} aria-label=${label || null} aria-hidden=${label ? null : "true"}><path d=${ICONS[name]} /></svg>`;
}

const WORDS = { READY: ["ok", "ready"], UNAVAILABLE: ["bad", "failed"], LOADING: ["warn", "loading"], UNLOADING: ["warn", "unloading"] };

/** @param {{model: import("./store.js").Model}} props */
export function State({ model }) {
  const [kind, word] = model.unloaded ? ["off", "not loaded"] : (WORDS[model.state] ?? ["off", model.state.toLowerCase()]);
  return html`<span class="state ${kind}"><${Icon} name=${kind} /><span>${word}</span></span>`;
}

/**
 * A line of the last values, drawn to its own scale.
 * @param {{values: number[], label?: string, kind?: string, high?: number}} props
 */
export function Spark({ values, label = "", kind = "", high = 0 }) {
  const top = Math.max(high, ...values.filter(Number.isFinite), 1e-9);
  const points = [];
  let pen = false;
  values.forEach((value, i) => {
    if (!Number.isFinite(value)) {
      pen = false;
      return;
    }
    points.push(`${pen ? "L" : "M"}${((i / (values.length - 1)) * 100).toFixed(1)} ${(23 - (value / top) * 22).toFixed(1)}`);
    pen = true;
  });
  return html`<svg class="spark ${kind}" viewBox="0 0 100 24" preserveAspectRatio="none" role=${label ? "img" : null} aria-label=${label || null} aria-hidden=${label ? null : "true"}>
    <path d=${points.join("")} vector-effect="non-scaling-stroke" />
  </svg>`;
}

/** @param {{share: number, label: string}} props */
export function Meter({ share, label }) {
  const known = Number.isFinite(share);
  const level = !known ? "" : share > 0.9 ? "bad" : share > 0.7 ? "warn" : "";
  return html`<span class="meter ${level}" role="img" aria-label=${label}>
    <svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
      <rect class="rest" width="100" height="6" /><rect class="part" width=${known ? Math.min(100, share * 100) : 0} height="6" />
    </svg>
  </span>`;
}

/** @param {{children: any, kind?: string, title?: string}} props */
export function Note({ children, kind = "", title = "" }) {
  return html`<div class="note ${kind}" role=${kind === "bad" ? "alert" : null}>
    ${title && html`<strong>${title}</strong>`}<div>${children}</div>
  </div>`;
}

/** @param {{title: string, children?: any}} props */
export function Empty({ title, children }) {
  return html`<div class="empty"><strong>${title}</strong>${children && html`<p>${children}</p>`}</div>`;
}

/** Copies a text, and says so. @param {{text: string, label?: string}} props */
export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return undefined;
    const timer = setTimeout(() => setDone(false), 1600);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without HTTPS, and on another address than localhost, browsers have no clipboard for pages.
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    setDone(true);
  };
  return html`<button type="button" class="quiet small" onClick=${copy}><${Icon} name=${done ? "ok" : "copy"} />${done ? "Copied" : label}</button>`;
}

/** Whether changes are allowed, and a field for the token if they are not. */
export function useToken() {
  const [works, setWorks] = useState(/** @type {boolean | null} */ (null));
  useEffect(() => {
    let gone = false;
    const look = () => tokenWorks().then((found) => gone || setWorks(found)).catch(() => gone || setWorks(false));
    look();
    addEventListener("console-token", look);
    return () => {
      gone = true;
      removeEventListener("console-token", look);
    };
  }, []);
  return works;
}

/** @param {{what: string}} props */
export function TokenNeeded({ what }) {
  const works = useToken();
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [wrong, setWrong] = useState(false);
  if (works !== false) return null;
  const key = store.hello.needs === "key";
  const submit = async (event) => {
    event.preventDefault();
    const earlier = token();
    setToken(field.current?.value ?? "");
    const good = await tokenWorks().catch(() => false);
    setWrong(!good);
    if (!good) setToken(earlier);
    dispatchEvent(new Event("console-token"));
  };
  return html`<form class="note token" onSubmit=${submit}>
    <div>${key ? html`<strong>A key is needed.</strong> ${what} needs a key of this server; <code>halimede auth add</code> makes one.` : html`<strong>The token is missing.</strong> ${what} needs the token that the server prints when it starts, at the end of the console's link.`}</div>
    <div class="line">
      <label class="grow"><span class="visually-hidden">${key ? "Key" : "Token or link"}</span><input ref=${field} type="password" autocomplete="off" placeholder=${key ? "key" : "token, or the whole link"} aria-invalid=${wrong ? "true" : null} /></label>
      <button type="submit">Use it</button>
    </div>
    ${wrong && html`<p class="bad-text" role="alert">The server does not take it.</p>`}
  </form>`;
}

/** The width of an element, also after it has changed. */
export function useWidth() {
  const ref = useRef(/** @type {HTMLElement | null} */ (null));
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!ref.current) return undefined;
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watch.observe(ref.current);
    return () => watch.disconnect();
  }, []);
  return { ref, width };
}

/**
 * Something that is fetched, and again when `keys` change.
 * @template T
 * @param {() => Promise<T>} load @param {unknown[]} keys
 * @returns {{value: T | null, error: string, loading: boolean, again: () => void}}
 */
export function useFetched(load, keys) {
  const [state, setState] = useState({ value: /** @type {T | null} */ (null), error: "", loading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let gone = false;
    setState((before) => ({ ...before, loading: true }));
    load()
      .then((value) => gone || setState({ value, error: "", loading: false }))
      .catch((error) => gone || setState({ value: null, error: String(error.message ?? error), loading: false }));
    return () => {
      gone = true;
    };
  }, [...keys, turn]);
  return { ...state, again: () => setTurn((n) => n + 1) };
}
