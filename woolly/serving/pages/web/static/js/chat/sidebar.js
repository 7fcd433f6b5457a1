// The Sidebar: conversations to find, open, rename, delete, save and bring back.

import * as chat from "./chat.js";
import { announce, byId, el, iconButton, toast } from "../app/dom.js";
import { day } from "../app/format.js";
import { closePanel } from "../panels/panels.js";
import { on, state } from "../app/state.js";
import * as store from "../app/store.js";
import { download, importFiles } from "./transfer.js";
import { holdsWords } from "./tree.js";

const sidebar = byId("sidebar");
const list = byId("conversations");
const search = byId("search");
const isNarrow = matchMedia("(max-width: 800px)");
const isTight = matchMedia("(min-width: 801px) and (max-width: 1100px)"); // room for it or for a panel

let renaming = null; // id
let scheduled = false;

/** Begins to listen. */
export function setUpSidebar() {
  byId("new-chat").addEventListener("click", newChat);
  byId("menu").addEventListener("click", () => toggleSidebar());
  byId("close-sidebar").addEventListener("click", () => toggleSidebar(false));
  byId("scrim").addEventListener("click", () => toggleSidebar(false));
  byId("export-all").addEventListener("click", () => download([...state.conversations.values()], "woolly-conversations"));
  byId("import").addEventListener("click", () => byId("import-file").click());
  byId("import-file").addEventListener("change", (event) => importFiles(event.target));
  search.addEventListener("input", render);
  on("list", schedule);
  on("run", schedule);
  on("unkept", () => toast("The browser does not keep this conversation: its storage is full or closed."));
  store.onChange(takeChange);
  toggleSidebar(isNarrow.matches ? false : store.small.get("sidebar", true));
  isNarrow.addEventListener("change", () => toggleSidebar(!isNarrow.matches));
}

/** Begins an empty conversation. */
export function newChat() {
  store.small.set("fresh-settings", null);
  chat.show(chat.create());
  if (isNarrow.matches) toggleSidebar(false);
  byId("message").focus();
}

/** Opens or closes it; without an argument, the other way round. */
export function toggleSidebar(isOpen = !isShown()) {
  if (isOpen && isTight.matches) closePanel();
  document.body.classList.toggle("with-sidebar", isOpen);
  sidebar.inert = !isOpen;
  byId("menu").setAttribute("aria-expanded", String(isOpen));
  if (!isNarrow.matches) store.small.set("sidebar", isOpen);
  else if (isOpen) byId("close-sidebar").focus();
  else if (sidebar.contains(document.activeElement)) byId("menu").focus();
}

/** Closes the conversations if they lie over the page, as on a phone; returns false if they do not. */
export function closeDrawer() {
  if (!isNarrow.matches || !isShown()) return false;
  toggleSidebar(false);
  return true;
}

function isShown() {
  const { classList } = document.body;
  return classList.contains("with-sidebar") && !(isTight.matches && classList.contains("with-panel"));
}

/** Puts the cursor into the search box. */
export function focusSearch() {
  toggleSidebar(true);
  search.focus();
  search.select();
}

/** Once per frame: while an answer is written, it is asked for often. */
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    render();
  });
}

function render() {
  if (renaming !== null) return;
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [...state.conversations.values()].filter((one) => holdsWords(one, words)).sort((a, b) => b.updated - a.updated);
  const focused = document.activeElement?.closest?.("[data-conversation]")?.dataset.conversation;
  const nodes = [];
  let heading = null;
  for (const conversation of found) {
    const name = day(conversation.updated);
    if (name !== heading) nodes.push(el("li", { class: "day", "aria-hidden": "true" }, name));
    heading = name;
    nodes.push(row(conversation));
  }
  if (!found.length) nodes.push(el("li", { class: "empty" }, words.length ? "Nothing holds these words." : "Conversations appear here. They stay in this browser."));
  list.replaceChildren(...nodes);
  byId("export-all").disabled = !state.conversations.size;
  if (focused) list.querySelector(`[data-conversation="${CSS.escape(focused)}"] .open`)?.focus();
}

function row(conversation) {
  const isCurrent = conversation === state.current;
  const title = conversation.title || "Untitled";
  const open = () => {
    chat.show(conversation);
    if (isNarrow.matches) toggleSidebar(false);
    byId("message").focus();
  };
  const onKey = (event) => {
    if (event.key === "F2") rename(conversation);
    else if (event.key === "Delete") forget(conversation);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const all = [...list.querySelectorAll(".open")];
      all[all.indexOf(event.currentTarget) + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
    }
  };
  return el(
    "li",
    { class: `conversation${isCurrent ? " current" : ""}${state.runs.has(conversation.id) ? " running" : ""}`, "data-conversation": conversation.id },
    el("button", { type: "button", class: "open", title, "aria-current": isCurrent ? "true" : null, on: { click: open, keydown: onKey, dblclick: () => rename(conversation) } }, title),
    el(
      "span",
      { class: "actions" },
      iconButton("edit", `Rename ${title}`, () => rename(conversation)),
      iconButton("save", `Save ${title} as a file`, () => download([conversation], title)),
      iconButton("trash", `Delete ${title}`, () => forget(conversation)),
    ),
  );
}

function rename(conversation) {
  const item = list.querySelector(`[data-conversation="${CSS.escape(conversation.id)}"]`);
  const box = el("input", { type: "text", "aria-label": "Title", maxlength: 200, value: conversation.title });
  renaming = conversation.id;
  const end = (isKept) => {
    if (renaming === null) return;
    renaming = null;
    if (isKept && box.value.trim()) conversation.title = box.value.trim();
    chat.keep(conversation);
    render();
    if (conversation === state.current && conversation.title) document.title = `${conversation.title} – Woolly`;
    list.querySelector(`[data-conversation="${CSS.escape(conversation.id)}"] .open`)?.focus();
  };
  box.addEventListener("blur", () => end(true));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") end(true);
    if (event.key === "Escape") {
      event.stopPropagation();
      end(false);
    }
  });
  item.replaceChildren(box);
  box.focus();
  box.select();
}

async function forget(conversation) {
  conversation.isDeleted = true;
  state.runs.get(conversation.id)?.controller.abort();
  state.conversations.delete(conversation.id);
  if (conversation === state.current) chat.show(chat.create());
  render();
  announce("Deleted");
  const undo = () => {
    delete conversation.isDeleted;
    chat.keep(conversation);
    chat.show(conversation);
  };
  toast(`“${conversation.title || "Untitled"}” is deleted.`, { label: "Undo", run: undo }, 10);
  await store.remove(conversation.id);
}

/** Another tab changed one: the list follows; what is shown or written here stays as it is. */
async function takeChange(id) {
  if (state.runs.has(id)) return;
  const kept = await store.readOne(id);
  if (kept === undefined) state.conversations.delete(id);
  else {
    state.conversations.set(id, kept);
    if (state.current?.id === id) chat.show(kept);
  }
  schedule();
}
