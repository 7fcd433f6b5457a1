// Chat: sends messages and adds the answers to the conversation.

import * as api from "../app/api.js";
import { toast } from "../app/dom.js";
import { chosenModel, emit, takesAudio, takesImages, state } from "../app/state.js";
import { markOpening } from "../app/guard.js";
import * as store from "../app/store.js";
import { takeCall } from "./calls.js";
import { canCompact, undoNote, writeNote } from "./compact.js";
import { besideOf, seedOf } from "./compare.js";
import { takeTokens } from "./probabilities.js";
import { requestOf } from "./request.js";
import { whenSettled } from "./tools.js";
import { addMessage, copyPath, createConversation, removeMessage, shownPath } from "./tree.js";
import { canDrop, contextFill, dropTurns, isBare, isFull, sentPath } from "./window.js";

const noted = new Set(); // conversations to compact before the next request, because the context is known to be full
const SAVE_EVERY = 1000; // milliseconds between saves of a running answer
export const FULL = "context_length_exceeded";
export const NO_IMAGES = "no-images"; // the conversation has images, but the model does not support them
export const NO_AUDIO = "no_audio"; // the conversation has audio, but the model does not support it
// Omitted, because a structure would start again in the middle of an answer.
const CONTINUED = { continue_final_message: true, response_format: undefined, grammar: undefined, regex: undefined };

/** A running answer; `onDelta(name, text)` is called for each piece. */
class Run {
  constructor(conversation, node, leaf) {
    this.conversation = conversation;
    this.node = node;
    this.model = null; // the requested model, if it is not the chosen one
    this.leaf = leaf; // shown again if the answer fails; null if an answer is continued
    this.controller = new AbortController();
    this.started = performance.now();
    this.firstAt = null;
    this.isAsking = false; // the server has not replied yet; its model may be loading
    this.reading = null; // {processed, total} tokens of the prompt
    this.n = 0; // number of chunks, roughly tokens
    this.savedAt = 0;
    this.onDelta = null;
    this.before = leaf === null ? node.figures : undefined; // figures of the continued text
  }

  /** Return the tokens per second so far. */
  get rate() {
    return this.n > 1 ? ((this.n - 1) * 1000) / (performance.now() - this.firstAt) : 0;
  }

  take(chunk) {
    this.node.model ??= chunk.model;
    this.id = chunk.id; // the server's id of the answer
    this.reading = chunk.prompt_progress ?? this.reading;
    const choice = chunk.choices[0];
    for (const [from, to] of [["reasoning_content", "reasoning"], ["content", "content"]]) {
      const text = choice?.delta?.[from];
      if (!text) continue;
      this.firstAt ??= performance.now();
      this.n += 1;
      this.node[to] += text;
      this.onDelta?.(to, text);
    }
    for (const piece of choice?.delta?.tool_calls ?? []) {
      this.firstAt ??= performance.now();
      this.n += 1;
      takeCall((this.node.calls ??= []), piece);
      this.onDelta?.("call", "");
    }
    if (choice?.logprobs?.content) takeTokens((this.node.tokens ??= []), choice.logprobs.content);
    if (choice?.finish_reason) this.node.ending = choice.finish_reason;
    if (chunk.timings) this.node.figures = figuresOf(chunk.timings);
  }
}

function figuresOf(timings) {
  return {
    tokens: timings.predicted_n,
    rate: timings.predicted_per_second,
    first: timings.prompt_ms,
    prompt: timings.prompt_n + timings.cache_n,
    cached: timings.cache_n,
  };
}

/** Add a message to the open conversation and request an answer. */
export function send(text, files = []) {
  const conversation = state.current;
  store.small.set("fresh-settings", null);
  addMessage(conversation, conversation.leaf, { role: "user", content: text, ...(files.length ? { files } : {}) });
  return answer(conversation, conversation.leaf);
}

/** Add the results of an answer's tool calls and request an answer. */
export function sendResults(conversation, node, results) {
  if (state.runs.has(conversation.id)) return undefined;
  conversation.leaf = node.id;
  node.calls.forEach((call, i) => addMessage(conversation, conversation.leaf, { role: "tool", content: results[i], call: call.id, name: call.name }));
  return answer(conversation, conversation.leaf);
}

/** Request another answer to the same question. */
export function regenerate(node) {
  return answer(state.current, node.parent);
}

/** Add an edited version of a message; for a question, request an answer. */
export function edit(node, text) {
  const conversation = state.current;
  addMessage(conversation, node.parent, { role: node.role, content: text, model: node.model, ...(node.files ? { files: node.files } : {}) });
  if (node.role === "user") return answer(conversation, conversation.leaf);
  emit("current");
  return keep(conversation);
}

/** Retry a failed answer. */
export function retry() {
  return state.problems.get(state.current?.id)?.again();
}

/** Drop the oldest turns whenever the context is full, and retry. */
export function dropAndRetry() {
  state.current.settings.overflow = "drop";
  state.problems.get(state.current.id).drop();
  emit("settings");
  return retry();
}

/** Compact older turns whenever the context is full, and retry. */
export function compactAndRetry() {
  state.current.settings.overflow = "compact";
  noted.add(state.current.id);
  emit("settings");
  return retry();
}

/** Replace all turns before the last question with a summary by the model. */
export async function compact() {
  const conversation = state.current;
  const path = shownPath(conversation);
  if (state.runs.has(conversation.id) || !canCompact(conversation, path)) return;
  const run = new Run(conversation, { content: "", reasoning: "" }, null);
  state.problems.delete(conversation.id);
  state.runs.set(conversation.id, run);
  emit("run", run);
  try {
    await writeNote(conversation, path, run.controller.signal);
  } catch (error) {
    if (error.name !== "AbortError") state.problems.set(conversation.id, { error, again: compact, drop: null });
  }
  state.runs.delete(conversation.id);
  emit("run", run);
  emit("current");
  await keep(conversation);
}

/** Undo the latest compaction. */
export function undoCompaction() {
  if (state.runs.has(state.current.id)) return undefined;
  undoNote(state.current);
  emit("current");
  return keep(state.current);
}

/** Omit the conversation's "images" or "audio", and retry. */
export function leaveOut(which) {
  state.current.settings[which] = "off";
  emit("settings");
  return retry();
}

/** Continue a truncated answer. */
export function continueAnswer(node) {
  const conversation = state.current;
  if (state.runs.has(conversation.id)) return undefined;
  const run = new Run(conversation, node, null);
  delete node.tokens;
  return perform(run, pathTo(conversation, node.id), CONTINUED, () => continueAnswer(node));
}

/** Return true if an answer that filled the context can continue without the oldest turns. */
export const canMakeRoom = (conversation, node) => canDrop(conversation, pathTo(conversation, node.id));

/** Continue an answer that filled the context, without the oldest turns. */
export function makeRoomAndContinue(node) {
  const conversation = state.current;
  const fill = contextFill(conversation);
  conversation.settings.overflow = "drop";
  dropTurns(conversation, pathTo(conversation, node.id), fill && { has: fill.used, holds: fill.size });
  emit("settings");
  return continueAnswer(node);
}

/** Delete one message, but not the messages after it. */
export function forget(node) {
  const conversation = state.current;
  if (state.runs.has(conversation.id)) return;
  const { messages, leaf, from } = conversation;
  const parents = messages.map((one) => one.parent);
  removeMessage(conversation, node);
  state.problems.delete(conversation.id);
  const changed = () => {
    emit("current");
    keep(conversation);
  };
  changed();
  const undo = () => {
    messages.forEach((one, i) => (one.parent = parents[i]));
    Object.assign(conversation, { messages, leaf, from });
    changed();
  };
  toast("Message deleted.", { label: "Undo", run: undo }, 10);
}

/** Start a new conversation with the messages up to this one. */
export function fork(node) {
  const copy = copyPath(state.current, node);
  keep(copy);
  show(copy);
}

/** Stop the answer in the open conversation; return false if none is running. */
export function stop() {
  const run = state.runs.get(state.current?.id);
  run?.controller.abort();
  return run !== undefined;
}

/** Create a conversation with the default settings. */
export function create() {
  return createConversation(store.small.get("settings", {}));
}

/** Open a conversation; it is stored when it has messages. */
export function show(conversation) {
  if (conversation.messages.length) markOpening(conversation.id);
  state.current = conversation;
  store.small.set("current", conversation.messages.length ? conversation.id : null);
  emit("current");
  emit("list");
  emit("settings");
}

/** Store a conversation in the browser and list it. */
export async function keep(conversation) {
  if (conversation.isDeleted) return; // the deletion ended its answer
  state.conversations.set(conversation.id, conversation);
  if (conversation === state.current) store.small.set("current", conversation.id);
  emit("list");
  try {
    await store.write(conversation);
  } catch {
    emit("unkept");
  }
}

async function answer(conversation, parent) {
  if (state.runs.has(conversation.id)) return;
  const { leaf } = conversation;
  const asked = pathTo(conversation, parent);
  const second = besideOf(conversation);
  // After a deletion, an answer may follow another answer; it is a separate message.
  const more = asked.at(-1)?.role === "assistant" ? { continue_final_message: false } : {};
  if (second) more.seed = seedOf(conversation.settings);
  const begin = (extra) => {
    const node = addMessage(conversation, parent, { role: "assistant", content: "", ...extra });
    if (conversation.settings.form) node.form = conversation.settings.form;
    return new Run(conversation, node, leaf);
  };
  const again = () => answer(conversation, parent);
  if (!second) {
    await perform(begin({}), asked, more, again);
    return;
  }
  // Sequentially, because a server with one loaded model must swap, and to keep each answer fast.
  const pair = crypto.getRandomValues(new Uint32Array(2)).join("-");
  const first = begin({ pair, seed: more.seed, model: chosenModel().name });
  await perform(first, asked, more, again);
  if (!conversation.messages.includes(first.node) || ["stopped", "broken"].includes(first.node.ending)) return;
  const other = begin({ pair, seed: more.seed, model: second.name });
  other.model = second;
  other.leaf = conversation.leaf = first.node.id;
  await perform(other, asked, { ...more, model: second.name }, again);
}

/** Run until the answer is complete or fails; `again` retries. */
async function perform(run, path, more, again) {
  const { conversation, node } = run;
  state.problems.delete(conversation.id);
  state.runs.set(conversation.id, run);
  node.ending = "cut"; // if the page is reloaded
  emit("current");
  emit("run", run);
  let error = null;
  try {
    await keep(conversation);
    await whenSettled(run);
    checkModalities(run, path);
    await receive(run, path, more);
  } catch (caught) {
    error = caught;
  }
  const drop = error?.code === FULL && canDrop(conversation, path) ? () => dropTurns(conversation, path, error.size) : null;
  finish(run, error, { again, drop });
}

/** Throw an ApiError if the model does not support the conversation's images or audio. */
function checkModalities({ conversation, model: asked }, path) {
  const model = asked ?? chosenModel();
  if (!model) return;
  const has = (which, kind) => conversation.settings[which] !== "off" && sentPath(conversation, path).some((node) => node.files?.some((file) => file[kind]));
  if (!takesImages(model) && has("images", "image")) throw new api.ApiError(NO_IMAGES, `${model.name} does not support images: choose a model that does, or continue without them.`);
  if (!takesAudio(model) && has("audio", "audio")) throw new api.ApiError(NO_AUDIO, `${model.name} does not support audio: choose a model that does, or continue without it.`);
}

/** Retry with fewer turns while the context is full, if the settings allow it. */
async function receive(run, path, more) {
  const { conversation, controller } = run;
  let canNote = conversation.settings.overflow === "compact";
  if (noted.delete(conversation.id) && canNote && canCompact(conversation, path)) {
    canNote = false;
    await writeNote(conversation, path, controller.signal);
    emit("current");
  }
  for (;;) {
    try {
      await stream(run, requestOf(run.conversation, path, more));
      return;
    } catch (error) {
      if (error.code !== FULL || !["drop", "compact"].includes(conversation.settings.overflow)) throw error;
      if (canNote && canCompact(conversation, path)) {
        canNote = false; // drop the turns that do not fit together with the summary
        await writeNote(conversation, path, controller.signal);
      } else if (!dropTurns(conversation, path, error.size)) throw error;
      emit("current");
    }
  }
}

async function stream(run, body) {
  run.isAsking = true;
  emit("refresh"); // poll the loading progress until the answer begins
  for await (const chunk of api.chat(body, run.controller.signal)) {
    if (run.isAsking) {
      run.isAsking = false;
      if (chosenModel()?.state !== "ready") emit("refresh");
    }
    run.take(chunk);
    if (performance.now() - run.savedAt > SAVE_EVERY) {
      run.savedAt = performance.now();
      keep(run.conversation);
    }
  }
}

function finish(run, error, problem) {
  const { conversation, node } = run;
  state.runs.delete(conversation.id);
  const isStopped = error?.name === "AbortError";
  if (error) {
    node.ending = isStopped ? "stopped" : "broken";
    node.figures ??= run.n ? { tokens: run.n, rate: run.rate, first: run.firstAt - run.started } : undefined;
    if (!isStopped || !run.n) {
      const told = isStopped ? new api.ApiError("stopped", "Stopped before the answer began.") : error;
      state.problems.set(conversation.id, { ...problem, error: told });
    }
    if (run.leaf === null) node.ending = isStopped ? "stopped" : "cut";
    else if (!run.n) drop(conversation, run);
  }
  if (!error && isFull(node)) node.ending = "full";
  if (!error && isBare(node)) node.ending = "bare";
  if (run.before && node.figures && node.figures !== run.before) node.figures.tokens += run.before.tokens ?? 0;
  conversation.updated = Date.now();
  emit("run", run);
  emit("current", run);
  if (error && !isStopped) emit("problem", error);
  return keep(conversation);
}

/** Remove an empty answer. */
function drop(conversation, run) {
  conversation.messages = conversation.messages.filter((node) => node !== run.node);
  if (conversation.leaf === run.node.id) conversation.leaf = run.leaf;
}

function pathTo(conversation, id) {
  return shownPath({ ...conversation, leaf: id });
}
