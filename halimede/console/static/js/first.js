// What a newcomer can do: models to try, by what one needs for it. Shown if nobody has used the server yet.

import { html } from "./lib.js";
import { useConfigs } from "./configs.js";
import { startOf } from "./input_form.js";
import { useStore } from "./store.js";
import { pictureLayout } from "./tensors.js";

/** Models whose configurations are read, and links that one kind has. */
const MOST_MODELS = 40;
const MOST_LINKS = 8;

/** What a form that begins in a mode asks for. A model of several inputs is listed with the first of these. */
const KINDS = { picture: "a picture", sound: "a sound", values: "a text", file: "a file", random: "numbers" };

let isFresh = /** @type {boolean | null} */ (null);

function shapesOf(tensors) {
  return (tensors ?? []).map((tensor) => ({
    name: tensor.name,
    optional: tensor.optional,
    datatype: tensor.data_type.replace("TYPE_", "").replace("STRING", "BYTES"),
    shape: tensor.dims.map(Number),
  }));
}

/** Whether a model makes a tensor of the shape of a picture, so that the file it gets is one. */
function makesPictures(config) {
  return shapesOf(config?.output).some(({ shape }) => pictureLayout(shape) !== null);
}

/**
 * What one needs to try a model: a key of KINDS.
 * @param {any} config @param {Map<string, any>} configs those of the steps of an ensemble
 */
export function kindOf(config, configs) {
  const inputs = shapesOf(config.input).filter((input) => !input.optional);
  const steps = config.ensemble_scheduling?.step ?? [];
  const kinds = inputs.map((input) => {
    const { mode } = startOf(input, false);
    if (mode !== "file") return mode;
    const readers = steps.filter((step) => Object.values(step.input_map ?? {}).includes(input.name)).map((step) => configs.get(step.model_name));
    return [config, ...readers].some(makesPictures) ? "picture" : "file";
  });
  return Object.keys(KINDS).find((kind) => kinds.includes(kind)) ?? "random";
}

export function FirstSteps() {
  const { models } = useStore();
  const all = [...models.values()];
  isFresh ??= all.every(({ row }) => !row.success && !row.fail);
  const names = isFresh ? [...new Set(all.filter((model) => model.ready).map((model) => model.name))].slice(0, MOST_MODELS) : [];
  const { configs, done } = useConfigs(names);
  if (!names.length || !done) return null;
  const known = names.filter((name) => configs.get(name)?.input?.length);
  // An ensemble takes what people have; its steps take tensors.
  known.sort((a, b) => Number(Boolean(configs.get(b).ensemble_scheduling)) - Number(Boolean(configs.get(a).ensemble_scheduling)));
  const rows = Object.entries(KINDS)
    .map(([kind, label]) => ({ label, found: known.filter((name) => kindOf(configs.get(name), configs) === kind) }))
    .filter(({ found }) => found.length);
  return html`<section class="panel first" aria-labelledby="first">
    <header><h2 id="first">Try a model with …</h2></header>
    <dl class="body">${rows.map(({ label, found }) => html`<dt>${label}</dt><dd>${found.slice(0, MOST_LINKS).map((name) => html`<a href=${`#/models/${encodeURIComponent(name)}/try`}>${name}</a>`)}</dd>`)}</dl>
  </section>`;
}
