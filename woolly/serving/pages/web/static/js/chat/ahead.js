// Ahead: the server reads a message while it is typed, so that its answer begins sooner.

import * as api from "../app/api.js";
import { chosenModel, emit, modelState, state } from "../app/state.js";
import { isSent, requestOf } from "./request.js";
import { shownPath } from "./tree.js";

const PAUSE = 600; // milliseconds without a key, after which the text is sent
const GROWTH = 24; // characters that a text must have grown by since it was sent: a few words

let timer = null;
let resumes = 0; // when the server may be asked again, in milliseconds
let controller = null; // of the request under way
let sent = { about: "", length: 0 }; // the conversation, model and files of the last text, and how long that was

/** Has the message read that is being typed, with its files, after a pause; a later one replaces an earlier one. */
export function readAhead(content, files) {
  clearTimeout(timer);
  sent.length = Math.min(sent.length, content.length);
  timer = setTimeout(() => post(content, files), PAUSE);
}

/** Reads no further: the message is sent, or another conversation is shown. */
export function stopReading() {
  clearTimeout(timer);
  controller?.abort();
  controller = null;
}

async function post(content, files) {
  const conversation = state.current;
  const model = chosenModel();
  if (state.isLocked || Date.now() < resumes || !state.readsAhead || !content.trim() || state.runs.size || !model || modelState(model) !== "ready") return;
  const draft = { role: "user", content, files, parent: conversation.leaf };
  const path = [...shownPath(conversation), draft];
  if (path.some((node) => node.files?.some(isSent))) return; // the server reads text alone
  const about = [conversation.id, conversation.leaf, model.name, ...files.map((file) => file.name)].join("\n");
  if (sent.about === about && content.length - sent.length < GROWTH) return;
  sent = { about, length: content.length };
  controller?.abort();
  controller = new AbortController();
  try {
    await api.readAhead(requestOf(conversation, path), controller.signal);
  } catch (error) {
    // It changes no answer: what is wrong with the message is said when it is sent.
    if (error.status === 501) state.readsAhead = false;
    else if (error.status === 401) emit("problem", error);
    else if (error.retryAfter) resumes = Date.now() + 1000 * error.retryAfter;
  }
}
