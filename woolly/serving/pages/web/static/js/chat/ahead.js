// Read-ahead: the server prefills a message while the user types, so that the answer begins sooner.

import * as api from "../app/api.js";
import { chosenModel, emit, modelState, state } from "../app/state.js";
import { isSent, requestOf } from "./request.js";
import { shownPath } from "./tree.js";

const PAUSE = 600; // milliseconds without a keystroke before the text is sent
const GROWTH = 24; // minimum new characters before the text is sent again

let timer = null;
let resumes = 0; // time of the next allowed request, in milliseconds
let controller = null; // AbortController of the running request
let sent = { about: "", length: 0 }; // conversation, model and files of the last text, and its length

/** Schedule read-ahead of the typed message after a pause, replacing an earlier one. */
export function readAhead(content, files) {
  clearTimeout(timer);
  sent.length = Math.min(sent.length, content.length);
  timer = setTimeout(() => post(content, files), PAUSE);
}

/** Cancel read-ahead when the message is sent or another conversation is opened. */
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
  if (path.some((node) => node.files?.some(isSent))) return; // the server only prefills text
  const about = [conversation.id, conversation.leaf, model.name, ...files.map((file) => file.name)].join("\n");
  if (sent.about === about && content.length - sent.length < GROWTH) return;
  sent = { about, length: content.length };
  controller?.abort();
  controller = new AbortController();
  try {
    await api.readAhead(requestOf(conversation, path), controller.signal);
  } catch (error) {
    // Errors are shown when the message is sent.
    if (error.status === 501) state.readsAhead = false;
    else if (error.status === 401) emit("problem", error);
    else if (error.retryAfter) resumes = Date.now() + 1000 * error.retryAfter;
  }
}
