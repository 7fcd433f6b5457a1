// Entry point of the page: connects its parts and polls the server.

import * as api from "./api.js";
import * as chat from "../chat/chat.js";
import { setUpComposer } from "../chat/composer.js";
import { byId, icon, mark, toast } from "./dom.js";
import { takeUnopened } from "./guard.js";
import { lock, setUpLock, showLock } from "./lock.js";
import { closePanel, isMac, setUpPanels, showShortcuts, togglePanel } from "../panels/panels.js";
import { closePicker, setUpPicker } from "../chat/picker.js";
import { closeServers, setUpServers } from "../chat/servers.js";
import { setUpSettings } from "../panels/settings.js";
import { closeDrawer, focusSearch, newChat, setUpSidebar, toggleSidebar } from "../chat/sidebar.js";
import { chosenModel, emit, on, state } from "./state.js";
import * as store from "./store.js";
import { regenerateLast, setUpThread } from "../chat/thread.js";
import { setUpTools } from "../chat/tools.js";
import { readConversation } from "../chat/tree.js";

const RETRY = 2000; // milliseconds between polls of an unreachable server
const LOADING = 700; // milliseconds between polls while a model is loading

let timer = null;
let isAsking = false;
let isStale = false; // something changed during the request

/** Query the server's health and models; repeat until it is ready. */
async function refresh() {
  clearTimeout(timer);
  isStale = isAsking;
  if (isAsking) return;
  isAsking = true;
  try {
    state.health = await api.health();
    state.models = await api.models();
    state.isLocked = false;
    const model = chosenModel();
    if (model) {
      const props = await api.props(model.name);
      state.options = props.sampling_options;
      state.template = props.chat_template;
      state.pdfReason = props.pdf_reason ?? "";
      state.readsAhead = props.read_ahead === true;
      state.defaults = props.default_generation_settings.params;
    }
  } catch (error) {
    if (error.code === "unreachable") state.health = "unreachable";
    else if (error.status === 401) lock(error);
    else if (error.code !== "model_required") state.health ||= "failed";
  }
  isAsking = false;
  showBanner();
  emit("models");
  if (isStale) refresh();
  else if (["unreachable", "draining", "failed"].includes(state.health)) timer = setTimeout(refresh, RETRY);
  else if (state.isLocked) return; // each request would count as a wrong key
  else if (state.health === "loading" || isWaiting() || state.models.some((model) => /ing$/.test(model.state ?? "") || model.progress)) timer = setTimeout(refresh, LOADING);
}

/** Return true if an answer waits for a model that is not loaded yet. */
const isWaiting = () => chosenModel()?.state !== "ready" && [...state.runs.values()].some((run) => run.isAsking);

const BANNERS = {
  unreachable: "The server cannot be reached; check that it is still running. This page retries automatically.",
  draining: "The server is stopping.",
  failed: "The server cannot answer because its model was not loaded or its GPU failed; see its log. This page retries automatically.",
};

function showBanner() {
  const text = BANNERS[state.health] ?? "";
  const banner = byId("banner");
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = text === "";
}

function onProblem(error) {
  if (error.status === 401) {
    lock(error);
    emit("models");
    if (state.isLocked) showLock();
  } else if (error.code === "unreachable" || error.code === "cut_off" || error.code === "server_stopping" || error.code === "device_failed" || error.code === "model_loading") refresh();
}

function onKey(event) {
  const isControl = isMac ? event.metaKey : event.ctrlKey; // on macOS, Control is for text editing
  if (event.key === "Escape") {
    if (document.querySelector("dialog[open]")) return;
    // Close the innermost open element, or else stop the answer.
    if (closePicker() || closeServers() || closePanel() || closeDrawer() || chat.stop()) event.preventDefault();
    else byId("message").focus();
    return;
  }
  if (!isControl || event.altKey || document.querySelector("dialog[open]")) return;
  const name = `${event.shiftKey ? "shift " : ""}${event.key.toLowerCase()}`;
  const run = KEYS[name];
  if (!run) return;
  event.preventDefault();
  run();
}

const KEYS = {
  k: newChat,
  b: () => toggleSidebar(),
  ",": () => togglePanel("settings"),
  ".": () => togglePanel("performance"),
  "/": showShortcuts,
  "shift f": focusSearch,
  "shift enter": regenerateLast,
};

async function restore() {
  try {
    for (const kept of await store.readAll()) {
      const conversation = readConversation(kept);
      if (conversation) state.conversations.set(conversation.id, conversation);
    }
  } catch {
    toast("This browser does not store conversations: they are lost when the page is closed.", null, 12);
  }
  const dead = state.conversations.get(takeUnopened());
  if (dead) toast(`“${dead.title || "Untitled"}” was not reopened, because the page crashed while it was open. It is still in the list.`, null, 15);
  const kept = state.conversations.get(store.small.get("current"));
  const last = kept === dead ? undefined : kept;
  const fresh = chat.create();
  if (!last) fresh.settings = store.small.get("fresh-settings", fresh.settings);
  chat.show(last ?? fresh);
}

async function begin() {
  for (const holder of document.querySelectorAll("[data-icon]")) holder.prepend(icon(holder.dataset.icon));
  byId("brand").prepend(mark());
  for (const setUp of [setUpThread, setUpComposer, setUpSidebar, setUpPicker, setUpSettings, setUpPanels, setUpLock, setUpTools, setUpServers]) setUp();
  on("problem", onProblem);
  on("refresh", refresh);
  on("unlocked", () => state.problems.get(state.current.id)?.error.status === 401 && chat.retry());
  on("run", (run) => !state.runs.has(run.conversation.id) && refresh());
  document.addEventListener("keydown", onKey);
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  // An answer is saved once per second; this saves its last part.
  window.addEventListener("pagehide", () => [...state.runs.values()].forEach((run) => chat.keep(run.conversation)));
  await restore();
  document.body.classList.remove("starting");
  byId("opening").remove();
  if (matchMedia("(hover: hover)").matches) byId("message").focus();
  await refresh();
}

begin();
