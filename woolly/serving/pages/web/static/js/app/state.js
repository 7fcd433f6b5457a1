// Shared state of the page, and listeners for changes.

import { small } from "./store.js";

export const state = {
  conversations: new Map(), // by id
  current: null, // the open conversation
  runs: new Map(), // running answers by conversation id
  problems: new Map(), // {error, parent} of failed answers by conversation id
  models: [], // as the server lists them
  model: small.get("model"), // chosen model name; null: the loaded model
  pulls: new Map(), // running downloads: name -> {completed, total}
  busy: new Map(), // models that are loading or unloading: name -> {verb, since}
  isLocked: false, // the server requires a key, and this tab has no valid one
  health: "", // ok, loading, draining, failed or unreachable; empty if unknown
  tools: [], // of MCP servers: {name, server, description, parameters, read_only}
  servers: [], // the MCP servers: {name, state: starting, up or failed, reason}
  options: [], // sampling settings as described by the server
  pdfReason: "", // why the server cannot read PDF files; empty if it can
  readsAhead: false, // true if the server prefills messages while the user types
  template: "", // chat template of the chosen model, or the default template
  defaults: {}, // the server's default values of request fields
};

const listeners = new Map();

/** Call `listener` on an event: list, current, run, models, problem, refresh, settings, setting, tools, unkept or unlocked. */
export function on(kind, listener) {
  listeners.set(kind, [...(listeners.get(kind) ?? []), listener]);
}

/** Call all listeners of an event. */
export function emit(kind, detail) {
  for (const listener of listeners.get(kind) ?? []) listener(detail);
}

/** Return the model for the next message, or null if the server lists none. */
export function chosenModel() {
  const usable = state.models.filter((model) => !model.unsupported);
  const able = usable.filter(answers);
  return able.find((model) => model.name === state.model) ?? able.find((model) => model.loaded) ?? able[0] ?? usable[0] ?? null;
}

/** Return true if the model generates text (not for embedding, reranking and speech-to-text models). */
export const answers = (model) => model.capabilities?.includes("completion") ?? true;

/** Return unloaded, loading, ready or unloading. A model counts as loading until all weights are on the GPU. */
export function modelState(model) {
  const own = state.busy.get(model.name);
  if (own) return own.verb;
  if (model.progress !== null && model.progress !== undefined) return "loading";
  const isAsked = state.health === "loading" || [...state.runs.values()].some((run) => run.isAsking);
  if (!model.loaded && isAsked && model === chosenModel()) return "loading";
  return model.state ?? (model.loaded ? "ready" : "unloaded");
}

/** Return true if the model supports images. */
export const takesImages = (model) => model.capabilities?.includes("vision") ?? false;

/** Return true if the model supports audio. */
export const takesAudio = (model) => model.capabilities?.includes("audio") ?? false;

/** Return true if the model supports videos. */
export const takesVideos = (model) => model.capabilities?.includes("video") ?? false;

const STAGES = { waiting: "waiting for another model", reading: "reading its file", freeing: "freeing memory", opening: "loading" };

/** Return the loading progress as a share if known, or else the stage. */
export function loadWords(model) {
  if (model.progress) return `${Math.floor(100 * model.progress)} %`;
  return STAGES[model.stage] ?? "";
}
