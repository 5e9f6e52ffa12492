// What a model answered: classes with labels, text, pictures, charts, tables, or a stream.

import { html, useEffect, useMemo, useRef, useState } from "./lib.js";
import { Bars } from "./charts.js";
import { bytes, duration, number, shape } from "./format.js";
import { Copy } from "./parts.js";
import { isText, pictureLayout, pictureType, product, textOf } from "./tensors.js";

const MAX_TEXTS = 100;
const MAX_CELLS = 600;
const MAX_BARS = 24;
const MAX_ROWS_SHOWN = 8;
const MIN_SIDE = 8;

/** @param {{tensors: any[], outputs: {name: string, classes: number}[], batched: boolean}} props */
export function Answer({ tensors, outputs, batched }) {
  return html`<div class="outputs">${tensors.map((tensor) => html`<div class="output" key=${tensor.name}>
    <header><h3>${tensor.name}</h3><span class="dim">${tensor.datatype} ${shape(tensor.dims)}</span></header>
    <${Output} tensor=${tensor} classes=${outputs.find(({ name }) => name === tensor.name)?.classes ?? 0} batched=${batched} />
  </div>`)}</div>`;
}

function Output({ tensor, classes, batched }) {
  if (!tensor.values.length) return html`<p class="dim">It is empty.</p>`;
  if (classes) return html`<${Classes} tensor=${tensor} />`;
  if (isText(tensor.datatype)) return html`<${Texts} values=${tensor.values} />`;
  return html`<${Numbers} tensor=${tensor} batched=${batched} />`;
}

/** Classes arrive as texts "score:index:label". */
function Classes({ tensor }) {
  const each = Number(tensor.dims.at(-1));
  const found = tensor.values.map((value) => {
    const [score, index, ...label] = (textOf(value) ?? "").split(":");
    return { label: label.join(":") || `class ${index}`, value: Number(score), text: number(Number(score)) };
  });
  const rows = Array.from({ length: Math.min(MAX_ROWS_SHOWN, found.length / each) }, (_, i) => found.slice(i * each, (i + 1) * each));
  return html`${rows.map((row, i) => html`${rows.length > 1 && html`<p class="dim">row ${i + 1}</p>`}<${Bars} rows=${row.map((one) => ({ ...one, value: Math.max(0, one.value) }))} />`)}`;
}

function Texts({ values }) {
  return html`${values.slice(0, MAX_TEXTS).map((value) => html`<${Text} value=${value} />`)}
    ${values.length > MAX_TEXTS && html`<p class="dim">and ${values.length - MAX_TEXTS} more</p>`}`;
}

function Text({ value }) {
  const type = pictureType(value);
  const text = type ? null : textOf(value);
  const [url, setUrl] = useState("");
  useEffect(() => {
    if (!type) return undefined;
    const made = URL.createObjectURL(new Blob([value], { type }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [value]);
  if (type) return url && html`<img class="picture" src=${url} alt="The picture that the model answered" />`;
  if (text === null) return html`<p class="dim">${bytes(value.length)} that are no text</p>`;
  return html`<pre tabindex="0">${pretty(text)}</pre>`;
}

/** JSON with its lines broken; another text as it is. */
function pretty(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function Numbers({ tensor, batched }) {
  const { dims, values } = tensor;
  const inner = batched ? dims.slice(1) : dims;
  const layout = pictureLayout(inner);
  const picture = layout && layout.height >= MIN_SIDE && layout.width >= MIN_SIDE && values.length >= MIN_SIDE * MIN_SIDE;
  const row = product(inner);
  const vector = inner.length === 1 && row > 1 && row <= MAX_BARS;
  const plainNumbers = values.map(Number);
  return html`
    ${picture && html`<${PictureOf} values=${plainNumbers.slice(0, row)} layout=${layout} />`}
    ${vector ? html`<${Bars} rows=${plainNumbers.slice(0, row).map((value, i) => ({ label: String(i), value: Math.max(0, value), text: number(value) }))} />` : null}
    ${values.length === 1 ? html`<p class="big-value">${String(values[0])}</p>` : null}
    ${!picture && !vector && values.length > 1 ? html`<${Facts} values=${plainNumbers} />` : null}
    ${values.length > 1 && html`<details><summary>${vector || picture ? "The numbers" : `${Math.min(values.length, MAX_CELLS)} of ${values.length} numbers`}</summary><${Table} values=${values} columns=${Math.min(16, inner.at(-1) || 1)} /><${Copy} text=${JSON.stringify(values)} label="Copy all" /></details>`}`;
}

function Facts({ values }) {
  const facts = useMemo(() => {
    let [low, high, sum] = [Infinity, -Infinity, 0];
    for (const value of values) {
      low = Math.min(low, value);
      high = Math.max(high, value);
      sum += value;
    }
    return { low, high, mean: sum / values.length };
  }, [values]);
  return html`<p class="timing"><span>least <b>${number(facts.low)}</b></span><span>mean <b>${number(facts.mean)}</b></span><span>most <b>${number(facts.high)}</b></span></p>`;
}

function Table({ values, columns }) {
  const shown = values.slice(0, MAX_CELLS);
  const rows = Array.from({ length: Math.ceil(shown.length / columns) }, (_, i) => shown.slice(i * columns, (i + 1) * columns));
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Numbers"><table class="values"><tbody>${rows.map((row) => html`<tr>${row.map((value) => html`<td>${typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(5) : String(value)}</td>`)}</tr>`)}</tbody></table></div>`;
}

/** A tensor as a picture: its own values if they are levels, otherwise from the least to the most. */
function PictureOf({ values, layout }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const { width, height, channels, order } = layout;
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    context.canvas.width = width;
    context.canvas.height = height;
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    if (low >= 0 && high <= 1 && high > 0.5) [low, high] = [0, 1];
    else if (low >= 0 && high > 64 && high <= 255) [low, high] = [0, 255];
    const picture = context.createImageData(width, height);
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        for (let part = 0; part < 3; part += 1) {
          const channel = channels >= 3 ? part : 0;
          const at = order === "HWC" ? (y * width + x) * channels + channel : (channel * height + y) * width + x;
          picture.data[(y * width + x) * 4 + part] = ((values[at] - low) / (high - low || 1)) * 255;
        }
        picture.data[(y * width + x) * 4 + 3] = 255;
      }
    }
    context.putImageData(picture, 0, 0);
  }, [values]);
  return html`<canvas class="picture" ref=${canvas} role="img" aria-label=${`The tensor as a picture of ${width} × ${height}`}></canvas>`;
}

/**
 * The responses of a stream, as they come. Those of one text output read on.
 * @param {{parts: {ms: number, event: any}[], outputs: any[], busy: boolean}} props
 */
export function Stream({ parts, outputs, busy }) {
  const texts = outputs.filter(({ datatype }) => isText(datatype)).map(({ name }) => name);
  const text = texts.length ? parts.map(({ event }) => [event[texts[0]] ?? ""].flat().join("")).join("") : "";
  const first = parts[0]?.ms;
  const last = parts.at(-1)?.ms ?? 0;
  const rate = parts.length > 1 ? (parts.length - 1) / ((last - first) / 1000) : NaN;
  const others = outputs.filter(({ name }) => name !== texts[0]).map(({ name }) => name);
  return html`
    <p class="timing"><span><b>${parts.length}</b> responses</span><span>first after <b>${duration(first)}</b></span><span><b>${number(rate)}</b> per second</span>${busy && html`<span>running …</span>`}</p>
    ${texts.length > 0 && html`<div><h3 class="mono">${texts[0]}</h3><pre class="tokens" tabindex="0" aria-label=${texts[0]}>${text}</pre></div>`}
    ${(others.length > 0 || !texts.length) && html`<details open=${!texts.length}><summary>All responses</summary><div class="scroll picks" tabindex="0" role="region" aria-label="Responses"><table class="table"><thead><tr><th>after</th>${outputs.map(({ name }) => html`<th>${name}</th>`)}</tr></thead>
      <tbody>${parts.slice(-200).map(({ ms, event }) => html`<tr><td>${duration(ms)}</td>${outputs.map(({ name }) => html`<td class="mono">${JSON.stringify(event[name])}</td>`)}</tr>`)}</tbody></table></div></details>`}`;
}
