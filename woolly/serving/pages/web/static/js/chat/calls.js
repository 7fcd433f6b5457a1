// Tool calls of an answer. The server runs calls to MCP tools after the user agrees; the user enters the
// results of other calls.

import * as chat from "./chat.js";
import { el } from "../app/dom.js";
import { CodeView } from "../markdown/code.js";
import { decide, findTool, isAsking, stagesOf, stopCall } from "./tools.js";

/** Append a streamed piece to the calls of an answer. */
export function takeCall(calls, piece) {
  const call = (calls[piece.index ?? 0] ??= { id: "", name: "", arguments: "" });
  if (piece.id) call.id = piece.id;
  call.name += piece.function?.name ?? "";
  call.arguments += piece.function?.arguments ?? "";
}

/** Render the calls of an answer, with buttons or an input for missing results. */
export function callsView(conversation, node) {
  const isOpen = conversation.leaf === node.id;
  const boxes = node.calls.map((call) => (isOpen && !(isAsking(conversation, node) && findTool(call.name)) ? resultBox(call) : null));
  const cards = node.calls.map((call, i) => callCard(call, isOpen ? (boxes[i] ?? approval(conversation, node, i)) : null, isOpen && stagesOf(node)[i].stage !== "done"));
  const submit = (event) => {
    event.preventDefault();
    chat.sendResults(conversation, node, boxes.map((box, i) => box?.value ?? stagesOf(node)[i].text));
  };
  const isReady = boxes.every((box, i) => box || stagesOf(node)[i].stage === "done");
  const send = el("button", { type: "submit", class: "button primary", disabled: !isReady }, node.calls.length > 1 ? "Send results" : "Send result");
  return el("form", { class: "calls", on: { submit } }, ...cards, boxes.some(Boolean) ? el("div", { class: "row" }, send) : null);
}

/** Render a call as one line, unfolded while a decision or a result is missing. */
function callCard(call, below, isUnfolded) {
  const tool = findTool(call.name);
  const title = [el("span", { class: "kind" }, "Tool call "), el("code", {}, call.name), tool ? el("span", { class: "unit" }, ` of ${tool.server}`) : null];
  return el("details", { class: "call", open: isUnfolded }, el("summary", { title: tool?.description ?? "" }, ...title, brief(call.arguments)), codeView(pretty(call.arguments)), below);
}

const BRIEF = 200; // maximum characters of a folded call or result

const brief = (text) => el("span", { class: "brief" }, text.slice(0, 4 * BRIEF).replace(/\s+/g, " ").trim().slice(0, BRIEF));

const resultBox = (call) => el("textarea", { rows: 2, class: "code-box", "aria-label": `Result of ${call.name}`, placeholder: "Result, as text or JSON", spellcheck: "false" });

/** Render the approval buttons or the progress of a call. */
function approval(conversation, node, i) {
  const { stage, text } = stagesOf(node)[i];
  const { name } = node.calls[i];
  const button = (label, reply, kind = "") => el("button", { type: "button", class: `button small ${kind}`, "aria-label": `${label}: ${name}`, on: { click: () => decide(conversation, node, i, reply) } }, label);
  if (stage === "running") return el("div", { class: "row", role: "status" }, "Running…", el("button", { type: "button", class: "button small", on: { click: () => stopCall(node, i) } }, "Stop"));
  if (stage === "done") return resultText(text);
  return el("div", { class: "row approval", role: "group", "aria-label": `May ${name} be called?` }, button("Run once", "once", "primary"), button("Always allow", "always"), button("Refuse", "no"));
}

/** Render the result of a call. */
export function resultView(node) {
  const isError = node.content.startsWith("Error: ");
  return el("details", { class: isError ? "call error" : "call" }, el("summary", {}, el("span", { class: "kind" }, "Result of "), el("code", {}, node.name ?? "the tool"), brief(node.content)), resultText(node.content));
}

/** Render JSON objects and lists as code, and other text as wrapped lines. */
const resultText = (text) => (/^\s*[[{]/.test(text) && pretty(text) !== text ? codeView(pretty(text)) : el("pre", { class: "plain result", tabindex: "0" }, text));

function codeView(text) {
  const view = new CodeView("json");
  view.grow(text);
  return view.node;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
