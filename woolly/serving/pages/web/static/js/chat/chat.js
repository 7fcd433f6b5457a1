// Chat: from what a person writes to an answer in the conversation.

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

const noted = new Set(); // conversations whose next request begins with a note: that they are full is known
const SAVE_EVERY = 1000; // milliseconds, while an answer is being written
export const FULL = "context_length_exceeded";
export const NO_IMAGES = "no-images"; // the conversation has images, but the model does not support them
export const NO_AUDIO = "no_audio"; // it has audio files, and the model does not support audio
// A structure would begin anew in the middle of an answer; it is left out.
const CONTINUED = { continue_final_message: true, response_format: undefined, grammar: undefined, regex: undefined };

/** An answer that is being written; `onDelta(name, text)` is called with what comes. */
class Run {
  constructor(conversation, node, leaf) {
    this.conversation = conversation;
    this.node = node;
    this.model = null; // the one that was asked for, if it is not the chosen one
    this.leaf = leaf; // shown before, and again if no answer comes; null if a text is continued
    this.controller = new AbortController();
    this.started = performance.now();
    this.firstAt = null;
    this.isAsking = false; // the server has the request, and nothing came of it: its model may be loading
    this.reading = null; // {processed, total} tokens of the prompt
    this.n = 0; // chunks, which are tokens but for those that are part of a character
    this.savedAt = 0;
    this.onDelta = null;
    this.before = leaf === null ? node.figures : undefined; // of the text that is continued
  }

  /** Tokens per second up to this moment. */
  get rate() {
    return this.n > 1 ? ((this.n - 1) * 1000) / (performance.now() - this.firstAt) : 0;
  }

  take(chunk) {
    this.node.model ??= chunk.model;
    this.id = chunk.id; // by which the server knows the answer
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

/** Adds a message to the conversation that is shown, and has it answered. */
export function send(text, files = []) {
  const conversation = state.current;
  store.small.set("fresh-settings", null);
  addMessage(conversation, conversation.leaf, { role: "user", content: text, ...(files.length ? { files } : {}) });
  return answer(conversation, conversation.leaf);
}

/** Gives the results of the tools that an answer called, and has them answered. */
export function sendResults(conversation, node, results) {
  if (state.runs.has(conversation.id)) return undefined;
  conversation.leaf = node.id;
  node.calls.forEach((call, i) => addMessage(conversation, conversation.leaf, { role: "tool", content: results[i], call: call.id, name: call.name }));
  return answer(conversation, conversation.leaf);
}

/** Has the question before this answer answered once more, beside it. */
export function regenerate(node) {
  return answer(state.current, node.parent);
}

/** Puts another text beside a message; one that was asked is then answered. */
export function edit(node, text) {
  const conversation = state.current;
  addMessage(conversation, node.parent, { role: node.role, content: text, model: node.model, ...(node.files ? { files: node.files } : {}) });
  if (node.role === "user") return answer(conversation, conversation.leaf);
  emit("current");
  return keep(conversation);
}

/** Asks again if the answer did not come. */
export function retry() {
  return state.problems.get(state.current?.id)?.again();
}

/** Sends no more of the oldest turns of this conversation whenever its context is full, and asks again. */
export function dropAndRetry() {
  state.current.settings.overflow = "drop";
  state.problems.get(state.current.id).drop();
  emit("settings");
  return retry();
}

/** Lets a note stand for older turns of this conversation whenever its context is full, and asks again. */
export function compactAndRetry() {
  state.current.settings.overflow = "compact";
  noted.add(state.current.id);
  emit("settings");
  return retry();
}

/** Has a note written of all turns before the last question, which the model then gets in their place. */
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

/** Sends the turns again that the latest note stands for. */
export function undoCompaction() {
  if (state.runs.has(state.current.id)) return undefined;
  undoNote(state.current);
  emit("current");
  return keep(state.current);
}

/** Sends no more of this conversation's "images", or "audio", and asks again. */
export function leaveOut(which) {
  state.current.settings[which] = "off";
  emit("settings");
  return retry();
}

/** Has an answer that was cut off continued where it ends. */
export function continueAnswer(node) {
  const conversation = state.current;
  if (state.runs.has(conversation.id)) return undefined;
  const run = new Run(conversation, node, null);
  delete node.tokens;
  return perform(run, pathTo(conversation, node.id), CONTINUED, () => continueAnswer(node));
}

/** Whether an answer that filled the context can be continued: without the oldest turns. */
export const canMakeRoom = (conversation, node) => canDrop(conversation, pathTo(conversation, node.id));

/** Has such an answer continued, without the oldest turns. */
export function makeRoomAndContinue(node) {
  const conversation = state.current;
  const fill = contextFill(conversation);
  conversation.settings.overflow = "drop";
  dropTurns(conversation, pathTo(conversation, node.id), fill && { has: fill.used, holds: fill.size });
  emit("settings");
  return continueAnswer(node);
}

/** Deletes one message; what follows it stays. */
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
  toast("The message is deleted.", { label: "Undo", run: undo }, 10);
}

/** Begins another conversation with the messages up to this one. */
export function fork(node) {
  const copy = copyPath(state.current, node);
  keep(copy);
  show(copy);
}

/** Stops the answer in the shown conversation; returns false if none is being written. */
export function stop() {
  const run = state.runs.get(state.current?.id);
  run?.controller.abort();
  return run !== undefined;
}

/** A conversation with the settings that were kept for new ones. */
export function create() {
  return createConversation(store.small.get("settings", {}));
}

/** Shows a conversation; one without messages is not kept yet. */
export function show(conversation) {
  if (conversation.messages.length) markOpening(conversation.id);
  state.current = conversation;
  store.small.set("current", conversation.messages.length ? conversation.id : null);
  emit("current");
  emit("list");
  emit("settings");
}

/** Keeps a conversation in the browser, and lists it. */
export async function keep(conversation) {
  if (conversation.isDeleted) return; // the end of an answer that was cut off by it
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
  // After a message was deleted, an answer may follow an answer; it is one of its own.
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
  // One after the other: a server that holds one model swaps them, and neither slows the other down.
  const pair = crypto.getRandomValues(new Uint32Array(2)).join("-");
  const first = begin({ pair, seed: more.seed, model: chosenModel().name });
  await perform(first, asked, more, again);
  if (!conversation.messages.includes(first.node) || ["stopped", "broken"].includes(first.node.ending)) return;
  const other = begin({ pair, seed: more.seed, model: second.name });
  other.model = second;
  other.leaf = conversation.leaf = first.node.id;
  await perform(other, asked, { ...more, model: second.name }, again);
}

/** Runs until the answer is complete, or fails; `again` tries the same once more. */
async function perform(run, path, more, again) {
  const { conversation, node } = run;
  state.problems.delete(conversation.id);
  state.runs.set(conversation.id, run);
  node.ending = "cut"; // what a reload finds
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

/** ApiError if the model does not take images or audio that it would get; the server's sentence is for programmers. */
function checkModalities({ conversation, model: asked }, path) {
  const model = asked ?? chosenModel();
  if (!model) return;
  const has = (which, kind) => conversation.settings[which] !== "off" && sentPath(conversation, path).some((node) => node.files?.some((file) => file[kind]));
  if (!takesImages(model) && has("images", "image")) throw new api.ApiError(NO_IMAGES, `${model.name} does not support images: choose a model that does, or go on without them.`);
  if (!takesAudio(model) && has("audio", "audio")) throw new api.ApiError(NO_AUDIO, `${model.name} does not support audio: choose a model that does, or go on without it.`);
}

/** Asks with fewer turns as long as the context is full, if the conversation is set so. */
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
        canNote = false; // turns that do not fit beside their note are dropped
        await writeNote(conversation, path, controller.signal);
      } else if (!dropTurns(conversation, path, error.size)) throw error;
      emit("current");
    }
  }
}

async function stream(run, body) {
  run.isAsking = true;
  emit("refresh"); // until something comes, the page looks how far the model is
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

/** Removes an answer that is still empty. */
function drop(conversation, run) {
  conversation.messages = conversation.messages.filter((node) => node !== run.node);
  if (conversation.leaf === run.node.id) conversation.leaf = run.leaf;
}

function pathTo(conversation, id) {
  return shownPath({ ...conversation, leaf: id });
}
