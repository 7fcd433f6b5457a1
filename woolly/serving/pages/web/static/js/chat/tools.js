// MCP tools: available tools, permissions and running calls.

import * as api from "../app/api.js";
import { announce, toast } from "../app/dom.js";
import { emit, on, state } from "../app/state.js";
import * as chat from "./chat.js";
import { shownPath } from "./tree.js";

const MAX_ROUNDS = 16; // rounds without approval per turn, because a model may call tools forever
const REFUSED = "The user refused this call. Do not repeat it; continue without it.";
const STOPPED = "The user stopped this call.";

// Never stored, because an imported conversation must not bring permissions.
const decided = new Map(); // conversation and tool -> true if calls are allowed
const underWay = new WeakMap(); // answer -> per call {stage: waiting, running or done, text, controller}

const STARTING = 700; // milliseconds between polls while servers start

const held = new Map(); // run -> function that resumes it
let isAsked = false;
let asking = null; // the running request

/** Add event listeners. */
export function setUpTools() {
  on("models", () => !isAsked && state.health === "ok" && !state.isLocked && look());
  on("run", (run) => !state.runs.has(run.conversation.id) && proceed(run.conversation, run.node));
}

/** Poll the servers until none is starting. */
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
    if (error.status !== 403) isAsked = false; // retry at the next refresh
    state.servers = []; // answers must not wait
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

/** Return the names of the starting servers. */
export const startingServers = () => state.servers.filter((server) => server.state === "starting").map((server) => server.name);

function release() {
  if (!startingServers().length) for (const goOn of [...held.values()]) goOn();
}

/** Restart a failed server. */
export async function startAgain(name) {
  take({ tools: state.tools, servers: state.servers.map((server) => (server.name === name ? { ...server, state: "starting", reason: null } : server)) });
  try {
    take(await api.startServer(name));
  } catch (error) {
    toast(error.message, null, 12);
    await look();
  }
}

/** Wait until every server is up or failed, because missing tools would change the answer. */
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

/** Return true if an answer waits for the servers. */
export const isHeld = (run) => held.has(run);

/** Continue with the available tools. */
export const skipServers = (run) => held.get(run)?.();

export const findTool = (name) => state.tools.find((tool) => tool.name === name);

/** Return the names of the disabled tools of a conversation. */
const withoutOf = (settings) => new Set((settings.without ?? "").split(" ").filter(Boolean));

export const isOffered = (settings, tool) => settings.mcp !== "off" && !withoutOf(settings).has(tool.name);

/** Enable or disable tools of a conversation. */
export function offerTools(settings, tools, isOn) {
  const without = settings.mcp === "off" ? new Set(state.tools.map((tool) => tool.name)) : withoutOf(settings);
  for (const { name } of tools) isOn ? without.delete(name) : without.add(name);
  settings.without = [...without].join(" ");
  settings.mcp = "";
}

/** Return the tools of a request in OpenAI's format. */
export function offeredTools(settings) {
  return state.tools.filter((tool) => isOffered(settings, tool)).map(({ name, description, parameters }) => ({ type: "function", function: { name, description, parameters } }));
}

/** Return the progress of each call of an answer. */
export function stagesOf(node) {
  if (!underWay.has(node)) underWay.set(node, node.calls.map(() => ({ stage: "waiting", text: "" })));
  return underWay.get(node);
}

/** Return true if the calls of an answer need approval: it is complete, and the last answer. */
export const isAsking = (conversation, node) => node.ending === "tool_calls" && conversation.leaf === node.id && !state.runs.has(conversation.id);

/** Apply the user's decision on a call: once, always or no. */
export function decide(conversation, node, i, reply) {
  if (reply === "always") decided.set(keyOf(conversation, node.calls[i]), true);
  settle(conversation, node, i, reply !== "no");
  if (reply === "always") proceed(conversation, node);
}

/** Stop a running call. */
export const stopCall = (node, i) => stagesOf(node)[i].controller?.abort();

const keyOf = (conversation, call) => `${conversation.id} ${call.name}`;

/** Run the calls that need no approval. */
function proceed(conversation, node) {
  if (!node.calls?.length || !isAsking(conversation, node) || countRounds(conversation) > MAX_ROUNDS) return;
  node.calls.forEach((call, i) => decided.get(keyOf(conversation, call)) && findTool(call.name) && settle(conversation, node, i, true));
}

/** Return the answers with calls since the user's last message. */
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
  // The user has sent or edited a message meanwhile.
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
