// Chat: from what a person writes to an answer in the conversation.

import * as api from "./api.js";
import { toRequest } from "./samplers.js";
import { chosenModel, emit, state } from "./state.js";
import * as store from "./store.js";
import { addMessage, createConversation, shownPath } from "./tree.js";

const SAVE_EVERY = 1000; // milliseconds, while an answer is being written

/** An answer that is being written; `onDelta(name, text)` is called with what comes. */
class Run {
  constructor(conversation, node, leaf) {
    this.conversation = conversation;
    this.node = node;
    this.leaf = leaf; // what was shown before, and is again where nothing comes
    this.controller = new AbortController();
    this.started = performance.now();
    this.firstAt = null;
    this.n = 0; // chunks, which are tokens but for those that are part of a character
    this.savedAt = 0;
    this.onDelta = null;
  }

  /** Tokens per second up to this moment. */
  get rate() {
    return this.n > 1 ? ((this.n - 1) * 1000) / (performance.now() - this.firstAt) : 0;
  }

  take(chunk) {
    this.node.model ??= chunk.model;
    const choice = chunk.choices[0];
    for (const [from, to] of [["reasoning_content", "reasoning"], ["content", "content"]]) {
      const text = choice?.delta?.[from];
      if (!text) continue;
      this.firstAt ??= performance.now();
      this.n += 1;
      this.node[to] += text;
      this.onDelta?.(to, text);
    }
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
export function send(text) {
  const conversation = state.current;
  store.small.set("fresh-settings", null);
  addMessage(conversation, conversation.leaf, { role: "user", content: text });
  return answer(conversation, conversation.leaf);
}

/** Has the question before this answer answered once more, beside it. */
export function regenerate(node) {
  return answer(state.current, node.parent);
}

/** Puts another text beside a message; one that was asked is then answered. */
export function edit(node, text) {
  const conversation = state.current;
  addMessage(conversation, node.parent, { role: node.role, content: text, model: node.model });
  if (node.role === "user") return answer(conversation, conversation.leaf);
  emit("current");
  return keep(conversation);
}

/** Asks again where the answer did not come. */
export function retry() {
  const problem = state.problems.get(state.current?.id);
  return problem ? answer(state.current, problem.parent) : undefined;
}

/** Ends the answer that is being written in the conversation that is shown; false where there is none. */
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
  state.problems.delete(conversation.id);
  const { leaf } = conversation;
  const asked = pathTo(conversation, parent);
  const node = addMessage(conversation, parent, { role: "assistant", content: "" });
  const run = new Run(conversation, node, leaf);
  state.runs.set(conversation.id, run);
  emit("current");
  emit("run", run);
  let error = null;
  try {
    await keep(conversation);
    await receive(run, requestOf(conversation, asked));
  } catch (caught) {
    error = caught;
  }
  finish(run, error);
}

async function receive(run, body) {
  for await (const chunk of api.chat(body, run.controller.signal)) {
    run.take(chunk);
    if (performance.now() - run.savedAt > SAVE_EVERY) {
      run.savedAt = performance.now();
      keep(run.conversation);
    }
  }
}

function finish(run, error) {
  const { conversation, node } = run;
  state.runs.delete(conversation.id);
  const isStopped = error?.name === "AbortError";
  if (error) {
    node.ending = isStopped ? "stopped" : "broken";
    node.figures ??= run.n ? { tokens: run.n, rate: run.rate, first: run.firstAt - run.started } : undefined;
    if (!isStopped || !run.n) {
      const told = isStopped ? new api.ApiError("stopped", "Stopped before the answer began.") : error;
      state.problems.set(conversation.id, { error: told, parent: node.parent });
    }
    if (!run.n) drop(conversation, run);
  }
  conversation.updated = Date.now();
  emit("run", run);
  emit("current", run);
  if (error && !isStopped) emit("problem", error);
  return keep(conversation);
}

/** An answer of which nothing came leaves no trace. */
function drop(conversation, run) {
  conversation.messages = conversation.messages.filter((node) => node !== run.node);
  if (conversation.leaf === run.node.id) conversation.leaf = run.leaf;
}

function pathTo(conversation, id) {
  return shownPath({ ...conversation, leaf: id });
}

function requestOf(conversation, path) {
  const { settings } = conversation;
  const messages = settings.system?.trim() ? [{ role: "system", content: settings.system }] : [];
  for (const { role, content } of path) {
    const last = messages.at(-1);
    // A question without an answer and the one after it are one: many templates want roles to take turns.
    if (last?.role === role) last.content += `\n\n${content}`;
    else messages.push({ role, content });
  }
  return { ...modelField(), messages, ...toRequest(settings, state.defaults), stream: true, stream_options: { include_usage: true } };
}

/** The model that was chosen; else whichever the server has loaded; where it has none, the one that the page shows. */
function modelField() {
  const isFree = !state.models.some((one) => one.name === state.model) && state.models.some((one) => one.loaded);
  const model = isFree ? null : chosenModel();
  return model ? { model: model.name } : {};
}
