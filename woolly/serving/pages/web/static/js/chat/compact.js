// Compaction: a summary by the model replaces older turns in requests; the turns stay in the conversation.

import * as api from "../app/api.js";
import { chosenModel, state } from "../app/state.js";
import { requestOf } from "./request.js";
import { canDrop, dropTurns } from "./window.js";

// Same text as in woolly/chat/compaction.py.
const ASK = "The conversation so far will be removed, and only what you write now stays. Write a note to yourself that lets you go on without it: what the user wants, decisions and reasons, facts, names, numbers, files and code that still matter, what is done, and what is left to do. Be brief and exact. Answer with the note alone; call no tool.";
const MAX_NOTE_TOKENS = 1024; // and at most a quarter of the context
const FULL = "context_length_exceeded";
// A summary has no structured output.
const FREE = { response_format: undefined, grammar: undefined, regex: undefined, stop: undefined, logprobs: undefined, top_logprobs: undefined };

/** Return true if there is a turn before the last question to compact. */
export const canCompact = canDrop;

/** Replace all turns before the last question of a path with a summary. */
export async function writeNote(conversation, path, signal) {
  const at = path.findLastIndex((node) => node.role === "user");
  const turns = path.slice(0, at);
  const asked = { ...conversation }; // with fewer turns if the summary would not fit
  for (;;) {
    try {
      const text = await read(asked, turns, signal);
      conversation.notes = [...(conversation.notes ?? []), { text, from: conversation.from }];
      conversation.from = path[at].id;
      return;
    } catch (error) {
      if (error.code !== FULL || !dropTurns(asked, turns, error.size)) throw error;
    }
  }
}

async function read(conversation, turns, signal) {
  const most = Math.min(MAX_NOTE_TOKENS, Math.floor((chosenModel()?.context_length ?? 4 * MAX_NOTE_TOKENS) / 4));
  const body = { ...requestOf(conversation, turns, FREE), max_tokens: most };
  body.reasoning_budget = budgetOf(body.reasoning_budget ?? state.defaults.reasoning_budget ?? -1, most);
  body.messages.push({ role: "user", content: ASK });
  let note = "";
  for await (const chunk of api.chat(body, signal)) note += chunk.choices[0]?.delta?.content ?? "";
  if (!note.trim()) throw new api.ApiError("compaction_failed", "The model did not write a summary.");
  return note.trim();
}

/** Limit reasoning to half of the available tokens, to leave space for the summary. */
const budgetOf = (given, most) => (given >= 0 ? Math.min(given, Math.floor(most / 2)) : Math.floor(most / 2));

/** Undo the latest compaction. */
export function undoNote(conversation) {
  const note = conversation.notes?.at(-1);
  if (!note) return;
  conversation.notes = conversation.notes.slice(0, -1);
  if (note.from === undefined) delete conversation.from;
  else conversation.from = note.from;
}
