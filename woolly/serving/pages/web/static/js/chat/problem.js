// Problem: why an answer did not come, with what can be done about it.

import * as chat from "./chat.js";
import { el, icon } from "../app/dom.js";
import { on, state } from "../app/state.js";
import { openSetting } from "../panels/panels.js";
import { toRequest } from "../panels/samplers.js";
import { editLast } from "./thread.js";

let update = () => {}; // of the buttons below a wrong setting, when settings change
on("setting", () => update());

/** The box of a problem. `isOver` says whether it is still the conversation's. */
export function problemView(problem, isOver) {
  const { error } = problem;
  const isMild = error.code === "stopped";
  const actions = error.code === chat.FULL ? fullButtons(problem) : error.code === chat.NO_IMAGES ? withoutButtons("images") : error.code === chat.NO_AUDIO ? withoutButtons("audio") : error.setting ? settingButtons(error) : tryButton(error, isOver);
  return el("div", { class: isMild ? "problem mild" : "problem", role: isMild ? "status" : "alert" }, el("p", {}, icon("close"), el("span", {}, ...withCommands(error.message))), actions);
}

/** A sentence, with what stands between backticks, such as a command, as code. */
const withCommands = (text) => text.split(/`([^`]+)`/).map((part, i) => (i % 2 ? el("code", {}, part) : part));

const button = (text, run) => el("button", { type: "button", class: "button", on: { click: run } }, text);

/** A full context stays full: asking again would fail again. */
function fullButtons({ drop }) {
  return el("div", { class: "row" }, drop ? compactButton() : null, drop ? dropButton() : null, button("Edit message", () => editLast()));
}

function withoutButtons(which) {
  const without = button(`Go on without the ${which}`, () => chat.leaveOut(which));
  without.title = `This conversation keeps the ${which}; the model gets the file names.`;
  return el("div", { class: "row" }, without, button("Try again", () => chat.retry()));
}

function compactButton() {
  const one = button("Compact and go on", () => chat.compactAndRetry());
  one.title = "The model writes a note of the turns before your last message, and gets it in their place; they stay in this conversation.";
  return one;
}

function dropButton() {
  const one = button("Drop the oldest turns and go on", () => chat.dropAndRetry());
  one.title = "The system prompt and the last messages are sent; the oldest stay in this conversation, but the model gets them no more.";
  return one;
}

/** Asking again would fail again, until the setting is another. */
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
