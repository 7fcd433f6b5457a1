// MessageView: one message of the thread, with what can be done to it.

import * as chat from "./chat.js";
import { copyButton, el, icon, iconButton } from "./dom.js";
import { duration, number } from "./format.js";
import { MarkdownView } from "./markdown/view.js";
import { emit, state } from "./state.js";
import { small } from "./store.js";
import { showBranch, siblingsOf } from "./tree.js";

// The machine that shows the answer often computes it, too: between two frames the page rests for some times as long
// as the last one took, and never shows more of them than reading needs.
const SHARE = 4;
const LEAST = 60; // milliseconds
const MOST = 500;

const draftName = (node) => `edit.${node.id}`;

export class MessageView {
  constructor(node, conversation) {
    this.node = node;
    this.conversation = conversation;
    this.body = el("div", { class: "body" });
    this.foot = el("div", { class: "foot" });
    this.article = el("article", { class: `message ${node.role}`, "aria-label": node.role === "user" ? "You" : "Answer", "data-id": node.id }, this.body, this.foot);
    if (node.role === "user") this.body.append(el("div", { class: "plain" }, node.content));
    else this.showAnswer();
    this.showFoot();
    if (small.get(draftName(node)) !== null) this.edit();
  }

  showAnswer() {
    this.text = el("div", { class: "markdown" });
    this.markdown = new MarkdownView(this.text);
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
    this.onShown = onShown;
    run.onDelta = (name, text) => {
      if (name === "reasoning") {
        this.addReasoning(text);
        this.reasoning.firstChild.textContent = "Reasoning…";
        onShown();
        return;
      }
      if (this.reasoning) this.reasoning.firstChild.textContent = "Reasoning";
      this.article.classList.add("begun");
      this.markdown.push(text);
      this.schedule();
    };
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
    this.pause = Math.min(MOST, Math.max(LEAST, SHARE * (performance.now() - started)));
  }

  /** The run is over: shows the rest at once. */
  finish() {
    clearTimeout(this.waiting);
    this.waiting = null;
    this.markdown.render();
    if (this.reasoning) this.reasoning.firstChild.textContent = "Reasoning";
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
    const isUser = node.role === "user";
    this.foot.replaceChildren(
      el(
        "div",
        { class: "actions" },
        copyButton(isUser ? "Copy message" : "Copy answer", () => node.content),
        iconButton("edit", isUser ? "Edit message" : "Edit answer", () => this.edit()),
        isUser ? null : iconButton("redo", "Answer again", () => chat.regenerate(node)),
        this.branches(),
      ),
      isUser ? "" : this.figures(),
    );
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

  figures() {
    const { figures, ending, model } = this.node;
    const notes = { length: "ended at the limit of tokens", stopped: "stopped", broken: "broke off" };
    const parts = [];
    if (notes[ending]) parts.push(notes[ending]);
    if (figures?.rate) parts.push(`${number(figures.rate)} tokens/s`);
    if (figures?.tokens) parts.push(`${number(figures.tokens)} tokens`);
    if (figures?.first) parts.push(`first after ${duration(figures.first)}`);
    const prompt = figures?.prompt ? `; a prompt of ${number(figures.prompt)} tokens, ${number(figures.cached)} of them from the cache` : "";
    return el("span", { class: "figures", title: `${model ?? ""}${prompt}` }, parts.join(" · "));
  }

  /** Turns the message into a box; what was written in it stays when the box is closed. */
  edit() {
    if (state.runs.has(this.conversation.id) || this.article.classList.contains("editing")) return;
    const { node } = this;
    const isUser = node.role === "user";
    const box = el("textarea", { "aria-label": isUser ? "Edit message" : "Edit answer", rows: 1 });
    box.value = small.get(draftName(node)) ?? node.content;
    const fit = () => {
      box.style.height = "auto";
      box.style.height = `${Math.min(box.scrollHeight + 2, window.innerHeight * 0.6)}px`;
    };
    const close = () => {
      this.article.classList.remove("editing");
      form.remove();
    };
    const cancel = () => {
      small.set(draftName(node), null);
      close();
      this.foot.querySelector('[aria-label^="Edit"]')?.focus();
    };
    const submit = (event) => {
      event.preventDefault();
      if (!box.value.trim() || state.runs.has(this.conversation.id)) return;
      small.set(draftName(node), null);
      close();
      chat.edit(node, box.value);
    };
    const onKey = (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        cancel();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && (isUser || event.ctrlKey || event.metaKey)) submit(event);
    };
    const form = el(
      "form",
      { class: "edit", on: { submit } },
      box,
      el(
        "div",
        { class: "row" },
        el("span", { class: "hint" }, isUser ? "The conversation goes on from here; the old branch is kept." : "The old answer is kept beside this one."),
        el("button", { type: "button", class: "button quiet", on: { click: cancel } }, "Cancel"),
        el("button", { type: "submit", class: "button primary" }, isUser ? "Send" : "Keep"),
      ),
    );
    box.addEventListener("input", () => {
      small.set(draftName(node), box.value);
      fit();
    });
    box.addEventListener("keydown", onKey);
    this.article.classList.add("editing");
    this.body.after(form);
    fit();
    box.focus();
    box.setSelectionRange(box.value.length, box.value.length);
  }
}

/** Why an answer did not come, with a way to ask again. */
export function problemView(error, isOver) {
  const sentence = el("p", {}, icon("close"), el("span", {}, error.message));
  const again = el("button", { type: "button", class: "button", on: { click: () => chat.retry() } }, "Try again");
  const box = el("div", { class: error.code === "stopped" ? "problem mild" : "problem", role: error.code === "stopped" ? "status" : "alert" }, sentence, again);
  if (error.retryAfter) countDown(again, Math.ceil(error.retryAfter), isOver);
  return box;
}

function countDown(button, seconds, isOver) {
  if (isOver()) return;
  button.textContent = seconds > 0 ? `Try again in ${seconds} s` : "Try again";
  button.setAttribute("aria-label", "Try again");
  if (seconds > 0) setTimeout(() => countDown(button, seconds - 1, isOver), 1000);
}
