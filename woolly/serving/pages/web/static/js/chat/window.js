// Context window: the messages that are sent to the model, and the context usage.

import { chosenModel, state } from "../app/state.js";
import { shownPath } from "./tree.js";

const ROOM = 0.75; // maximum share of the context for a shortened conversation; the rest is for the answer

/**
 * Return the index of the first message that is sent: the kept question, or another
 * version of it after an edit. Returns -1 if the path has neither.
 */
export function sentFrom(conversation, path) {
  const kept = conversation.messages.find((node) => node.id === conversation.from);
  return kept ? path.findIndex((node) => node.parent === kept.parent) : -1;
}

/** Return the messages of a path that are sent: all, or those after the dropped turns. */
export function sentPath(conversation, path) {
  return path.slice(Math.max(0, sentFrom(conversation, path)));
}

/** Return the summary that replaces turns on this path, or null. */
export function noteOf(conversation, path) {
  const note = conversation.notes?.at(-1);
  return note && sentFrom(conversation, path) >= 0 ? note.text : null;
}

/** Return true if the oldest turn can be dropped, so that another question is left. */
export const canDrop = (conversation, path) => secondQuestion(sentPath(conversation, path)) !== undefined;

const secondQuestion = (sent) => sent.slice(1).find((node) => node.role === "user");

const length = (nodes) => nodes.reduce((sum, node) => sum + node.content.length + (node.files ?? []).reduce((all, file) => all + file.text.length, 0), 0);

/**
 * Drop the oldest turns: one, or as many as the token counts of the conversation and the
 * context require. The messages stay in the conversation. Returns false if only the last question is left.
 */
export function dropTurns(conversation, path, size) {
  if (!canDrop(conversation, path)) return false;
  const { has, holds } = size ?? {};
  const perCharacter = has / length(sentPath(conversation, path));
  do conversation.from = secondQuestion(sentPath(conversation, path)).id;
  while (has && canDrop(conversation, path) && length(sentPath(conversation, path)) * perCharacter > ROOM * holds);
  return true;
}

/** Return {used, size} in tokens after the last answer, or null if unknown. */
export function contextFill(conversation) {
  const size = chosenModel()?.context_length;
  const last = shownPath(conversation).findLast((node) => node.figures?.prompt);
  return size && last ? { used: last.figures.prompt + (last.figures.tokens ?? 0), size } : null;
}

/** Return true if an answer is empty, probably because the model has no chat template. */
export function isBare({ ending, model, content, reasoning, calls }) {
  const can = state.models.find((one) => one.name === model)?.capabilities ?? [];
  // The administrator may have set a template, which the model's capabilities do not show.
  const isAssumed = can.includes("completion") && !can.includes("chat") && state.template.includes("<|im_start|>");
  return isAssumed && ending === "stop" && !calls?.length && (content + reasoning).trim() === "";
}

/** Return true if an answer was truncated by a full context, so that it cannot continue unchanged. */
export function isFull({ ending, model, figures }) {
  const size = state.models.find((one) => one.name === model)?.context_length;
  return ending === "length" && Boolean(size && figures?.prompt) && figures.prompt + (figures.tokens ?? 0) >= size;
}
