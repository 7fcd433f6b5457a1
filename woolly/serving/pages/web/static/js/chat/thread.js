// Thread: the messages of the open conversation, or the start screen.

import * as chat from "./chat.js";
import { announce, byId, el, fact, iconButton, mark } from "../app/dom.js";
import { bytes, number, parameters } from "../app/format.js";
import { showLock } from "../app/lock.js";
import { fillPair, pairOf } from "./compare.js";
import { MessageView, NOTES } from "./message.js";
import { problemView } from "./problem.js";
import { chosenModel, modelState, on, state } from "../app/state.js";
import { shownPath } from "./tree.js";
import { noteOf, sentFrom } from "./window.js";

const NEAR = 80; // pixels from the end that count as the end
const MAX_SPOKEN_CHARACTERS = 1500; // of an answer announced to screen readers

const STARTS = [
  ["Explain", "Explain how a hash table works, with a small example in Python."],
  ["Write", "Write a short, friendly email that moves a meeting from Tuesday to Thursday."],
  ["Compare", "Compare TCP and UDP in a table: reliability, order, speed, typical use."],
  ["Imagine", "Tell a story in six sentences about a mammoth who learns to knit."],
];

const thread = byId("thread");
const scroller = byId("scroller");
const jump = iconButton("down", "Go to the end", () => scrollToEnd("smooth"), { class: "jump", hidden: true });

let views = new Map();
let shown = null; // the rendered conversation
let isAtEnd = true;
let isWaiting = false; // true if "Waiting for the answer" was announced last

/** Add event listeners. */
export function setUpThread() {
  byId("composer").prepend(jump);
  scroller.addEventListener("scroll", () => {
    isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR;
    jump.hidden = isAtEnd;
  }, { passive: true });
  new ResizeObserver(() => isAtEnd && state.current?.messages.length && scrollToEnd()).observe(scroller);
  on("current", render);
  on("models", () => !state.current?.messages.length && render());
}

function scrollToEnd(behavior = "instant") {
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  scroller.scrollTo({ top: scroller.scrollHeight, behavior: isCalm ? "instant" : behavior });
}

function followEnd() {
  if (isAtEnd) scrollToEnd();
}

/** Render the path of the conversation, reusing message views. */
function render(finished = null) {
  const conversation = state.current;
  if (!conversation) return;
  if (finished && finished.conversation !== conversation) return;
  const isOther = conversation !== shown;
  if (isOther) views = new Map();
  shown = conversation;
  const path = shownPath(conversation);
  document.title = conversation.title ? `${conversation.title} – Woolly` : "Woolly";
  if (!path.length && !state.problems.has(conversation.id)) {
    views = new Map();
    thread.replaceChildren(start());
    sayWaiting(false);
    return;
  }
  const run = state.runs.get(conversation.id);
  const held = new Map();
  const viewOf = (node) => {
    let view = views.get(node.id);
    if (!view) view = new MessageView(node, conversation);
    if (run?.node === node) view.follow(run, followEnd);
    else if (finished?.node === node) view.finish();
    else view.showFoot();
    view.article.classList.toggle("kept", path.includes(node));
    held.set(node.id, view);
    return view.article;
  };
  const articles = path.map((node) => {
    const nodes = pairOf(conversation, node);
    return nodes.length === 1 ? viewOf(node) : pairRow(node, nodes, nodes.map(viewOf), run);
  });
  views = held;
  place(withDivider(conversation, articles));
  sayWaiting(Boolean(run));
  if (finished && views.has(finished.node.id)) announce(finished.node.ending === "bare" ? NOTES.bare : `Answer: ${plainText(views.get(finished.node.id)).slice(0, MAX_SPOKEN_CHARACTERS)}`);
  if (isOther || run) isAtEnd = true;
  if (isAtEnd) scrollToEnd();
}

/** Announce that an answer is awaited, and clear the announcement afterwards. */
function sayWaiting(awaits) {
  if (awaits) announce("Waiting for the answer");
  else if (isWaiting) announce("");
  isWaiting = awaits;
}

/** Return the row of side-by-side answers, which is reused while they are generated. */
function pairRow(node, nodes, articles, run) {
  const row = thread.querySelector(`.pair[data-pair="${CSS.escape(node.pair)}"]`) ?? el("div", { class: "pair", "data-pair": node.pair });
  return fillPair(row, nodes, articles, nodes.includes(run?.node));
}

/** Render a divider before the first message that is sent, if earlier turns were dropped. */
function withDivider(conversation, articles) {
  const path = shownPath(conversation);
  const at = sentFrom(conversation, path);
  if (at <= 0) return articles;
  const note = noteOf(conversation, path);
  if (note === null) return articles.toSpliced(at, 0, el("p", { class: "dropped", role: "note" }, "The context was full: only messages from here on are sent to the model."));
  const undo = el("button", { type: "button", class: "text-button", on: { click: () => chat.undoCompaction() } }, "Undo");
  const about = el("summary", {}, "The model gets a summary instead of the messages above.");
  return articles.toSpliced(at, 0, el("details", { class: "compacted", role: "note" }, about, el("p", {}, note), undo));
}

/** Update the thread without moving nodes unnecessarily, so that an edit box keeps its focus. */
function place(articles) {
  const problem = state.problems.get(state.current.id);
  const nodes = [...articles];
  if (problem) nodes.push(problemView(problem, () => state.problems.get(shown?.id) !== problem));
  for (const child of [...thread.children]) if (!nodes.includes(child)) child.remove();
  nodes.forEach((node, i) => {
    if (thread.children[i] !== node) thread.insertBefore(node, thread.children[i] ?? null);
  });
}

const plainText = (view) => view.text?.textContent ?? "";

/** Edit the user's last message; return false if there is none. */
export function editLast() {
  const last = [...views.values()].filter((view) => view.node.role === "user").at(-1);
  last?.edit();
  return last !== undefined;
}

/** Regenerate the last answer. */
export function regenerateLast() {
  const last = [...views.values()].filter((view) => view.node.role === "assistant").at(-1);
  if (last) chat.regenerate(last.node);
}

function start() {
  const model = chosenModel();
  const begin = (text) => () => {
    byId("message").focus();
    chat.send(text);
  };
  return el(
    "div",
    { class: "start" },
    mark(),
    el("h2", {}, greeting(model)),
    el("p", { class: "about" }, about(model)),
    state.isLocked && el("button", { type: "button", class: "button primary", on: { click: showLock } }, "Enter the key"),
    model && el("ul", { class: "starts", "aria-label": "Suggestions" }, STARTS.map(([name, text]) => el("li", {}, el("button", { type: "button", on: { click: begin(text) } }, el("strong", {}, name), el("span", {}, text))))),
  );
}

function greeting(model) {
  if (state.health === "unreachable") return "The server cannot be reached";
  if (state.isLocked) return "This server requires a key";
  if (!model) return state.health ? "No model yet" : "…";
  return { ready: "What would you like to work on?", loading: "The model is being loaded", unloading: "The model is being unloaded" }[modelState(model)] ?? "What would you like to work on?";
}

function about(model) {
  if (state.isLocked) return "Ask the server's administrator for it.";
  if (state.health === "unreachable") return "This page retries automatically.";
  if (!model) return state.health ? ["Put a GGUF file into the models folder, or run ", el("code", {}, "woolly pull smollm2"), "."] : "";
  const size = [fact(`${parameters(model.parameters)} parameters`), ", ", fact(bytes(model.size_bytes)), `, a context of ${number(model.context_length)} tokens`];
  const verb = { ready: "is loaded", loading: "is being loaded", unloading: "is being unloaded" }[modelState(model)] ?? "will be loaded with your first message";
  return [el("strong", {}, model.name), ` ${verb}: `, ...size, ". It runs on the server's machine; nothing is sent elsewhere."];
}
