// The Window: which messages of a conversation the model gets, and how full its context is.

import { chosenModel, state } from "../app/state.js";
import { shownPath } from "./tree.js";

const ROOM = 0.75; // of the context that a shortened conversation fills at most; the rest is for the answer

/**
 * The place in a path of the first message behind the turns that are not sent: the question that was kept, or another
 * text of it, which editing puts beside it. -1 if the path has neither.
 */
export function sentFrom(conversation, path) {
  const kept = conversation.messages.find((node) => node.id === conversation.from);
  return kept ? path.findIndex((node) => node.parent === kept.parent) : -1;
}

/** The messages of a path from which on they are sent: all, or those behind the turns that were dropped. */
export function sentPath(conversation, path) {
  return path.slice(Math.max(0, sentFrom(conversation, path)));
}

/** The note that stands for the turns that are not sent; null if there is none on this path. */
export function noteOf(conversation, path) {
  const note = conversation.notes?.at(-1);
  return note && sentFrom(conversation, path) >= 0 ? note.text : null;
}

/** Whether the oldest turn can be dropped: another question must be left. */
export const canDrop = (conversation, path) => secondQuestion(sentPath(conversation, path)) !== undefined;

const secondQuestion = (sent) => sent.slice(1).find((node) => node.role === "user");

const length = (nodes) => nodes.reduce((sum, node) => sum + node.content.length + (node.files ?? []).reduce((all, file) => all + file.text.length, 0), 0);

/**
 * Sends no more of the oldest turns: one, or as many as the tokens that it has, and those that the context holds, ask
 * for. The messages stay in the conversation. Returns false if only the last question is left.
 */
export function dropTurns(conversation, path, size) {
  if (!canDrop(conversation, path)) return false;
  const { has, holds } = size ?? {};
  const perCharacter = has / length(sentPath(conversation, path));
  do conversation.from = secondQuestion(sentPath(conversation, path)).id;
  while (has && canDrop(conversation, path) && length(sentPath(conversation, path)) * perCharacter > ROOM * holds);
  return true;
}

/** Returns {used, size} in tokens after the last answer; null if either is not known. */
export function contextFill(conversation) {
  const size = chosenModel()?.context_length;
  const last = shownPath(conversation).findLast((node) => node.figures?.prompt);
  return size && last ? { used: last.figures.prompt + (last.figures.tokens ?? 0), size } : null;
}

/** Whether an answer is empty, probably because its model's file has no chat template and the server assumes one. */
export function isBare({ ending, model, content, reasoning, calls }) {
  const can = state.models.find((one) => one.name === model)?.capabilities ?? [];
  // A template that the operator gave may be another; it is not in what a file can.
  const isAssumed = can.includes("completion") && !can.includes("chat") && state.template.includes("<|im_start|>");
  return isAssumed && ending === "stop" && !calls?.length && (content + reasoning).trim() === "";
}

/** Whether an answer was cut because the context is full: none can continue it as it stands. */
export function isFull({ ending, model, figures }) {
  const size = state.models.find((one) => one.name === model)?.context_length;
  return ending === "length" && Boolean(size && figures?.prompt) && figures.prompt + (figures.tokens ?? 0) >= size;
}
