// Errors of an answer, with actions.

import * as chat from "./chat.js";
import { el, icon } from "../app/dom.js";
import { on, state } from "../app/state.js";
import { openSetting } from "../panels/panels.js";
import { toRequest } from "../panels/samplers.js";
import { editLast } from "./thread.js";

let update = () => {}; // updates the buttons of an invalid setting when settings change
on("setting", () => update());

/** Render an error. `isOver` returns true if it no longer belongs to the conversation. */
export function problemView(problem, isOver) {
  const { error } = problem;
  const isMild = error.code === "stopped";
  const actions = error.code === chat.FULL ? fullButtons(problem) : error.code === chat.NO_IMAGES ? withoutButtons("images") : error.code === chat.NO_AUDIO ? withoutButtons("audio") : error.setting ? settingButtons(error) : tryButton(error, isOver);
  return el("div", { class: isMild ? "problem mild" : "problem", role: isMild ? "status" : "alert" }, el("p", {}, icon("close"), el("span", {}, ...withCommands(error.message))), actions);
}

/** Render a sentence, with text in backticks as code. */
const withCommands = (text) => text.split(/`([^`]+)`/).map((part, i) => (i % 2 ? el("code", {}, part) : part));

const button = (text, run) => el("button", { type: "button", class: "button", on: { click: run } }, text);

/** Render the actions for a full context, where a retry would fail again. */
function fullButtons({ drop }) {
  return el("div", { class: "row" }, drop ? compactButton() : null, drop ? dropButton() : null, button("Edit message", () => editLast()));
}

function withoutButtons(which) {
  const without = button(`Continue without the ${which}`, () => chat.leaveOut(which));
  without.title = `The ${which} stay in this conversation, but the model only gets the file names.`;
  return el("div", { class: "row" }, without, button("Try again", () => chat.retry()));
}

function compactButton() {
  const one = button("Compact and continue", () => chat.compactAndRetry());
  one.title = "Replace the turns before your last message with a summary by the model; they stay in this conversation.";
  return one;
}

function dropButton() {
  const one = button("Drop the oldest turns and continue", () => chat.dropAndRetry());
  one.title = "Send only the system prompt and the last messages; the oldest messages stay in this conversation.";
  return one;
}

/** Render the actions for an invalid setting, where a retry would fail until the setting is changed. */
function settingButtons({ setting }) {
  const open = button("Open settings", () => openSetting(setting));
  const again = button("Try again", () => chat.retry());
  update = () => {
    again.hidden = !areSound(state.current.settings);
    open.hidden = !again.hidden;
  };
  update();
  return el("div", { class: "row" }, open, again);
}

function areSound(settings) {
  try {
    toRequest(settings, state.defaults);
    return true;
  } catch {
    return false;
  }
}

function tryButton(error, isOver) {
  const again = button("Try again", () => chat.retry());
  if (error.retryAfter) countDown(again, Math.ceil(error.retryAfter), isOver);
  return again;
}

function countDown(again, seconds, isOver) {
  if (isOver()) return;
  again.textContent = seconds > 0 ? `Try again in ${seconds} s` : "Try again";
  again.setAttribute("aria-label", "Try again");
  if (seconds > 0) setTimeout(() => countDown(again, seconds - 1, isOver), 1000);
}
