// Api: what the page asks the server for. Paths are relative, so that a proxy may put the server below a folder.

import { number } from "./format.js";

const KEY = "woolly.key";

/**
 * What went wrong, as one sentence for people; `code` is the server's word for it, `retryAfter` in seconds. `key` is the
 * one that a refused request brought, `size` {has, holds} the tokens of a conversation that is too long.
 */
export class ApiError extends Error {
  constructor(code, message, status = 0, retryAfter = null) {
    super(message);
    this.code = code;
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

let held = ""; // for a browser whose storage is closed

/** The key of this tab; kept until it is closed. */
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
      // It lasts until the page is left.
    }
  },
};

/** Whether a page may send this key at all: headers carry visible ASCII. */
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
    told = typeof error === "string" ? { message: error } : (error ?? {}); // Ollama's errors are texts
  } catch {
    // A proxy's page: the status is all there is.
  }
  const seconds = Number.parseFloat(response.headers.get("retry-after") ?? "");
  return toError(told, response.status, Number.isFinite(seconds) ? seconds : null);
}

// Sentences for people, for errors whose own sentence is for programmers. %s is the server's sentence.
const SENTENCES = {
  authentication_failed: "This server asks for a key: enter one that it knows.",
  context_length_exceeded: "Too long for this model: %s",
  model_loading: "The model is still being loaded; try again in a moment.",
  queue_full: "The server is busy and its queue is full; try again in a moment.",
  rate_limit_exceeded: "Too many requests in one minute; try again in a moment.",
  server_stopping: "The server is about to stop; try again when it is back.",
  too_many_connections: "The server has too many open connections; try again in a moment.",
};

function toError(told, status, retryAfter) {
  const code = told.code ?? `http_${status}`;
  const said = sentence(told.message ?? `The server answered with status ${status}.`);
  const size = code === "context_length_exceeded" ? sizeIn(said) : null;
  const message = size ? `Too long: ${number(size.has)} tokens, the model takes ${number(size.holds)}.` : (SENTENCES[code] ?? "%s").replace("%s", () => said);
  return Object.assign(new ApiError(code, sentence(message), status, retryAfter), { size });
}

/** The tokens that a conversation has, and those that the context holds, if the server's sentence names both. */
function sizeIn(said) {
  const found = /has ([\d,]+) tokens.*?(?:holds|at most) ([\d,]+)/.exec(said);
  if (!found) return null;
  const [has, holds] = found.slice(1).map((text) => Number(text.replace(/,/g, "")));
  return { has, holds };
}

/** With a full stop. The first letter stays: it may be that of a name, such as a file's or a field's. */
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

/** Has the server compute what is settled of a conversation whose last message is being typed. */
export const readAhead = (body, signal) => json("v1/chat/completions/read_ahead", { method: "POST", body, signal });

/** ok, loading, draining or failed; needs no key. */
export const health = async () => (await json("api/v1/health")).status;

/** Fetches a model; yields {completed, total} in bytes. ApiError if the server refuses, or cannot. */
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
    throw new ApiError("cut_off", "The connection broke off; the server goes on with what it fetches.");
  }
}

/** Yields the chunks of an answer as the server sends them. ApiError if it refuses, or sends an error in the stream. */
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
  if (!isComplete) throw new ApiError("cut_off", "The connection broke off before the answer was complete; what had arrived is kept.");
}

/** The data of server-sent events. */
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
    throw new ApiError("cut_off", "The connection broke off before the answer was complete; what had arrived is kept.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
