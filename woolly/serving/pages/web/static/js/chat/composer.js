// Composer: the message box. Its text survives a reload.

import * as chat from "./chat.js";
import { byId, el, icon } from "../app/dom.js";
import { number, percent } from "../app/format.js";
import { CONTROL } from "../panels/panels.js";
import { chosenModel, loadWords, modelState, on, state } from "../app/state.js";
import { small } from "../app/store.js";
import { readAhead, stopReading } from "./ahead.js";
import { hasFiles, heldFiles, isUnsent, setUpFiles, takeFiles } from "./files.js";
import { editLast } from "./thread.js";
import { isHeld, skipServers, startingServers } from "./tools.js";
import { canCompact } from "./compact.js";
import { shownPath } from "./tree.js";
import { contextFill } from "./window.js";

const box = byId("message");
const button = byId("send");
const note = byId("composer-note");
const meter = byId("context");
const shorten = byId("compact");
const skip = byId("skip-tools");
const bar = byId("progress");
const ROOMY = 0.5; // share of the context from which the page offers compaction
const NEARLY = 0.85; // share of the context from which the meter warns

const draftName = () => `draft.${state.current.messages.length ? state.current.id : "new"}`;
let held = null; // name of the draft in the box

/** Add event listeners. */
export function setUpComposer() {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!chat.stop()) submit();
  });
  box.addEventListener("input", () => {
    small.set(held, box.value);
    fit();
    showButton();
    typed();
  });
  box.addEventListener("keydown", onKey);
  window.addEventListener("resize", fit);
  on("current", showDraft);
  on("run", showButton);
  on("run", typed);
  for (const kind of ["tools", "models"]) on(kind, showRate);
  shorten.addEventListener("click", () => chat.compact());
  skip.addEventListener("click", () => skipServers(state.runs.get(state.current.id)));
  for (const kind of ["current", "run", "models"]) on(kind, showContext);
  setUpFiles(() => {
    showButton();
    typed();
  });
  setInterval(showRate, 500);
}

/** Read the typed message ahead, unless it waits for another model or an answer is running. */
function typed() {
  if (box.value.trim() && !isUnsent() && !state.runs.has(state.current?.id)) readAhead(box.value, heldFiles());
}

function submit() {
  const text = box.value;
  if ((!text.trim() && !hasFiles()) || isUnsent() || state.runs.has(state.current.id)) return;
  stopReading();
  small.set(held, null);
  box.value = "";
  fit();
  chat.send(text, takeFiles());
}

function onKey(event) {
  if (event.isComposing) return;
  // On a phone, Enter inserts a line break; there is a send button.
  const isTouch = matchMedia("(hover: none) and (pointer: coarse)").matches;
  if (event.key === "Enter" && !event.shiftKey && !isTouch) {
    event.preventDefault();
    submit();
  } else if (event.key === "ArrowUp" && box.value === "" && editLast()) event.preventDefault();
}

function showDraft() {
  const name = draftName();
  if (name === held) return;
  held = name;
  stopReading();
  box.value = small.get(name, "");
  fit();
  showButton();
}

function fit() {
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight, window.innerHeight * 0.4)}px`;
}

function showButton() {
  const isRunning = state.runs.has(state.current?.id);
  const label = isRunning ? "Stop" : "Send";
  if (button.getAttribute("aria-label") !== label) {
    button.replaceChildren(icon(isRunning ? "stop" : "send"));
    button.setAttribute("aria-label", label);
    button.title = isRunning ? "Stop (Esc)" : "Send (Enter)";
    button.classList.toggle("stop", isRunning);
  }
  button.disabled = !isRunning && ((box.value.trim() === "" && !hasFiles()) || isUnsent());
  showRate();
}

/** Show the context usage after the last answer. */
function showContext() {
  const fill = state.current && contextFill(state.current);
  meter.hidden = !fill;
  shorten.hidden = !fill || fill.used < ROOMY * fill.size || state.runs.has(state.current.id) || !canCompact(state.current, shownPath(state.current));
  if (!fill) return;
  const share = fill.used / fill.size;
  const sentence = `${number(fill.used)} of ${number(fill.size)} tokens of the context are used (${percent(share)})`;
  const filled = el("span", { class: "fill" });
  filled.style.width = `${Math.min(100, Math.round(100 * share))}%`;
  meter.replaceChildren(el("span", { class: "track" }, filled), el("span", {}, `${number(fill.used)} / ${number(fill.size)}`));
  meter.classList.toggle("nearly", share >= NEARLY);
  meter.title = sentence;
  for (const [name, value] of [["aria-valuenow", Math.min(fill.used, fill.size)], ["aria-valuemax", fill.size], ["aria-valuetext", sentence]]) meter.setAttribute(name, String(value));
}

const isTyped = matchMedia("(hover: hover)").matches;

/** Return the hint shown before the first message. */
const idle = () => (isTyped && !state.current?.messages.length ? `Enter sends, Shift+Enter breaks the line, ${CONTROL}+/ lists all keys` : "");

/** Return a note about starting MCP servers, for which answers wait. */
const starting = () => (startingServers().length ? `Starting tools (${startingServers().join(", ")}) …` : "");

/** Return what happens before the first token. */
function waiting(run) {
  if (isHeld(run)) return `${starting()} Your message waits for them.`;
  const model = run.model ?? chosenModel();
  if (run.reading) return `Reading the prompt: ${number(run.reading.processed)} / ${number(run.reading.total)} tokens`;
  if (model && modelState(model) === "loading") return `Loading ${model.name} … ${loadWords(model)}`.trim();
  return run.isAsking ? "Waiting for the server …" : "Reading the prompt …"; // the first chunk arrives before the prompt is computed
}

/** Return the progress before the first token from 0 to 1; null if unknown, undefined if idle. */
function shareOf(run) {
  if (!run || run.n || isHeld(run)) return undefined;
  if (run.reading?.total) return run.reading.processed / run.reading.total;
  const model = run.model ?? chosenModel();
  return model && modelState(model) === "loading" ? (model.progress ?? null) : undefined;
}

function showBar(share) {
  bar.hidden = share === undefined;
  bar.classList.toggle("unknown", share === null);
  bar.firstElementChild.style.width = share ? `${Math.round(100 * share)}%` : "";
  if (typeof share === "number") bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
  else bar.removeAttribute("aria-valuenow");
}

function showRate() {
  const run = state.runs.get(state.current?.id);
  skip.hidden = !isHeld(run);
  const text = !run ? starting() || idle() : run.n ? `${number(run.n)} tokens · ${number(run.rate)} tokens/s` : waiting(run);
  if (note.textContent !== text) note.textContent = text;
  showBar(shareOf(run));
}
