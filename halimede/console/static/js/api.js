// Calls of the server's protocol by way of the console's port, and the stream of events.

const TOKEN = "console-token";
const SILENCE_MS = 12_000;
const RETRY_MS = [300, 1000, 2000, 4000];

export class ApiError extends Error {
  /** @param {number} status @param {string} text */
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** Takes the token out of the address, so that it is in no history and no picture of the screen. */
export function takeToken() {
  const found = /^#token=([A-Za-z0-9_-]+)/.exec(location.hash);
  if (!found) return;
  localStorage.setItem(TOKEN, found[1]);
  history.replaceState(null, "", `${location.pathname}#/`);
}

export function token() {
  return localStorage.getItem(TOKEN) ?? "";
}

export function setToken(text) {
  localStorage.setItem(TOKEN, text.trim().replace(/^.*#token=/, ""));
}

/** Whether the server takes the token. */
export async function tokenWorks() {
  if (!token()) return false;
  const answer = await fetch("/api/token", { method: "POST", headers: headers() });
  return answer.ok;
}

function headers(more = {}) {
  return token() ? { Authorization: `Bearer ${token()}`, ...more } : more;
}

/**
 * @param {string} path of the protocol, such as /v2/models
 * @param {{method?: string, body?: BodyInit, headers?: Record<string, string>, signal?: AbortSignal}} [options]
 * @returns {Promise<Response>}
 */
export async function call(path, options = {}) {
  let answer;
  try {
    answer = await fetch(`/api${path}`, { ...options, headers: headers(options.headers), cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "the console does not answer; is the server running?");
  }
  if (!answer.ok) throw new ApiError(answer.status, await reason(answer));
  return answer;
}

async function reason(answer) {
  const text = await answer.text();
  try {
    const found = JSON.parse(text);
    return found.error ?? text;
  } catch {
    return text || `status ${answer.status}`;
  }
}

/** @param {string} path @param {object} [options] */
export async function getJson(path, options = {}) {
  return (await call(path, options)).json();
}

/** @param {string} path @param {unknown} [document] */
export async function postJson(path, document = {}) {
  const answer = await call(path, {
    method: "POST",
    body: JSON.stringify(document),
    headers: { "Content-Type": "application/json" },
  });
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

/** The path of a model, and of one of its versions. */
export function modelPath(name, version = "") {
  const path = `/v2/models/${encodeURIComponent(name)}`;
  return version ? `${path}/versions/${version}` : path;
}

/**
 * The events of a stream, parsed. Ends with the stream.
 * @param {ReadableStream<Uint8Array>} body
 */
export async function* eventsOf(body) {
  const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const lines = rest.slice(0, end).split("\n");
      rest = rest.slice(end + 2);
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length) yield JSON.parse(data.join("\n"));
    }
  }
}

/**
 * Follows the server for as long as the page is open. `onEvent` gets each event, `onState` gets "live", or the reason
 * why there is nothing to see.
 * @param {(event: any) => void} onEvent
 * @param {(state: string, status: number) => void} onState
 */
export async function follow(onEvent, onState) {
  for (let tries = 0; ; ) {
    const abort = new AbortController();
    let timer = setTimeout(() => abort.abort(), SILENCE_MS);
    try {
      const answer = await call("/events", { signal: abort.signal });
      for await (const event of eventsOf(/** @type {ReadableStream<Uint8Array>} */ (answer.body))) {
        clearTimeout(timer);
        timer = setTimeout(() => abort.abort(), SILENCE_MS);
        tries = 0;
        onState("live", 200);
        onEvent(event);
      }
      onState("the stream of events has ended", 0);
    } catch (error) {
      onState(error instanceof Error ? error.message : String(error), error instanceof ApiError ? error.status : 0);
    } finally {
      clearTimeout(timer);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]));
    tries += 1;
  }
}
