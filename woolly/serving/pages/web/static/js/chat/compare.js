// Compare: a second model that answers the same messages with the same seed, and both answers side by side.

import { el } from "../app/dom.js";
import { chosenModel, emit, state } from "../app/state.js";
import { small } from "../app/store.js";
import { keep } from "./chat.js";

/** Whether the shown conversation is answered by this model, too. */
export const isBeside = (name) => state.current?.settings.beside === name;

/** Has the shown conversation answered by this model, too, or no more. */
export function toggleBeside(name) {
  const conversation = state.current;
  conversation.settings.beside = isBeside(name) ? "" : name;
  // Without a choice the loaded model answers, and that may be the second one by then.
  state.model ??= chosenModel()?.name ?? null;
  small.set("model", state.model);
  if (conversation.messages.length) keep(conversation);
  emit("settings");
}

/** Returns the second model of a conversation; null if it has none, or none that can answer. */
export function besideOf(conversation) {
  const model = state.models.find((one) => one.name === conversation.settings.beside && !one.unsupported);
  return model && model !== chosenModel() ? model : null;
}

/** A seed for both: the one that is set, or any. */
export function seedOf(settings) {
  const given = Number(settings.sampling?.seed || Number.NaN);
  return Number.isInteger(given) && given >= 0 ? given : crypto.getRandomValues(new Uint32Array(1))[0];
}

/** The answers that stand beside one, itself included, in the order in which they were asked for. */
export const pairOf = (conversation, node) => (node.pair ? conversation.messages.filter((other) => other.pair === node.pair && other.parent === node.parent) : [node]);

/** Fills a row with the articles of a pair, moving none that is in its place, and says how far they agree. */
export function fillPair(row, nodes, articles, isRunning) {
  const columns = row.querySelector(".columns") ?? row.appendChild(el("div", { class: "columns" }));
  if (columns.children.length !== articles.length || articles.some((one, i) => columns.children[i] !== one)) columns.replaceChildren(...articles);
  row.querySelector(".agreement")?.remove();
  if (nodes.length === 2 && !isRunning) row.append(el("p", { class: "agreement" }, agreement(...nodes)));
  return row;
}

function agreement(one, other) {
  const [a, b] = [one, other].map((node) => node.content.split(/\s+/));
  if (one.content === other.content) return "Both wrote the same text.";
  const at = a.findIndex((word, i) => word !== b[i]);
  const n = at < 0 ? a.length : at;
  return n === 0 ? "They differ from the first word on." : `They agree for ${n} ${n === 1 ? "word" : "words"}.`;
}
