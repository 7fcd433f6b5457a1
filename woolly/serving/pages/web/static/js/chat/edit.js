// EditBox: edits a message; the draft is kept when the box is closed.

import * as chat from "./chat.js";
import { el } from "../app/dom.js";
import { state } from "../app/state.js";
import { small } from "../app/store.js";

const draftName = (node) => `edit.${node.id}`;

/** Return true if the message was being edited when the page was closed. */
export const hasDraft = (node) => small.get(draftName(node)) !== null;

/** Open the box in the view of a message. */
export function openEditBox({ node, conversation, article, body, foot }) {
  if (state.runs.has(conversation.id) || article.classList.contains("editing")) return;
  const isUser = node.role === "user";
  const box = el("textarea", { "aria-label": isUser ? "Edit message" : "Edit answer", rows: 1 });
  box.value = small.get(draftName(node)) ?? node.content;
  const fit = () => {
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight + 2, window.innerHeight * 0.6)}px`;
  };
  const close = () => {
    article.classList.remove("editing");
    form.remove();
  };
  const cancel = () => {
    small.set(draftName(node), null);
    close();
    foot.querySelector('[aria-label^="Edit"]')?.focus();
  };
  const submit = (event) => {
    event.preventDefault();
    if (!box.value.trim() || state.runs.has(conversation.id)) return;
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
      el("span", { class: "hint" }, isUser ? "The conversation continues from here; the old branch is kept." : "The old answer is kept as another version."),
      el("button", { type: "button", class: "button quiet", on: { click: cancel } }, "Cancel"),
      el("button", { type: "submit", class: "button primary" }, isUser ? "Send" : "Keep"),
    ),
  );
  box.addEventListener("input", () => {
    small.set(draftName(node), box.value);
    fit();
  });
  box.addEventListener("keydown", onKey);
  article.classList.add("editing");
  body.after(form);
  fit();
  box.focus();
  box.setSelectionRange(box.value.length, box.value.length);
}
