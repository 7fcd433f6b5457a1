// Tools: what the MCP servers behind this server offer, which calls a person allows, and calls under way.

import * as api from "../app/api.js";
import { toast } from "../app/dom.js";
import { emit, on, state } from "../app/state.js";
import * as chat from "./chat.js";
import { shownPath } from "./tree.js";

const MOST_ROUNDS = 16; // that run without a question in one turn: a model may call for ever
const REFUSED = "The user refused this call. Do not repeat it; continue without it.";
const STOPPED = "The user stopped this call.";

// Kept until the page is closed and never stored: a conversation from a file must not bring permissions along.
const decided = new Map(); // conversation and tool -> whether it may be called
const underWay = new WeakMap(); // answer -> per call {stage: waiting, running or done, text, controller}

let isAsked = false;

/** Begins to listen. */
export function setUpTools() {
  on("models", () => !isAsked && state.health === "ok" && !state.isLocked && load());
  on("run", (run) => !state.runs.has(run.conversation.id) && proceed(run.conversation, run.node));
}

async function load() {
  isAsked = true;
  try {
    const { tools, errors } = await api.tools();
    state.tools = tools;
    for (const error of errors) toast(error, null, 15);
    if (tools.length) for (const kind of ["settings", "current"]) emit(kind);
  } catch (error) {
    if (error.status !== 403) isAsked = false; // asked again when the server is next
  }
}

export const findTool = (name) => state.tools.find((tool) => tool.name === name);

/** The tools of a request, in OpenAI's shape. */
export function offeredTools(settings) {
  if (settings.mcp === "off") return [];
  return state.tools.map(({ name, description, parameters }) => ({ type: "function", function: { name, description, parameters } }));
}

/** How far each call of an answer is. */
export function stagesOf(node) {
  if (!underWay.has(node)) underWay.set(node, node.calls.map(() => ({ stage: "waiting", text: "" })));
  return underWay.get(node);
}

/** Whether a person is asked about the calls of an answer: it is complete, and the last one. */
export const isAsking = (conversation, node) => node.ending === "tool_calls" && conversation.leaf === node.id && !state.runs.has(conversation.id);

/** Takes a person's decision on a call: once, always, no. */
export function decide(conversation, node, i, reply) {
  if (reply === "always") decided.set(keyOf(conversation, node.calls[i]), true);
  settle(conversation, node, i, reply !== "no");
  if (reply === "always") proceed(conversation, node);
}

/** Ends a call that runs. */
export const stopCall = (node, i) => stagesOf(node)[i].controller?.abort();

const keyOf = (conversation, call) => `${conversation.id} ${call.name}`;

/** Runs the calls that need no question. */
function proceed(conversation, node) {
  if (!node.calls?.length || !isAsking(conversation, node) || countRounds(conversation) > MOST_ROUNDS) return;
  node.calls.forEach((call, i) => decided.get(keyOf(conversation, call)) && findTool(call.name) && settle(conversation, node, i, true));
}

/** The answers with calls since the person's last message. */
function countRounds(conversation) {
  const path = shownPath(conversation);
  return path.slice(path.findLastIndex((node) => node.role === "user") + 1).filter((node) => node.calls?.length).length;
}

async function settle(conversation, node, i, isAllowed) {
  const call = node.calls[i];
  const one = stagesOf(node)[i];
  if (one.stage !== "waiting") return;
  if (isAllowed) {
    Object.assign(one, { stage: "running", controller: new AbortController() });
    emit("current");
    one.text = await run(call, one.controller.signal);
  } else one.text = REFUSED;
  one.stage = "done";
  // What was asked or edited meanwhile goes another way.
  if (conversation.isDeleted || !isAsking(conversation, node)) return;
  const stages = stagesOf(node);
  if (stages.every(({ stage }) => stage === "done")) chat.sendResults(conversation, node, stages.map(({ text }) => text));
  else emit("current");
}

async function run(call, signal) {
  try {
    return (await api.callTool(call.name, call.arguments, signal)).text;
  } catch (error) {
    return error.name === "AbortError" ? STOPPED : `Error: ${error.message}`;
  }
}
