// Comparison: a second model answers the same messages with the same seed, side by side.

import { el } from "../app/dom.js";
import { chosenModel, emit, state } from "../app/state.js";
import { small } from "../app/store.js";
import { keep } from "./chat.js";

/** Return true if this model is the second model of the open conversation. */
export const isBeside = (name) => state.current?.settings.beside === name;

/** Add or remove this model as the second model of the open conversation. */
export function toggleBeside(name) {
  const conversation = state.current;
  conversation.settings.beside = isBeside(name) ? "" : name;
  // Otherwise the loaded model would answer, which may then be the second model.
  state.model ??= chosenModel()?.name ?? null;
  small.set("model", state.model);
  if (conversation.messages.length) keep(conversation);
  emit("settings");
}

/** Return the second model of a conversation if it can answer, or null. */
export function besideOf(conversation) {
  const model = state.models.find((one) => one.name === conversation.settings.beside && !one.unsupported);
  return model && model !== chosenModel() ? model : null;
}

/** Return the seed for both models: the setting or a random one. */
export function seedOf(settings) {
  const given = Number(settings.sampling?.seed || Number.NaN);
  return Number.isInteger(given) && given >= 0 ? given : crypto.getRandomValues(new Uint32Array(1))[0];
}

/** Return the answers shown side by side, in the order of the requests. */
export const pairOf = (conversation, node) => (node.pair ? conversation.messages.filter((other) => other.pair === node.pair && other.parent === node.parent) : [node]);

/** Update the row of a pair without moving nodes unnecessarily, and show how far the answers agree. */
export function fillPair(row, nodes, articles, isRunning) {
  const columns = row.querySelector(".columns") ?? row.appendChild(el("div", { class: "columns" }));
  if (columns.children.length !== articles.length || articles.some((one, i) => columns.children[i] !== one)) columns.replaceChildren(...articles);
  row.querySelector(".agreement")?.remove();
  if (nodes.length === 2 && !isRunning) row.append(el("p", { class: "agreement" }, agreement(...nodes)));
  return row;
}

function agreement(one, other) {
  const [a, b] = [one, other].map((node) => node.content.split(/\s+/));
  if (one.content === other.content) return "Both answers are identical.";
  const at = a.findIndex((word, i) => word !== b[i]);
  const n = at < 0 ? a.length : at;
  return n === 0 ? "The answers differ from the first word." : `The answers agree for ${n} ${n === 1 ? "word" : "words"}.`;
}
