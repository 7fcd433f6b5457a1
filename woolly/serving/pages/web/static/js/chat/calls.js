// Calls: the tools that an answer calls. The server runs those of MCP servers, if the person agrees; the person gives the
// results of others.

import * as chat from "./chat.js";
import { el } from "../app/dom.js";
import { CodeView } from "../markdown/code.js";
import { decide, findTool, isAsking, stagesOf, stopCall } from "./tools.js";

/** Adds a piece of a streamed call to the calls of an answer. */
export function takeCall(calls, piece) {
  const call = (calls[piece.index ?? 0] ??= { id: "", name: "", arguments: "" });
  if (piece.id) call.id = piece.id;
  call.name += piece.function?.name ?? "";
  call.arguments += piece.function?.arguments ?? "";
}

/** The calls of an answer; as long as their results are open, buttons or a box for each. */
export function callsView(conversation, node) {
  const isOpen = conversation.leaf === node.id;
  const boxes = node.calls.map((call) => (isOpen && !(isAsking(conversation, node) && findTool(call.name)) ? resultBox(call) : null));
  const cards = node.calls.map((call, i) => el("div", { class: "call" }, callTitle(call), codeView(pretty(call.arguments)), isOpen ? (boxes[i] ?? approval(conversation, node, i)) : null));
  const submit = (event) => {
    event.preventDefault();
    chat.sendResults(conversation, node, boxes.map((box, i) => box?.value ?? stagesOf(node)[i].text));
  };
  const isReady = boxes.every((box, i) => box || stagesOf(node)[i].stage === "done");
  const send = el("button", { type: "submit", class: "button primary", disabled: !isReady }, node.calls.length > 1 ? "Send results" : "Send result");
  return el("form", { class: "calls", on: { submit } }, ...cards, boxes.some(Boolean) ? el("div", { class: "row" }, send) : null);
}

function callTitle(call) {
  const tool = findTool(call.name);
  return el("h4", { title: tool?.description ?? "" }, "Tool call ", el("code", {}, call.name), tool ? el("span", { class: "unit" }, ` of ${tool.server}`) : null);
}

const resultBox = (call) => el("textarea", { rows: 2, class: "code-box", "aria-label": `Result of ${call.name}`, placeholder: "Result, as text or JSON", spellcheck: "false" });

/** The question whether a call may run, or how far it is. */
function approval(conversation, node, i) {
  const { stage, text } = stagesOf(node)[i];
  const { name } = node.calls[i];
  const button = (label, reply, kind = "") => el("button", { type: "button", class: `button small ${kind}`, "aria-label": `${label}: ${name}`, on: { click: () => decide(conversation, node, i, reply) } }, label);
  if (stage === "running") return el("div", { class: "row", role: "status" }, "Running…", el("button", { type: "button", class: "button small", on: { click: () => stopCall(node, i) } }, "Stop"));
  if (stage === "done") return resultText(text);
  return el("div", { class: "row approval", role: "group", "aria-label": `May ${name} be called?` }, button("Run once", "once", "primary"), button("Always allow", "always"), button("Refuse", "no"));
}

/** The result of a call, as a message. */
export const resultView = (node) => el("div", { class: "call" }, el("h4", {}, "Result of ", el("code", {}, node.name ?? "the tool")), resultText(node.content));

/** JSON objects and lists as code, other text in lines that wrap. */
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
