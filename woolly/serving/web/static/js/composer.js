// The Composer: where a person writes. What is written stays until it is sent, also over a reload.

import * as chat from "./chat.js";
import { byId, icon } from "./dom.js";
import { number } from "./format.js";
import { CONTROL } from "./panels.js";
import { on, state } from "./state.js";
import { small } from "./store.js";
import { editLast } from "./thread.js";

const box = byId("message");
const button = byId("send");
const note = byId("composer-note");

const draftName = () => `draft.${state.current.messages.length ? state.current.id : "new"}`;
let held = null; // the name of the draft that is in the box

/** Begins to listen. */
export function setUpComposer() {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!chat.stop()) submit();
  });
  box.addEventListener("input", () => {
    small.set(held, box.value);
    fit();
    showButton();
  });
  box.addEventListener("keydown", onKey);
  window.addEventListener("resize", fit);
  on("current", showDraft);
  on("run", showButton);
  setInterval(showRate, 500);
}

function submit() {
  const text = box.value;
  if (!text.trim() || state.runs.has(state.current.id)) return;
  small.set(held, null);
  box.value = "";
  fit();
  chat.send(text);
}

function onKey(event) {
  if (event.isComposing) return;
  // On a phone's keyboard Enter is the only way to a line break; sending has its button.
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
  button.disabled = !isRunning && box.value.trim() === "";
  showRate();
}

const isTyped = matchMedia("(hover: hover)").matches;

/** What the line says where nothing runs: how to send, until something was. */
const idle = () => (isTyped && !state.current?.messages.length ? `Enter sends, Shift+Enter breaks the line, ${CONTROL}+/ lists all keys` : "");

function showRate() {
  const run = state.runs.get(state.current?.id);
  const text = !run ? idle() : run.n ? `${number(run.n)} tokens · ${number(run.rate)} tokens/s` : "Waiting for the first token…";
  if (note.textContent !== text) note.textContent = text;
}
