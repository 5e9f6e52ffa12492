// One input of a form: values, random ones, a file, a picture or sound.

import { html, useEffect, useRef, useState } from "./lib.js";
import { MAX_ELEMENTS, isFloat, isText, ofPicture, parse, pictureLayout, pictureType, product, random, readPicture, readSound, SCALES } from "./tensors.js";
import { bytes, shape } from "./format.js";

const FILE_NAMES = /file|image|picture|photo|jpe?g|png|audio|wav|raw/i;
const SOUND_NAMES = /audio|sound|wav|speech/i;
const START_SIZE = 8;
const MIN_SAMPLES = 100;
const RATES = [8000, 16000, 22050, 24000, 44100, 48000];

/**
 * @typedef {{mode: string, text: string, rows: number, sizes: number[], file: File | null, pixels: any, scale: string, rate: number, seed: number, values: any[] | null}} Form
 */

/** The dimensions without the batch. */
function own(input, batched) {
  return (batched ? input.shape.slice(1) : input.shape).map(Number);
}

/** How a form begins. @returns {Form & {batched: boolean}} */
export function startOf(input, batched) {
  const dims = own(input, batched);
  const layout = !isText(input.datatype) && pictureLayout(dims);
  const sound = !isText(input.datatype) && isFloat(input.datatype) && SOUND_NAMES.test(input.name);
  const mode = isText(input.datatype) ? (FILE_NAMES.test(input.name) ? "file" : "values") : layout ? "picture" : sound ? "sound" : "random";
  const sizes = dims.map((size) => (size === -1 ? (layout ? 64 : START_SIZE) : size));
  if (isText(input.datatype)) dims.forEach((size, i) => (sizes[i] = size === -1 ? 1 : size));
  const text = isText(input.datatype) ? "Hello, world" : "";
  return { mode, text, rows: 1, sizes, file: null, pixels: null, scale: "0 to 1", rate: 16000, seed: 0, values: null, batched, ...(mode === "random" ? { values: random(input.datatype, Math.min(product(sizes), MAX_ELEMENTS)) } : {}) };
}

/**
 * What the form says, as a tensor of a request. Raises an Error with what is missing.
 * @returns {{name: string, datatype: string, dims: number[], values: any[]}}
 */
export function valuesOf(input, form) {
  const { name, datatype } = input;
  const fixed = own(input, form.batched);
  const whole = (dims, rows = 1) => (form.batched ? [rows, ...dims] : dims);
  const tensor = (dims, values) => ({ name, datatype, dims, values });
  if (form.mode === "file") {
    if (!form.file || !form.values) throw new Error("choose a file");
    return tensor(whole(fixed.map((size) => (size === -1 ? 1 : size))), form.values);
  }
  if (form.mode === "picture") {
    if (!form.values) throw new Error("choose a picture");
    return tensor(whole(form.sizes), form.values);
  }
  if (form.mode === "sound") {
    if (!form.values) throw new Error("choose a sound");
    const dims = fixed.map((size, i) => (i === fixed.length - 1 ? (size === -1 ? form.values.length : size) : size === -1 ? 1 : size));
    const values = form.values.slice(0, product(dims));
    if (values.length < product(dims)) values.push(...new Array(product(dims) - values.length).fill(0));
    return tensor(whole(dims), values);
  }
  const wanted = whole(form.sizes, form.rows);
  if (form.mode === "random") return tensor(wanted, form.values ?? []);
  const { values, dims } = parse(datatype, form.text);
  if (dims && product(dims) === values.length) {
    const made = form.batched && dims.length === fixed.length ? [1, ...dims] : dims;
    const expected = whole(fixed);
    const fits = made.length === expected.length && made.every((size, i) => (form.batched && i === 0) || expected[i] === -1 || expected[i] === size);
    if (!fits) throw new Error(`these lists have the shape ${shape(dims)}, and the model takes ${shape(input.shape)}`);
    return tensor(made, values);
  }
  return tensor(fitted(values.length, fixed, form.batched), values);
}

/** The shape of so many values: open dimensions get what is left. */
function fitted(amount, fixed, batched) {
  const known = product(fixed.filter((size) => size !== -1));
  const open = fixed.filter((size) => size === -1).length;
  if (!amount) throw new Error("write some values");
  if (amount % known) throw new Error(`${amount} values do not fill the shape ${shape(fixed)}; it takes ${known}${open || batched ? " or a multiple" : ""}`);
  let rest = amount / known;
  const dims = fixed.map((size) => {
    if (size !== -1) return size;
    const mine = rest;
    rest = 1;
    return mine;
  });
  if (batched) return open ? [1, ...dims] : [rest, ...dims];
  if (rest !== 1) throw new Error(`${amount} values do not fill the shape ${shape(fixed)}; it takes ${known}`);
  return dims;
}

/** Whether sound can be in a shape: its last dimension is open, or long. */
function soundFits(dims) {
  const size = dims.at(-1) ?? 0;
  return size === -1 || size >= MIN_SAMPLES;
}

const MODES = {
  values: "Values",
  random: "Random",
  picture: "Picture",
  sound: "Sound",
  file: "File",
  none: "Leave out",
};

/**
 * @param {{input: any, batched: boolean, optional: boolean, form: any, problem: string | undefined, change: (form: Partial<Form>) => void}} props
 */
export function InputForm({ input, batched, optional, form, problem, change }) {
  const dims = own(input, batched);
  const textual = isText(input.datatype);
  const modes = textual
    ? ["values", "file", ...(optional ? ["none"] : [])]
    : ["values", "random", ...(pictureLayout(dims) ? ["picture"] : []), ...(isFloat(input.datatype) && dims.length <= 2 && soundFits(dims) ? ["sound"] : []), ...(optional ? ["none"] : [])];
  const id = `input-${input.name.replace(/\W/g, "-")}`;
  const pick = (mode) => change(mode === "random" ? { mode, values: random(input.datatype, product(form.sizes) * form.rows) } : { mode, values: null, file: null, pixels: null });
  // An empty field is no mistake yet, and a missing file is plain to see.
  const touched = form.mode === "values" && form.text !== "" ? problem : "";
  return html`<div class="input" role="group" aria-labelledby=${id}>
    <header><h3 id=${id}>${input.name}</h3><span class="dim">${input.datatype} ${shape(input.shape)}</span>
      <div class="segments" role="group" aria-label=${`How to fill ${input.name}`}>${modes.map((mode) => html`<button type="button" aria-pressed=${form.mode === mode ? "true" : "false"} onClick=${() => pick(mode)}>${textual && mode === "values" ? "Text" : MODES[mode]}</button>`)}</div>
    </header>
    ${form.mode === "values" && html`<${Values} input=${input} textual=${textual} form=${form} label=${id} change=${change} />`}
    ${form.mode === "random" && html`<${Random} input=${input} batched=${batched} dims=${dims} form=${form} change=${change} />`}
    ${form.mode === "file" && html`<${AnyFile} input=${input} form=${form} change=${change} />`}
    ${form.mode === "picture" && html`<${Picture} input=${input} dims=${dims} form=${form} change=${change} />`}
    ${form.mode === "sound" && html`<${Sound} input=${input} form=${form} change=${change} />`}
    ${touched && html`<p class="bad-text" role="alert">${touched}</p>`}
  </div>`;
}

function Values({ input, textual, form, label, change }) {
  const hint = textual ? "a text; each line is an element" : "numbers, or JSON such as [[1, 2], [3, 4]]";
  return html`<textarea aria-labelledby=${label} rows=${textual ? 2 : 4} placeholder=${hint} spellcheck=${textual ? "true" : "false"} value=${form.text} onInput=${(event) => change({ text: event.target.value })}></textarea>`;
}

function Sizes({ dims, form, batched, change }) {
  const open = dims.some((size) => size === -1) || batched;
  if (!open) return null;
  const set = (i, value) => change({ sizes: form.sizes.map((size, at) => (at === i ? Math.max(1, Math.min(MAX_ELEMENTS, value || 1)) : size)) });
  return html`${batched && html`<label class="line">rows <input type="number" min="1" max="4096" value=${form.rows} onInput=${(event) => change({ rows: Math.max(1, Math.min(4096, Number(event.target.value) || 1)) })} /></label>`}
    ${dims.map((size, i) => size === -1 && html`<label class="line">size ${i + 1} <input type="number" min="1" value=${form.sizes[i]} onInput=${(event) => set(i, Number(event.target.value))} /></label>`)}`;
}

function Random({ input, batched, dims, form, change }) {
  const amount = product(form.sizes) * form.rows;
  const remake = (more) => {
    const next = { ...form, ...more };
    const elements = product(next.sizes) * next.rows;
    change({ ...more, values: random(input.datatype, Math.min(elements, MAX_ELEMENTS)) });
  };
  const shown = (form.values ?? []).slice(0, 24).join(", ");
  return html`<div class="code dim" aria-hidden="true">${shown}${amount > 24 ? ", …" : ""}</div>
    <div class="sizes"><${Sizes} dims=${dims} form=${form} batched=${batched} change=${remake} /><button type="button" class="quiet small" onClick=${() => remake({})}>Others</button></div>`;
}

/**
 * A place to drop a file, which is also a button. The rest of the window takes a dropped or pasted file, too: the
 * browser would leave the page and open it.
 * @param {{accept: string, label: string, take: (file: File) => void, children?: any}} props
 */
function Drop({ accept, label, take, children }) {
  const [over, setOver] = useState(false);
  const drop = (event) => {
    if (event.defaultPrevented) return; // another place has it
    const [file] = (event.dataTransfer ?? event.clipboardData).files;
    if (!file) return;
    event.preventDefault();
    setOver(false);
    take(file);
  };
  const latest = useRef(drop);
  latest.current = drop;
  useEffect(() => {
    const away = new AbortController();
    addEventListener("dragover", (event) => event.preventDefault(), away);
    for (const name of ["drop", "paste"]) addEventListener(name, (event) => latest.current(event), away);
    return () => away.abort();
  }, []);
  return html`<div class="drop ${over ? "over" : ""}" onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
    ${children}
    <input type="file" accept=${accept} aria-label=${label} onChange=${(event) => event.target.files[0] && take(event.target.files[0])} />
  </div>`;
}

/** The address of a file for an element that shows it. */
function useUrl(file) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    if (!file) return undefined;
    const made = URL.createObjectURL(file);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [file]);
  return url;
}

function AnyFile({ input, form, change }) {
  const url = useUrl(form.file);
  const [kind, setKind] = useState("");
  const take = async (file) => {
    const content = new Uint8Array(await file.arrayBuffer());
    setKind(pictureType(content));
    change({ file, values: [content] });
  };
  return html`<${Drop} accept="" label=${`File for ${input.name}`} take=${take}>
    ${form.file && url && kind ? html`<img src=${url} alt="The chosen picture" />` : null}
    ${form.file ? html`<span>${form.file.name}, ${bytes(form.file.size)}</span>` : html`<strong>Drop or paste a file, or click to choose one</strong><span>It is sent as it is.</span>`}
  <//>`;
}

function Picture({ input, dims, form, change }) {
  const layout = pictureLayout(dims);
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [failure, setFailure] = useState("");
  const place = (sizes) => {
    const at = /** @type {any} */ (layout).order.indexOf("H");
    return { height: sizes[at], width: sizes[at + 1] };
  };
  const remake = async (more) => {
    const next = { ...form, ...more };
    if (!next.file || !layout) return change(more);
    try {
      const { width, height } = place(next.sizes);
      const pixels = await readPicture(next.file, width, height);
      const values = ofPicture(pixels, { ...layout, ...place(next.sizes) }, isFloat(input.datatype) ? SCALES[next.scale] : SCALES["0 to 255"]);
      setFailure("");
      change({ ...more, pixels, values });
    } catch {
      setFailure("This file is no picture that the browser can read.");
      change({ ...more, pixels: null, values: null });
    }
    return undefined;
  };
  useEffect(() => {
    if (!canvas.current || !form.pixels) return;
    canvas.current.width = form.pixels.width;
    canvas.current.height = form.pixels.height;
    canvas.current.getContext("2d")?.putImageData(form.pixels, 0, 0);
  }, [form.pixels]);
  return html`<${Drop} accept="image/*" label=${`Picture for ${input.name}`} take=${(file) => remake({ file })}>
      ${form.pixels ? html`<canvas class="picture preview" ref=${canvas} role="img" aria-label="The picture as the model gets it"></canvas><span>${form.file?.name}</span>`
        : html`<strong>Drop or paste a picture, or click to choose one</strong><span>It is cut and scaled to ${form.sizes.join(" × ")}.</span>`}
    <//>
    ${failure && html`<p class="bad-text" role="alert">${failure}</p>`}
    <div class="sizes">
      ${dims.map((size, i) => size === -1 && html`<label class="line">size ${i + 1} <input type="number" min="1" value=${form.sizes[i]} onInput=${(event) => remake({ sizes: form.sizes.map((each, at) => (at === i ? Math.max(1, Number(event.target.value) || 1) : each)) })} /></label>`)}
      ${isFloat(input.datatype) && html`<label class="line">values <select value=${form.scale} onChange=${(event) => remake({ scale: event.target.value })}>${Object.keys(SCALES).map((name) => html`<option>${name}</option>`)}</select></label>`}
    </div>`;
}

function Sound({ input, form, change }) {
  const url = useUrl(form.file);
  const [failure, setFailure] = useState("");
  const remake = async (more) => {
    const next = { ...form, ...more };
    if (!next.file) return change(more);
    try {
      const values = await readSound(next.file, next.rate);
      setFailure("");
      change({ ...more, values });
    } catch {
      setFailure("This file is no sound that the browser can read.");
      change({ ...more, values: null });
    }
    return undefined;
  };
  return html`<${Drop} accept="audio/*" label=${`Sound for ${input.name}`} take=${(file) => remake({ file })}>
      ${form.file && url && !failure ? html`<audio controls src=${url}></audio><span>${form.file.name}</span>` : html`<strong>Drop or paste a sound, or click to choose one</strong><span>It becomes one channel at the rate below.</span>`}
    <//>
    ${failure && html`<p class="bad-text" role="alert">${failure}</p>`}
    <div class="sizes"><label class="line">samples per second <select value=${form.rate} onChange=${(event) => remake({ rate: Number(event.target.value) })}>${RATES.map((rate) => html`<option value=${rate}>${rate}</option>`)}</select></label>
      ${form.values && html`<span>${form.values.length} samples</span>`}</div>`;
}
