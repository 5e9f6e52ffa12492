// Charts over time, drawn by uPlot in the colours of the page.

import uPlot from "uplot";
import { html, useEffect, useRef } from "./lib.js";
import { useWidth } from "./parts.js";

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/**
 * @param {{
 *   data: number[][], series: {label: string, colour: string, fill?: boolean}[], height?: number,
 *   format: (value: number) => string, label: string,
 * }} props `data` has the times first, then a list for each series, the topmost first.
 */
export function TimeChart({ data, series, height = 180, format, label }) {
  const { ref, width } = useWidth();
  const plot = useRef(/** @type {any} */ (null));
  const theme = `${document.documentElement.dataset.theme ?? ""}${matchMedia("(prefers-color-scheme: dark)").matches}`;
  useEffect(() => {
    if (!width || !ref.current) return undefined;
    const dim = colour("dim");
    const grid = { stroke: colour("line"), width: 1 };
    const axis = { stroke: dim, grid, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const made = new uPlot(
      {
        width,
        height,
        legend: { show: false },
        cursor: { y: false, points: { size: 5 }, drag: { x: false, y: false } },
        scales: { y: { range: (_, __, high) => [0, Number.isFinite(high) && high > 0 ? high * 1.08 : 1] } },
        axes: [
          { ...axis, grid: { show: false }, space: 70, size: 30, values: (_, times) => times.map((time) => new Date(time * 1000).toTimeString().slice(0, 8)) },
          { ...axis, size: 62, values: (_, values) => values.map(format) },
        ],
        series: [
          {},
          ...series.map((each) => ({
            label: each.label,
            stroke: colour(each.colour),
            fill: each.fill ? `color-mix(in srgb, ${colour(each.colour)} 72%, transparent)` : undefined,
            width: each.fill ? 0 : 1.75,
            points: { show: false },
          })),
        ],
      },
      /** @type {any} */ (data),
      ref.current,
    );
    plot.current = made;
    return () => made.destroy();
  }, [width, height, theme, series.map((each) => each.label).join()]);
  useEffect(() => plot.current?.setData(data), [data]);
  return html`<div class="chart" ref=${ref} role="img" aria-label=${label} style=${{ height: `${height}px`, minHeight: 0 }}></div>`;
}

/** @param {{items: {colour: string, label: string, value: string}[]}} props */
export function Legend({ items }) {
  return html`<div class="legend">${items.map((item) => html`<span class=${`c-${item.colour}`}><i></i><span class="c-label">${item.label} <b>${item.value}</b></span></span>`)}</div>`;
}

/**
 * Bars with a label before and a value behind each.
 * @param {{rows: {label: string, value: number, text: string}[]}} props
 */
export function Bars({ rows }) {
  const top = Math.max(...rows.map((row) => row.value), 1e-12);
  return html`<div class="bars">${rows.map((row) => html`
    <span class="label" title=${row.label}>${row.label}</span>
    <span class="bar" aria-hidden="true"><svg viewBox="0 0 100 10" preserveAspectRatio="none"><rect width=${Math.max(0, (row.value / top) * 100)} height="10" /></svg></span>
    <span class="num">${row.text}</span>`)}</div>`;
}

/**
 * Which part of the instances was busy at each time: a lane for each, filled from below.
 * @param {{values: number[], lanes: number}} props
 */
export function Lanes({ values, lanes }) {
  const { ref, width } = useWidth();
  const shown = Math.min(lanes, 16);
  const lane = shown > 8 ? 10 : 16;
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context || !width) return;
    const ratio = devicePixelRatio || 1;
    context.canvas.width = width * ratio;
    context.canvas.height = shown * (lane + 4) * ratio;
    context.scale(ratio, ratio);
    const step = width / values.length;
    for (let i = 0; i < shown; i += 1) {
      const y = (shown - 1 - i) * (lane + 4);
      context.globalAlpha = 1;
      context.fillStyle = colour("raised");
      context.fillRect(0, y, width, lane);
      context.fillStyle = colour("infer");
      values.forEach((busy, at) => {
        // Above 16 instances a lane stands for several.
        const share = Number.isFinite(busy) ? Math.min(1, Math.max(0, (busy / lanes) * shown - i)) : 0;
        if (!share) return;
        context.globalAlpha = 0.25 + 0.75 * share;
        context.fillRect(at * step, y, Math.ceil(step), lane);
      });
    }
  });
  return html`<div ref=${ref}><canvas class="lanes" ref=${canvas} style=${{ height: `${shown * (lane + 4)}px` }} role="img" aria-label=${`Busy instances over time, of ${lanes}`}></canvas></div>`;
}
