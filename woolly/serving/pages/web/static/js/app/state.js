// State: what the page knows, and listeners for its changes.

import { small } from "./store.js";

export const state = {
  conversations: new Map(), // by id
  current: null, // the conversation that is shown
  runs: new Map(), // answers that are being written, by the conversation's id
  problems: new Map(), // {error, parent} of answers that did not come, by the conversation's id
  models: [], // as the server lists them
  model: small.get("model"), // the name that was chosen; null: whichever the server has loaded
  pulls: new Map(), // models that are being fetched: name -> {completed, total}
  busy: new Map(), // models on their way: name -> {verb, since}
  isLocked: false, // the server asks for a key, and this tab has none that it takes
  health: "", // ok, loading, draining, failed, unreachable; empty until it is known
  tools: [], // of MCP servers: {name, server, description, parameters, read_only}
  servers: [], // the MCP servers: {name, state: starting, up or failed, reason}
  options: [], // the settings of an answer, as the server describes them
  readsAhead: false, // whether the server computes messages while they are typed
  template: "", // of the chosen model's chats, or the one that is assumed
  defaults: {}, // the server's values for fields that a request leaves out
};

const listeners = new Map();

/** Calls `listener` when `kind` happens: list, current, run, models, problem, refresh, settings, setting (a value of one), tools, unkept, unlocked. */
export function on(kind, listener) {
  listeners.set(kind, [...(listeners.get(kind) ?? []), listener]);
}

/** Calls all listeners. */
export function emit(kind, detail) {
  for (const listener of listeners.get(kind) ?? []) listener(detail);
}

/** Returns the model for the next message; null if the server lists none. */
export function chosenModel() {
  const usable = state.models.filter((model) => !model.unsupported);
  const able = usable.filter(answers);
  return usable.find((model) => model.name === state.model) ?? able.find((model) => model.loaded) ?? able[0] ?? usable[0] ?? null;
}

/** Whether a model writes answers: others make vectors, score or transcribe. */
export const answers = (model) => model.capabilities?.includes("completion") ?? true;

/** unloaded, loading, ready or unloading. A model whose weights are still on their way to a GPU is loading, too. */
export function modelState(model) {
  const own = state.busy.get(model.name);
  if (own) return own.verb;
  if (model.progress !== null && model.progress !== undefined) return "loading";
  const isAsked = state.health === "loading" || [...state.runs.values()].some((run) => run.isAsking);
  if (!model.loaded && isAsked && model === chosenModel()) return "loading";
  return model.state ?? (model.loaded ? "ready" : "unloaded");
}

/** Whether a model takes images. */
export const takesImages = (model) => model.capabilities?.includes("vision") ?? false;

/** Whether a model takes audio. */
export const takesAudio = (model) => model.capabilities?.includes("audio") ?? false;

/** Whether a model takes videos. */
export const takesVideos = (model) => model.capabilities?.includes("video") ?? false;

const STAGES = { waiting: "waiting for another model", reading: "reading its file", freeing: "making room", opening: "opening" };

/** How far a model that loads is: a share if the server knows it, else what it does. */
export function loadWords(model) {
  if (model.progress) return `${Math.floor(100 * model.progress)} %`;
  return STAGES[model.stage] ?? "";
}
