// Tensors: their values as text, as random data, of pictures and of sound, and as the bytes of the binary protocol.

/** Elements that a tensor of a form may have: more is for programs. */
export const MAX_ELEMENTS = 1 << 24;

const ARRAYS = {
  UINT8: Uint8Array, UINT16: Uint16Array, UINT32: Uint32Array, UINT64: BigUint64Array,
  INT8: Int8Array, INT16: Int16Array, INT32: Int32Array, INT64: BigInt64Array,
  FP32: Float32Array, FP64: Float64Array,
};

export const isText = (datatype) => datatype === "BYTES";
export const isFloat = (datatype) => /^(B?FP|BF)/.test(datatype);

export function product(dims) {
  return dims.reduce((all, size) => all * size, 1);
}

/**
 * The bytes of a tensor as the binary extension has them.
 * @param {string} datatype @param {ArrayLike<any>} values strings, bytes, numbers or booleans
 */
export function encode(datatype, values) {
  if (isText(datatype)) {
    const parts = Array.from(values, (value) => (value instanceof Uint8Array ? value : new TextEncoder().encode(String(value))));
    const bytes = new Uint8Array(parts.reduce((all, part) => all + 4 + part.length, 0));
    let at = 0;
    for (const part of parts) {
      new DataView(bytes.buffer).setUint32(at, part.length, true);
      bytes.set(part, at + 4);
      at += 4 + part.length;
    }
    return bytes;
  }
  if (datatype === "BOOL") return Uint8Array.from(values, (value) => (value ? 1 : 0));
  if (datatype === "FP16" || datatype === "BF16") {
    const bits = Uint16Array.from(values, datatype === "FP16" ? toHalf : toBfloat);
    return new Uint8Array(bits.buffer);
  }
  const kind = /** @type {any} */ (ARRAYS)[datatype];
  const big = datatype.endsWith("INT64");
  const array = kind.from(values, big ? (value) => BigInt(Math.trunc(Number(value))) : undefined);
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

/**
 * @param {string} datatype @param {Uint8Array} bytes
 * @returns {any[]} numbers, booleans, or for BYTES the bytes of each element
 */
export function decode(datatype, bytes) {
  if (isText(datatype)) {
    const found = [];
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    for (let at = 0; at + 4 <= bytes.length; ) {
      const size = view.getUint32(at, true);
      found.push(bytes.subarray(at + 4, at + 4 + size));
      at += 4 + size;
    }
    return found;
  }
  const copy = bytes.slice();
  if (datatype === "BOOL") return Array.from(copy, Boolean);
  if (datatype === "FP16") return Array.from(new Uint16Array(copy.buffer), fromHalf);
  if (datatype === "BF16") return Array.from(new Uint16Array(copy.buffer), fromBfloat);
  const kind = /** @type {any} */ (ARRAYS)[datatype];
  return Array.from(new kind(copy.buffer), Number);
}

function toBfloat(value) {
  const bits = new Uint32Array(Float32Array.of(value).buffer)[0];
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

function fromBfloat(bits) {
  return new Float32Array(Uint32Array.of(bits << 16).buffer)[0];
}

function toHalf(value) {
  const bits = new Uint32Array(Float32Array.of(value).buffer)[0];
  const sign = (bits >>> 16) & 0x8000;
  const exponent = ((bits >>> 23) & 0xff) - 112;
  const mantissa = bits & 0x7fffff;
  if (Number.isNaN(value)) return 0x7e00;
  if (exponent >= 31) return sign | 0x7c00;
  if (exponent <= 0) return exponent < -10 ? sign : sign | ((mantissa | 0x800000) >> (14 - exponent));
  return sign | (exponent << 10) | (mantissa >> 13);
}

function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const mantissa = bits & 1023;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  if (exponent === 0) return sign * mantissa * 2 ** -24;
  return sign * (1 + mantissa / 1024) * 2 ** (exponent - 15);
}

/** Random values that most models take: small numbers, words. */
export function random(datatype, amount) {
  const words = ["red", "green", "blue", "sun", "rain", "sea", "hill", "river"];
  const make = /** @type {() => any} */ (isText(datatype)
    ? () => words[Math.floor(Math.random() * words.length)]
    : datatype === "BOOL"
      ? () => Math.random() < 0.5
      : isFloat(datatype)
        ? () => Number(Math.random().toFixed(4))
        : () => Math.floor(Math.random() * 100));
  return Array.from({ length: amount }, make);
}

/**
 * The values in a text: JSON of any nesting, or numbers with spaces or commas between; for BYTES a line for each.
 * @param {string} datatype @param {string} text
 * @returns {{values: any[], dims: number[] | null}} `dims` are those of nested lists
 */
export function parse(datatype, text) {
  if (isText(datatype)) {
    const trimmed = text.trim();
    if (!trimmed.startsWith("[")) return { values: text.split("\n"), dims: null };
  }
  const trimmed = text.trim();
  if (!trimmed.startsWith("[")) {
    const values = trimmed.split(/[\s,;]+/).filter(Boolean).map((word) => scalar(datatype, word));
    return { values, dims: null };
  }
  const document = JSON.parse(trimmed);
  const dims = [];
  for (let each = document; Array.isArray(each); each = each[0]) dims.push(each.length);
  const values = document.flat(Infinity).map((each) => (isText(datatype) ? String(each) : scalar(datatype, each)));
  return { values, dims: dims.length > 1 ? dims : null };
}

function scalar(datatype, word) {
  if (datatype === "BOOL") {
    if (/^(true|1)$/i.test(String(word))) return true;
    if (/^(false|0)$/i.test(String(word))) return false;
    throw new Error(`“${word}” is neither true nor false`);
  }
  const value = Number(word);
  if (Number.isNaN(value) && !/^nan$/i.test(String(word))) throw new Error(`“${word}” is not a number`);
  if (!isFloat(datatype) && !Number.isInteger(value)) throw new Error(`“${word}” is not a whole number, which ${datatype} needs`);
  return value;
}

/** How a shape may lie in a picture: `channels` is 1, 3 or 4. Null if it is no picture's. */
export function pictureLayout(dims) {
  if (dims.length < 2 || dims.length > 3) return null;
  const [a, b, c] = dims;
  const usual = (size) => size === 1 || size === 3 || size === 4;
  const side = (size) => size === -1 || size >= 8;
  if (dims.length === 2) return side(a) && side(b) ? { order: "HW", channels: 1, height: a, width: b } : null;
  if (usual(a) && side(b) && side(c)) return { order: "CHW", channels: a, height: b, width: c };
  if (usual(c) && side(a) && side(b)) return { order: "HWC", channels: c, height: a, width: b };
  return null;
}

export const SCALES = {
  "0 to 1": (value) => value / 255,
  "0 to 255": (value) => value,
  "-1 to 1": (value) => value / 127.5 - 1,
  ImageNet: (value, channel) => (value / 255 - [0.485, 0.456, 0.406][channel % 3]) / [0.229, 0.224, 0.225][channel % 3],
};

/**
 * The values of a picture in the layout of a tensor.
 * @param {ImageData} picture of the right size
 */
export function ofPicture(picture, layout, scale) {
  const { width, height, data } = picture;
  const { channels, order } = layout;
  const values = new Array(width * height * channels);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const at = (y * width + x) * 4;
      for (let channel = 0; channel < channels; channel += 1) {
        const level = channels === 1 ? 0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2] : data[at + channel];
        const to = order === "HWC" ? (y * width + x) * channels + channel : (channel * height + y) * width + x;
        values[to] = scale(level, channel);
      }
    }
  }
  return values;
}

/** Reads a file as a picture of this size; the middle of it, as large as possible. @param {Blob} file */
export async function readPicture(file, width, height) {
  const bitmap = await createImageBitmap(file);
  const w = width > 0 ? width : bitmap.width;
  const h = height > 0 ? height : bitmap.height;
  const canvas = new OffscreenCanvas(w, h);
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const scale = Math.max(w / bitmap.width, h / bitmap.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, (w - bitmap.width * scale) / 2, (h - bitmap.height * scale) / 2, bitmap.width * scale, bitmap.height * scale);
  return context.getImageData(0, 0, w, h);
}

/** Reads a file as sound of one channel at this rate. @param {Blob} file */
export async function readSound(file, rate) {
  const context = new OfflineAudioContext(1, 1, rate);
  const sound = await context.decodeAudioData(await file.arrayBuffer());
  const values = new Float32Array(sound.length);
  for (let channel = 0; channel < sound.numberOfChannels; channel += 1) {
    sound.getChannelData(channel).forEach((value, i) => (values[i] += value / sound.numberOfChannels));
  }
  return Array.from(values);
}

/** The media type of a file's first bytes, if it is a picture that browsers show; an empty text otherwise. */
export function pictureType(bytes) {
  const starts = (...first) => first.every((value, i) => bytes[i] === value);
  if (starts(0x89, 0x50, 0x4e, 0x47)) return "image/png";
  if (starts(0xff, 0xd8, 0xff)) return "image/jpeg";
  if (starts(0x47, 0x49, 0x46, 0x38)) return "image/gif";
  if (starts(0x52, 0x49, 0x46, 0x46) && bytes[8] === 0x57) return "image/webp";
  return "";
}

/** Text of bytes, or null if they are no text. @param {Uint8Array} bytes */
export function textOf(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/**
 * A request of the binary protocol.
 * @param {{name: string, datatype: string, dims: number[], values: any[]}[]} inputs
 * @param {{name: string, classes: number}[]} outputs `classes` 0: the values
 * @param {Record<string, unknown>} parameters
 * @returns {{body: Blob, headers: Record<string, string>}}
 */
export function request(inputs, outputs, parameters) {
  const parts = inputs.map(({ datatype, values }) => encode(datatype, values));
  const head = {
    inputs: inputs.map(({ name, datatype, dims }, i) => ({ name, datatype, shape: dims, parameters: { binary_data_size: parts[i].length } })),
    outputs: outputs.map(({ name, classes }) => ({ name, parameters: classes ? { binary_data: true, classification: classes } : { binary_data: true } })),
    ...(Object.keys(parameters).length ? { parameters } : {}),
  };
  const text = new TextEncoder().encode(JSON.stringify(head));
  return {
    body: new Blob([text, .../** @type {any[]} */ (parts)]),
    headers: { "Content-Type": "application/octet-stream", "Inference-Header-Content-Length": String(text.length) },
  };
}

/**
 * The outputs of an answer.
 * @param {Response} answer
 * @returns {Promise<{name: string, datatype: string, dims: number[], values: any[]}[]>}
 */
export async function response(answer) {
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const length = Number(answer.headers.get("Inference-Header-Content-Length") ?? bytes.length);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(0, length)));
  let at = length;
  return (head.outputs ?? []).map((output) => {
    const { name, datatype, shape, data, parameters } = output;
    const size = parameters?.binary_data_size;
    if (size === undefined) {
      const values = isText(datatype) ? data.flat(Infinity).map((each) => new TextEncoder().encode(each)) : data.flat(Infinity);
      return { name, datatype, dims: shape, values };
    }
    at += size;
    return { name, datatype, dims: shape, values: decode(datatype, bytes.subarray(at - size, at)) };
  });
}

