// Tools: what the MCP servers behind this server offer, which calls a person allows, and calls under way.

import * as api from "../app/api.js";
import { announce, toast } from "../app/dom.js";
import { emit, on, state } from "../app/state.js";
import * as chat from "./chat.js";
import { shownPath } from "./tree.js";

const MAX_ROUNDS = 16; // that run without a question in one turn: a model may call for ever
const REFUSED = "The user refused this call. Do not repeat it; continue without it.";
const STOPPED = "The user stopped this call.";

// Kept until the page is closed and never stored: a conversation from a file must not bring permissions along.
const decided = new Map(); // conversation and tool -> whether it may be called
const underWay = new WeakMap(); // answer -> per call {stage: waiting, running or done, text, controller}

const STARTING = 700; // milliseconds until servers that start are looked at again

const held = new Map(); // run -> what lets it go on
let isAsked = false;
let asking = null; // the question under way

/** Begins to listen. */
export function setUpTools() {
  on("models", () => !isAsked && state.health === "ok" && !state.isLocked && look());
  on("run", (run) => !state.runs.has(run.conversation.id) && proceed(run.conversation, run.node));
}

/** Asks how far the servers are, until none starts any more. */
function look() {
  isAsked = true;
  asking ??= ask().finally(() => (asking = null));
  return asking;
}

async function ask() {
  try {
    take(await api.tools());
    if (startingServers().length) setTimeout(look, STARTING);
  } catch (error) {
    if (error.status !== 403) isAsked = false; // asked again when the server is next
    state.servers = []; // nothing waits for what cannot be known
    release();
  }
}

function take({ tools, servers }) {
  const hasChanged = JSON.stringify([state.tools, state.servers]) !== JSON.stringify([tools, servers]);
  const hasOthers = state.tools.map((tool) => tool.name).join() !== tools.map((tool) => tool.name).join();
  Object.assign(state, { tools, servers });
  if (hasOthers) for (const kind of ["settings", "current"]) emit(kind);
  if (hasChanged) emit("tools");
  release();
}

/** The names of the servers that are not up yet. */
export const startingServers = () => state.servers.filter((server) => server.state === "starting").map((server) => server.name);

function release() {
  if (!startingServers().length) for (const goOn of [...held.values()]) goOn();
}

/** Starts a server that failed once more. */
export async function startAgain(name) {
  take({ tools: state.tools, servers: state.servers.map((server) => (server.name === name ? { ...server, state: "starting", reason: null } : server)) });
  try {
    take(await api.startServer(name));
  } catch (error) {
    toast(error.message, null, 12);
    await look();
  }
}

/** Waits until every server is up or failed: an answer without the tools would be another one. */
export async function whenSettled(run) {
  if (run.conversation.settings.mcp === "off" || state.isLocked) return;
  await (asking ?? (isAsked ? null : look()));
  if (!startingServers().length) return;
  const { signal } = run.controller;
  signal.throwIfAborted();
  announce("Starting tools; the message waits for them");
  const letGo = new Promise((resolve, reject) => {
    held.set(run, resolve);
    signal.addEventListener("abort", () => reject(signal.reason));
  });
  emit("tools");
  await letGo.finally(() => {
    held.delete(run);
    emit("tools");
  });
}

/** Whether an answer waits for the servers. */
export const isHeld = (run) => held.has(run);

/** Has an answer written with the tools that there are. */
export const skipServers = (run) => held.get(run)?.();

export const findTool = (name) => state.tools.find((tool) => tool.name === name);

/** The names of the tools that a conversation does without. */
const withoutOf = (settings) => new Set((settings.without ?? "").split(" ").filter(Boolean));

export const isOffered = (settings, tool) => settings.mcp !== "off" && !withoutOf(settings).has(tool.name);

/** Switches tools of a conversation on or off. */
export function offerTools(settings, tools, isOn) {
  const without = settings.mcp === "off" ? new Set(state.tools.map((tool) => tool.name)) : withoutOf(settings);
  for (const { name } of tools) isOn ? without.delete(name) : without.add(name);
  settings.without = [...without].join(" ");
  settings.mcp = "";
}

/** The tools of a request, in OpenAI's shape. */
export function offeredTools(settings) {
  return state.tools.filter((tool) => isOffered(settings, tool)).map(({ name, description, parameters }) => ({ type: "function", function: { name, description, parameters } }));
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
  if (!node.calls?.length || !isAsking(conversation, node) || countRounds(conversation) > MAX_ROUNDS) return;
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
