// Sidebar: search, open, rename, delete, export and import conversations.

import * as chat from "./chat.js";
import { announce, byId, el, icon, iconButton, toast } from "../app/dom.js";
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
const isTight = matchMedia("(min-width: 801px) and (max-width: 1100px)"); // space for the sidebar or a panel, not both

let renaming = null; // id of the conversation whose title or folder is being edited
let scheduled = false;

/** Add event listeners. */
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
  on("unkept", () => toast("The browser could not store this conversation: its storage is full or disabled."));
  store.onChange(takeChange);
  toggleSidebar(isNarrow.matches ? false : store.small.get("sidebar", true));
  isNarrow.addEventListener("change", () => toggleSidebar(!isNarrow.matches));
}

/** Start an empty conversation. */
export function newChat() {
  store.small.set("fresh-settings", null);
  chat.show(chat.create());
  if (isNarrow.matches) toggleSidebar(false);
  byId("message").focus();
}

/** Open or close the sidebar; without an argument, toggle it. */
export function toggleSidebar(isOpen = !isShown()) {
  if (isOpen && isTight.matches) closePanel();
  document.body.classList.toggle("with-sidebar", isOpen);
  sidebar.inert = !isOpen;
  byId("menu").setAttribute("aria-expanded", String(isOpen));
  if (!isNarrow.matches) store.small.set("sidebar", isOpen);
  else if (isOpen) byId("close-sidebar").focus();
  else if (sidebar.contains(document.activeElement)) byId("menu").focus();
}

/** Close the sidebar if it overlays the page, as on a phone; return false otherwise. */
export function closeDrawer() {
  if (!isNarrow.matches || !isShown()) return false;
  toggleSidebar(false);
  return true;
}

function isShown() {
  const { classList } = document.body;
  return classList.contains("with-sidebar") && !(isTight.matches && classList.contains("with-panel"));
}

/** Focus the search box. */
export function focusSearch() {
  toggleSidebar(true);
  search.focus();
  search.select();
}

/** Render at most once per frame, because a running answer triggers many updates. */
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
  for (const [heading, isFolder, members] of groupsOf(found)) {
    const isFolded = isFolder && !words.length && folded().includes(heading);
    nodes.push(isFolder ? folderHeading(heading, members.length, isFolded) : el("li", { class: "day", "aria-hidden": "true" }, heading));
    if (!isFolded) nodes.push(...members.map(row));
  }
  if (!found.length) nodes.push(el("li", { class: "empty" }, words.length ? "No conversation matches." : "Conversations appear here. They are stored in this browser."));
  list.replaceChildren(...nodes);
  byId("export-all").disabled = !state.conversations.size;
  if (focused) list.querySelector(`[data-conversation="${CSS.escape(focused)}"] .open`)?.focus();
}

/** Return groups as [heading, isFolder, conversations]: pinned, folders by name, then by day. */
function groupsOf(found) {
  const groups = new Map();
  const add = (key, heading, isFolder, one) => groups.set(key, [heading, isFolder, [...(groups.get(key)?.[2] ?? []), one]]);
  for (const one of found.filter(({ pinned }) => pinned)) add("pinned", "Pinned", false, one);
  const rest = found.filter(({ pinned }) => !pinned);
  const filed = rest.filter(({ folder }) => folder).sort((a, b) => a.folder.localeCompare(b.folder) || b.updated - a.updated);
  for (const one of filed) add(`folder ${one.folder}`, one.folder, true, one);
  for (const one of rest.filter(({ folder }) => !folder)) add(`day ${day(one.updated)}`, day(one.updated), false, one);
  return [...groups.values()];
}

/** Return the collapsed folders. */
const folded = () => store.small.get("folded", []);

function folderHeading(name, n, isFolded) {
  const toggle = () => {
    const others = folded().filter((one) => one !== name);
    store.small.set("folded", isFolded ? others : [...others, name]);
    render();
    [...list.querySelectorAll(".folder")].find((one) => one.dataset.folder === name)?.focus();
  };
  return el("li", {}, el("button", { type: "button", class: "folder", "data-folder": name, "aria-expanded": String(!isFolded), on: { click: toggle } }, icon("folder"), el("span", {}, name), el("small", {}, String(n))));
}

function pin(conversation) {
  if (conversation.pinned) delete conversation.pinned;
  else conversation.pinned = true;
  announce(conversation.pinned ? "Pinned" : "No longer pinned");
  chat.keep(conversation);
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
      iconButton("pin", conversation.pinned ? `Unpin ${title}` : `Pin ${title}`, () => pin(conversation), { "aria-pressed": String(Boolean(conversation.pinned)) }),
      iconButton("folder", `Folder of ${title}`, () => file(conversation)),
      iconButton("edit", `Rename ${title}`, () => rename(conversation)),
      iconButton("save", `Save ${title} as a file`, () => download([conversation], title)),
      iconButton("trash", `Delete ${title}`, () => forget(conversation)),
    ),
  );
}

function rename(conversation) {
  const box = el("input", { type: "text", "aria-label": "Title", maxlength: 200, value: conversation.title });
  write(conversation, box, (text) => text && (conversation.title = text));
}

/** Ask for the folder of a conversation; an empty name removes it from its folder. */
function file(conversation) {
  const names = [...new Set([...state.conversations.values()].map(({ folder }) => folder).filter(Boolean))].sort((a, b) => a.localeCompare(b));
  const box = el("input", { type: "text", "aria-label": "Folder", placeholder: "Folder", maxlength: 60, list: "folder-names", autocomplete: "off", value: conversation.folder ?? "" });
  const known = el("datalist", { id: "folder-names" }, names.map((name) => el("option", { value: name })));
  write(conversation, box, (text) => (text ? (conversation.folder = text) : delete conversation.folder), known);
}

/** Replace a row with an input; `take` gets its value unless Escape is pressed. */
function write(conversation, box, take, ...more) {
  const item = list.querySelector(`[data-conversation="${CSS.escape(conversation.id)}"]`);
  renaming = conversation.id;
  const end = (isKept) => {
    if (renaming === null) return;
    renaming = null;
    if (isKept) take(box.value.trim());
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
  item.replaceChildren(box, ...more);
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

/** Update the list after a change in another tab, but not the open conversation. */
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
