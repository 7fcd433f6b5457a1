// Export and import of conversations. `woolly chat` can also load a file with one conversation.

import * as chat from "./chat.js";
import { saveText, toast } from "../app/dom.js";
import { typedSettings } from "../panels/samplers.js";
import { state } from "../app/state.js";
import { messageOf } from "./request.js";
import { addMessage, createConversation, readConversation, shownPath, titleOf } from "./tree.js";
import { sentPath } from "./window.js";

/** Save conversations to a file. */
export function download(conversations, name) {
  const alone = conversations.length === 1 ? forTerminal(conversations[0]) : {};
  const text = JSON.stringify({ format: "woolly-conversations", version: 1, ...alone, conversations }, null, 1);
  saveText(text, `${name.replace(/[^\p{L}\p{N} ._-]/gu, "").slice(0, 60).trim() || "conversation"}.json`, "application/json");
}

/** Return the shown path in the format of `woolly chat` (woolly/cli/chat/conversation.py). */
function forTerminal(conversation) {
  const path = shownPath(conversation);
  const messages = path.map((node) => ({ ...messageOf(node), ...(node.name ? { name: node.name } : {}) }));
  const forgotten = path.length - sentPath(conversation, path).length;
  return { system: conversation.settings.system || null, messages, forgotten, settings: typedSettings(conversation.settings) };
}

/** Import the conversations of the selected files, except for duplicates. */
export async function importFiles(input) {
  const files = [...input.files];
  input.value = "";
  let added = 0;
  let known = 0;
  for (const file of files) {
    const read = readFile(await file.text(), file.name);
    if (!read) {
      toast(`${file.name} has no conversations of this page or of woolly chat.`);
      return;
    }
    for (const conversation of read) {
      if (isHere(conversation)) {
        known += 1;
        continue;
      }
      // The stored conversation with this id may have changed, so import a copy.
      if (state.conversations.has(conversation.id)) conversation.id = chat.create().id;
      await chat.keep(conversation);
      added += 1;
    }
  }
  toast([added || !known ? counted(added, "was", "were") + " added." : "", known ? counted(known, "is", "are") + " here already." : ""].filter(Boolean).join(" "));
}

const counted = (n, one, many) => (n === 1 ? `One conversation ${one}` : `${n} conversations ${many}`);

/** Return the conversations of a file, or null. */
function readFile(text, name) {
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    return null;
  }
  if (Array.isArray(given?.conversations)) {
    const read = given.conversations.map(readConversation);
    return read.length && !read.includes(null) ? read : null;
  }
  const one = readConversation(given) ?? fromTerminal(given, name);
  return one ? [one] : null;
}

/** Read a conversation of `woolly chat`: {system, messages, forgotten, settings}, or a list of messages. */
function fromTerminal(given, name) {
  const messages = Array.isArray(given) ? [...given] : given?.messages;
  const isMessage = (one) => typeof one === "object" && one !== null && typeof one.content === "string" && ["system", "user", "assistant", "tool"].includes(one.role) && (one.tool_calls === undefined || callsOf(one) !== null);
  if (!Array.isArray(messages) || !messages.length || !messages.every(isMessage)) return null;
  const first = messages[0].role === "system" ? messages[0].content : null;
  const rest = first === null ? messages : messages.slice(1);
  if (rest.some((one) => one.role === "system")) return null;
  const conversation = createConversation();
  const system = first ?? given.system;
  if (typeof system === "string" && system) conversation.settings.system = system;
  conversation.settings.sampling = sampling(given.settings);
  for (const one of rest) {
    const { role, content, name, tool_call_id: call } = one;
    const calls = callsOf(one) ?? [];
    const tool = role === "tool" && typeof call === "string" ? { call, ...(typeof name === "string" ? { name } : {}) } : {};
    addMessage(conversation, conversation.leaf, { role, content, ...tool, ...(calls.length ? { calls, ending: "tool_calls" } : {}) });
  }
  const forgotten = (given.forgotten ?? 0) - (first === null ? 0 : 1);
  if (forgotten > 0 && conversation.messages[forgotten]) conversation.from = conversation.messages[forgotten].id;
  conversation.title ||= titleOf(name.replace(/\.json$/i, ""));
  return conversation;
}

/** Return the calls of a message in OpenAI's format, or null for another format. */
function callsOf(message) {
  const given = message.tool_calls ?? [];
  const isCall = (call) => [call?.id, call?.function?.name, call?.function?.arguments].every((text) => typeof text === "string");
  return Array.isArray(given) && given.every(isCall) ? given.map(({ id, function: { name, arguments: text } }) => ({ id, name, arguments: text })) : null;
}

/** Convert typed settings to the strings of the panel; unknown settings are dropped. */
function sampling(given) {
  const known = new Map(state.options.map((field) => [field.name, field]));
  const text = (value, field) => (Array.isArray(value) ? value.join(field.kind === "lines" ? "\n" : ", ") : typeof value === "object" ? JSON.stringify(value) : String(value));
  const rows = Object.entries(given ?? {}).filter(([name, value]) => known.has(name) && value !== null);
  return Object.fromEntries(rows.map(([name, value]) => [name, text(value, known.get(name))]));
}

const shape = (conversation) => {
  const places = new Map(conversation.messages.map((node, i) => [node.id, i]));
  return JSON.stringify(conversation.messages.map((node) => [node.role, node.content, places.get(node.parent) ?? null]));
};

/** Return true if a conversation with the same messages is already stored. */
function isHere(conversation) {
  const wanted = shape(conversation);
  return [...state.conversations.values()].some((one) => one.messages.length === conversation.messages.length && shape(one) === wanted);
}
