// MessageView: one message of the thread, with what can be done to it.

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

// The machine that shows the answer often computes it, too: between two frames the page rests for some times as long
// as the last one took, and never shows more of them than reading needs.
const SHARE = 4;
const MIN_PAUSE = 60; // milliseconds
const MAX_PAUSE = 500;

const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };
// How an answer ended, if not as it should.
export const NOTES = {
  length: "cut at the token limit",
  stopped: "stopped",
  broken: "broke off",
  cut: "not finished",
  full: "cut: the context is full",
  bare: "the answer is empty: this file has no chat template, so ChatML is assumed, and it is probably a base model; “woolly run --raw” continues a text",
};

/** A JSON answer that grows: its text is code, which Markdown would change. */
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

  /** Shows what a run brings, as it comes. `onShown` is called after each time. */
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

  /** Shows a button that ends the thought, as long as there is one to end. */
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

  /** Names the tool while its call is being written. */
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

  /** The run is over: shows the rest at once. */
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
        iconButton("fork", "Fork: a conversation from here", () => chat.fork(node)),
        iconButton("trash", isUser ? "Delete message" : "Delete answer", () => chat.forget(node)),
        this.branches(),
      ),
      isAnswer ? this.figures() : "",
      node.pair ? this.preferButton() : "",
    );
  }

  /** Of two answers side by side, the one that the next message does not follow can become the one that it does. */
  preferButton() {
    if (shownPath(this.conversation).includes(this.node) || state.runs.has(this.conversation.id)) return "";
    const prefer = () => {
      showBranch(this.conversation, this.node);
      emit("current");
      chat.keep(this.conversation);
    };
    return el("button", { type: "button", class: "button small", on: { click: prefer } }, "Go on with this one");
  }

  /** What stands below the text of a complete answer: calls of tools, probabilities. */
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

  /** The model, how the answer ended, and how fast it was; an answer that was cut off can be continued. */
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

  /** An answer that filled the context goes on only without the oldest turns, if there are any. */
  roomButton() {
    if (this.conversation.leaf !== this.node.id || !chat.canMakeRoom(this.conversation, this.node)) return null;
    return el("button", { type: "button", class: "button small", title: "The oldest turns stay in this conversation; the model gets them no more.", on: { click: () => chat.makeRoomAndContinue(this.node) } }, "Drop the oldest turns and continue");
  }
}
