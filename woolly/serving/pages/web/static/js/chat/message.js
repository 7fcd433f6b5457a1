// MessageView: a message with its actions.

import * as api from "../app/api.js";
import * as chat from "./chat.js";
import { copyButton, el, fact, iconButton } from "../app/dom.js";
import { duration, number } from "../app/format.js";
import { CodeView } from "../markdown/code.js";
import { MarkdownView } from "../markdown/view.js";
import { emit, state } from "../app/state.js";
import { callsView, resultView } from "./calls.js";
import { hasDraft, openEditBox } from "./edit.js";
import { fileLabel } from "./files.js";
import { probabilitiesView } from "./probabilities.js";
import { showBranch, shownPath, siblingsOf } from "./tree.js";

// The machine that shows the answer often computes it, too. Between two frames, the page pauses for a multiple of the
// last frame's duration, and never renders faster than needed for reading.
const SHARE = 4;
const MIN_PAUSE = 60; // milliseconds
const MAX_PAUSE = 500;

const NAMES = { user: "You", assistant: "Answer", tool: "Tool result" };
// Abnormal endings of an answer.
export const NOTES = {
  length: "truncated at the token limit",
  stopped: "stopped",
  broken: "broke off",
  cut: "not finished",
  full: "truncated: the context is full",
  bare: "empty answer: the model has no chat template and is probably a base model; use “woolly run --raw” to complete text",
};

/** View of a JSON answer, which is not parsed as Markdown. */
class JsonView {
  constructor(host) {
    this.text = "";
    this.code = new CodeView("json");
    host.append(this.code.node);
  }

  push(text) {
    this.text += text;
  }

  render() {
    this.code.grow(this.text);
  }
}

export class MessageView {
  constructor(node, conversation) {
    this.node = node;
    this.conversation = conversation;
    this.body = el("div", { class: "body" });
    this.foot = el("div", { class: "foot" });
    this.article = el("article", { class: `message ${node.role}`, "aria-label": NAMES[node.role], "data-id": node.id }, this.body, this.foot);
    if (node.role === "user") this.showQuestion();
    else if (node.role === "tool") this.body.append(resultView(node));
    else this.showAnswer();
    if (node.pair) this.body.prepend(el("p", { class: "by" }, el("strong", {}, (node.model ?? "").replace(/\.gguf$/, "")), ` seed ${node.seed}`));
    this.showFoot();
    if (hasDraft(node)) this.edit();
  }

  showQuestion() {
    const { content, files = [] } = this.node;
    if (files.length) this.body.append(el("ul", { class: "files", "aria-label": "Attached files" }, files.map((file) => el("li", {}, file.image || file.audio || file.video || file.pdf ? fileLabel(file) : el("details", {}, el("summary", {}, fileLabel(file)), el("pre", {}, file.text))))));
    if (content) this.body.append(el("div", { class: "plain" }, content));
  }

  showAnswer() {
    this.text = el("div", { class: "markdown" });
    this.markdown = /^json/.test(this.node.form ?? "") ? new JsonView(this.text) : new MarkdownView(this.text);
    this.body.append(this.text);
    if (this.node.reasoning) this.addReasoning(this.node.reasoning);
    this.markdown.push(this.node.content);
    this.markdown.render();
  }

  addReasoning(text) {
    if (!this.reasoning) {
      this.reasoning = el("details", { class: "reasoning" }, el("summary", {}, "Reasoning"), el("div", { class: "plain" }, document.createTextNode("")));
      this.text.before(this.reasoning);
    }
    this.reasoning.lastChild.firstChild.appendData(text);
  }

  /** Render a running answer. `onShown` is called after each update. */
  follow(run, onShown) {
    this.article.classList.add("running");
    this.article.setAttribute("aria-busy", "true");
    this.showFoot();
    this.onShown = onShown;
    run.onDelta = (name, text) => {
      if (name === "call") {
        this.showCalling();
        onShown();
        return;
      }
      if (name === "reasoning") {
        this.addReasoning(text);
        this.reasoning.firstChild.textContent = "Reasoning…";
        this.offerEnd(run);
        onShown();
        return;
      }
      this.endReasoning();
      this.article.classList.add("begun");
      this.markdown.push(text);
      this.schedule();
    };
  }

  /** Show a button to end the reasoning while the model is reasoning. */
  offerEnd(run) {
    if (this.ending || !run.id) return;
    this.ending = el("button", { class: "button small", type: "button" }, "Answer now");
    this.ending.addEventListener("click", async () => {
      this.ending.disabled = true;
      await api.endThought(run.id).catch((error) => {
        if (this.ending) this.ending.textContent = error.message;
      });
    });
    this.reasoning.after(this.ending);
  }

  endReasoning() {
    if (this.reasoning) this.reasoning.firstChild.textContent = "Reasoning";
    this.ending?.remove();
    this.ending = null;
  }

  /** Show the tool names while calls are generated. */
  showCalling() {
    this.calling ??= this.body.appendChild(el("p", { class: "calling", role: "status" }));
    const text = `Calling ${this.node.calls.filter(Boolean).map((call) => call.name).join(", ")} …`;
    if (this.calling.textContent !== text) this.calling.textContent = text;
  }

  schedule() {
    if (this.waiting) return;
    this.waiting = setTimeout(() => requestAnimationFrame(() => this.render()), this.pause ?? 0);
  }

  render() {
    if (!this.waiting) return;
    this.waiting = null;
    const started = performance.now();
    this.markdown.render();
    this.onShown?.();
    this.pause = Math.min(MAX_PAUSE, Math.max(MIN_PAUSE, SHARE * (performance.now() - started)));
  }

  /** Show the rest of a finished answer. */
  finish() {
    clearTimeout(this.waiting);
    this.waiting = null;
    this.markdown.render();
    this.endReasoning();
    this.calling?.remove();
    this.calling = null;
    this.article.classList.remove("running", "begun");
    this.article.removeAttribute("aria-busy");
    this.showFoot();
  }

  showFoot() {
    const { node } = this;
    const isRunning = state.runs.get(this.conversation.id)?.node === node;
    if (isRunning) {
      this.foot.replaceChildren();
      return;
    }
    this.showExtras();
    const isUser = node.role === "user";
    const isAnswer = node.role === "assistant";
    this.foot.replaceChildren(
      el(
        "div",
        { class: "actions" },
        copyButton(isUser ? "Copy message" : "Copy answer", () => node.content),
        node.role === "tool" ? null : iconButton("edit", isUser ? "Edit message" : "Edit answer", () => this.edit()),
        isAnswer ? iconButton("redo", "Answer again", () => chat.regenerate(node)) : null,
        iconButton("fork", "Fork: new conversation from here", () => chat.fork(node)),
        iconButton("trash", isUser ? "Delete message" : "Delete answer", () => chat.forget(node)),
        this.branches(),
      ),
      isAnswer ? this.figures() : "",
      node.pair ? this.preferButton() : "",
    );
  }

  /** Render the button that selects which of two answers the next message follows. */
  preferButton() {
    if (shownPath(this.conversation).includes(this.node) || state.runs.has(this.conversation.id)) return "";
    const prefer = () => {
      showBranch(this.conversation, this.node);
      emit("current");
      chat.keep(this.conversation);
    };
    return el("button", { type: "button", class: "button small", on: { click: prefer } }, "Continue with this answer");
  }

  /** Render the content below a complete answer: tool calls and probabilities. */
  showExtras() {
    const { node } = this;
    this.extras?.remove();
    if (node.role !== "assistant" || (!node.calls?.length && !node.tokens?.length)) return;
    this.extras = el("div", {}, node.calls?.length ? callsView(this.conversation, node) : null, node.tokens?.length ? probabilitiesView(node.tokens) : null);
    this.body.append(this.extras);
  }

  edit() {
    openEditBox(this);
  }

  branches() {
    const siblings = siblingsOf(this.conversation, this.node);
    if (siblings.length < 2) return null;
    const at = siblings.indexOf(this.node);
    const go = (to) => () => {
      showBranch(this.conversation, siblings[to]);
      emit("current");
      chat.keep(this.conversation);
      document.querySelector(`[data-id="${siblings[to].id}"] .branches button:not([disabled])`)?.focus();
    };
    const isBusy = state.runs.has(this.conversation.id);
    return el(
      "span",
      { class: "branches", role: "group", "aria-label": "Versions" },
      iconButton("left", "Version before", go(at - 1), { disabled: at === 0 || isBusy }),
      el("span", {}, `${at + 1}\u2009/\u2009${siblings.length}`),
      iconButton("right", "Version after", go(at + 1), { disabled: at === siblings.length - 1 || isBusy }),
    );
  }

  /** Render the model, ending and speed, with a button to continue a truncated answer. */
  figures() {
    const { figures, ending, model, content, reasoning, form, calls } = this.node;
    const isCut = ending in NOTES && content + reasoning !== "" && ending !== "bare" && !form && !calls;
    const parts = [];
    if (model) parts.push(model.replace(/\.gguf$/, ""));
    if (figures?.rate) parts.push(fact(`${number(figures.rate)} tokens/s`));
    if (figures?.tokens) parts.push(fact(`${number(figures.tokens)} tokens`));
    if (figures?.first) parts.push(fact(`first after ${duration(figures.first)}`));
    const line = parts.flatMap((part, i) => (i ? [" · ", part] : [part]));
    const more = ending === "full" ? this.roomButton() : el("button", { type: "button", class: "button small", title: "Continue this answer where it ends", on: { click: () => chat.continueAnswer(this.node) } }, "Continue");
    this.foot.classList.toggle("shown", ending in NOTES);
    const prompt = figures?.prompt ? `; a prompt of ${number(figures.prompt)} tokens, ${number(figures.cached)} of them from the cache` : "";
    const title = `${model ?? ""}${prompt}`;
    return el("span", { class: "figures", title }, ending in NOTES ? el("strong", { class: "cut" }, NOTES[ending]) : null, el("span", {}, ...line), isCut ? more : null);
  }

  /** Render the button to continue an answer that filled the context, if turns can be dropped. */
  roomButton() {
    if (this.conversation.leaf !== this.node.id || !chat.canMakeRoom(this.conversation, this.node)) return null;
    return el("button", { type: "button", class: "button small", title: "The oldest turns stay in this conversation, but are no longer sent to the model.", on: { click: () => chat.makeRoomAndContinue(this.node) } }, "Drop the oldest turns and continue");
  }
}
