// State: what the page knows, and who wants to hear of changes.

import { small } from "./store.js";

export const state = {
  conversations: new Map(), // by id
  current: null, // the conversation that is shown
  runs: new Map(), // answers that are being written, by the conversation's id
  problems: new Map(), // {error, parent} of answers that did not come, by the conversation's id
  models: [], // as the server lists them
  model: small.get("model"), // the name that was chosen; null: whichever the server has loaded
  busy: new Map(), // models on their way: name -> {verb, since}
  isLocked: false, // the server asks for a key, and this tab has none that it takes
  health: "", // ok, loading, draining, failed, unreachable; empty until it is known
  defaults: {}, // what the server takes where a request says nothing
};

const listeners = new Map();

/** Calls `listener` when `kind` happens: list, current, run, models, problem, refresh, settings, unkept, unlocked. */
export function on(kind, listener) {
  listeners.set(kind, [...(listeners.get(kind) ?? []), listener]);
}

/** Tells all who listen. */
export function emit(kind, detail) {
  for (const listener of listeners.get(kind) ?? []) listener(detail);
}

/** The model that the next message goes to; null where the server lists none. */
export function chosenModel() {
  return state.models.find((model) => model.name === state.model) ?? state.models.find((model) => model.loaded) ?? state.models[0] ?? null;
}

/** unloaded, loading, ready or unloading. */
export function modelState(model) {
  const own = state.busy.get(model.name);
  if (own) return own.verb;
  if (!model.loaded && state.health === "loading" && model === chosenModel()) return "loading";
  return model.state ?? (model.loaded ? "ready" : "unloaded");
}
