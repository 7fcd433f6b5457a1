// The Window: which messages of a conversation the model gets, and how full its context is.

import { chosenModel } from "../app/state.js";
import { shownPath } from "./tree.js";

const ROOM = 0.75; // of the context that a shortened conversation fills at most; the rest is for the answer
const NUMBERS = /has ([\d,]+) tokens.*?holds ([\d,]+)/;

/** The messages of a path from which on they are sent: all, or those behind the turns that were dropped. */
export function sentPath(conversation, path) {
  const from = path.findIndex((node) => node.id === conversation.from);
  return from < 0 ? path : path.slice(from);
}

/** Whether the oldest turn can be dropped: another question must be left. */
export const canDrop = (conversation, path) => secondQuestion(sentPath(conversation, path)) !== undefined;

const secondQuestion = (sent) => sent.slice(1).find((node) => node.role === "user");

const length = (nodes) => nodes.reduce((sum, node) => sum + node.content.length + (node.files ?? []).reduce((all, file) => all + file.text.length, 0), 0);

/**
 * Sends no more of the oldest turns: one, or as many as the numbers in the server's sentence ask for. The messages stay
 * in the conversation. Returns false if only the last question is left.
 */
export function dropTurns(conversation, path, sentence) {
  if (!canDrop(conversation, path)) return false;
  const [has, holds] = (NUMBERS.exec(sentence) ?? []).slice(1).map((text) => Number(text.replace(/,/g, "")));
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
