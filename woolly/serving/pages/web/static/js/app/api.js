// Requests to the server. Paths are relative, so that a proxy may serve the page below a path prefix.

import { number } from "./format.js";

const KEY = "woolly.key";

/**
 * An error as one sentence for the user. `code` is the server's error code, `retryAfter` is in seconds, `key` is the
 * key of the rejected request, and `size` is {has, holds} in tokens for a conversation that is too long.
 */
export class ApiError extends Error {
  constructor(code, message, status = 0, retryAfter = null) {
    super(message);
    this.code = code;
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

let held = ""; // for browsers without storage

/** API key of this tab, stored until the tab is closed. */
export const key = {
  get() {
    try {
      return sessionStorage.getItem(KEY) ?? "";
    } catch {
      return held;
    }
  },
  set(value) {
    held = value;
    try {
      if (value) sessionStorage.setItem(KEY, value);
      else sessionStorage.removeItem(KEY);
    } catch {
      // Without storage, the key lasts until the page is closed.
    }
  },
};

/** Return true if the key can be sent: headers allow visible ASCII only. */
export const isSoundKey = (text) => /^[\x21-\x7e]+$/.test(text);

async function ask(path, { method = "GET", body = null, signal = null } = {}) {
  const headers = {};
  const shown = key.get();
  if (shown) headers["Authorization"] = `Bearer ${shown}`;
  if (body !== null) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body === null ? null : JSON.stringify(body), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (!response.ok) throw Object.assign(await refusal(response), { key: shown });
  return response;
}

async function json(path, options) {
  const response = await ask(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
}

function unreachable() {
  return new ApiError("unreachable", "The server cannot be reached; check that it is still running.");
}

async function refusal(response) {
  let told = {};
  try {
    const { error } = await response.json();
    told = typeof error === "string" ? { message: error } : (error ?? {}); // Ollama's errors are strings
  } catch {
    // The body is a proxy's page, so only the status is known.
  }
  const seconds = Number.parseFloat(response.headers.get("retry-after") ?? "");
  return toError(told, response.status, Number.isFinite(seconds) ? seconds : null);
}

// User-facing messages for errors whose server message is for developers. %s is the server's message.
const SENTENCES = {
  authentication_failed: "This server requires a valid key.",
  context_length_exceeded: "Too long for this model: %s",
  model_loading: "The model is still being loaded; try again in a moment.",
  queue_full: "The server is busy and its queue is full; try again in a moment.",
  rate_limit_exceeded: "Too many requests in one minute; try again in a moment.",
  server_stopping: "The server is stopping; try again when it is back.",
  too_many_connections: "The server has too many open connections; try again in a moment.",
};

function toError(told, status, retryAfter) {
  const code = told.code ?? `http_${status}`;
  const said = sentence(told.message ?? `The server answered with status ${status}.`);
  const size = code === "context_length_exceeded" ? sizeIn(said) : null;
  const message = size ? `Too long: ${number(size.has)} tokens, the model takes ${number(size.holds)}.` : (SENTENCES[code] ?? "%s").replace("%s", () => said);
  return Object.assign(new ApiError(code, sentence(message), status, retryAfter), { size });
}

/** Return the token counts of the conversation and of the context, if the server's message has both. */
function sizeIn(said) {
  const found = /has ([\d,]+) tokens.*?(?:holds|at most) ([\d,]+)/.exec(said);
  if (!found) return null;
  const [has, holds] = found.slice(1).map((text) => Number(text.replace(/,/g, "")));
  return { has, holds };
}

/** Add a full stop. The first letter is not capitalized, because it may belong to a file or field name. */
function sentence(text) {
  const whole = text.trim();
  return whole + (/[.!?]$/.test(whole) ? "" : ".");
}

const named = (name) => `api/v1/models/${encodeURIComponent(name)}`;

export const models = () => json("api/v1/models");
export const catalogue = () => json("api/v1/catalogue");
export const loadModel = (name) => json(`${named(name)}/load`, { method: "POST", body: {} });
export const unloadModel = (name) => json(`${named(name)}/unload`, { method: "POST", body: {} });
export const stats = (model) => json(`api/v1/performance/stats${model ? `?model=${encodeURIComponent(model)}` : ""}`);
export const slots = () => json("slots");
export const props = (model) => json(`props?model=${encodeURIComponent(model)}`);
export const tools = () => json("mcp/tools");
export const startServer = (name) => json("mcp/start", { method: "POST", body: { server: name } });
export const callTool = (name, text, signal) => json("mcp/call", { method: "POST", body: { name, arguments: text }, signal });

export const endThought = (id) => json("v1/chat/completions/control", { method: "POST", body: { id, action: "reasoning_end" } });

/** Make the server prefill the conversation while the user is typing. */
export const readAhead = (body, signal) => json("v1/chat/completions/read_ahead", { method: "POST", body, signal });

/** Return ok, loading, draining or failed; needs no key. */
export const health = async () => (await json("api/v1/health")).status;

/** Download a model; yield {completed, total} in bytes. ApiError if the server rejects the request or fails. */
export async function* pull(name) {
  const response = await ask("api/pull", { method: "POST", body: { model: name } });
  for await (const line of linesOf(response.body)) {
    const step = JSON.parse(line);
    if (step.error) throw toError({ message: step.error }, 0, null);
    if (step.total) yield step;
  }
}

async function* linesOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) {
      const lines = (rest + read.value).split("\n");
      rest = lines.pop();
      yield* lines.filter((line) => line.trim());
    }
    if (rest.trim()) yield rest;
  } catch (error) {
    if (error instanceof SyntaxError || error instanceof ApiError) throw error;
    throw new ApiError("cut_off", "The connection was interrupted; the server continues the download.");
  }
}

/** Yield the chunks of an answer. ApiError if the server rejects the request or the stream has an error. */
export async function* chat(body, signal) {
  const response = await ask("v1/chat/completions", { method: "POST", body, signal });
  let isComplete = false;
  for await (const data of events(response.body)) {
    isComplete ||= data === "[DONE]";
    if (isComplete) continue;
    const chunk = JSON.parse(data);
    if (chunk.error) throw toError(chunk.error, 0, null);
    yield chunk;
  }
  if (!isComplete) throw new ApiError("cut_off", "The connection was interrupted before the answer was complete; the received part is kept.");
}

/** Yield the data of server-sent events. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const text = line.endsWith("\r") ? line.slice(0, -1) : line;
        if (text.startsWith("data:")) data.push(text.slice(text[5] === " " ? 6 : 5));
        else if (text === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError("cut_off", "The connection was interrupted before the answer was complete; the received part is kept.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
