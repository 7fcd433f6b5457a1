// Side panels (settings, performance), keyboard shortcuts and the theme switch.

import { byId, el, icon } from "../app/dom.js";
import { closeDrawer } from "../chat/sidebar.js";
import { closePerformance, openPerformance } from "./performance.js";
import { focusSetting } from "./settings.js";
import { small } from "../app/store.js";

const panel = byId("panel");
const PAGES = ["settings", "performance"];
let shown = null;

/** Add event listeners. */
export function setUpPanels() {
  for (const name of PAGES) {
    byId(name).addEventListener("click", () => togglePanel(name));
    byId(`menu-${name}`).addEventListener("click", () => {
      closeDrawer();
      togglePanel(name);
    });
  }
  byId("close-panel").addEventListener("click", () => closePanel());
  byId("theme").addEventListener("click", nextTheme);
  byId("shortcuts").addEventListener("click", showShortcuts);
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.id !== "key-dialog" && dialog.close());
  }
  for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
  showTheme();
}

/** Open a panel, or close it if it is open. */
export function togglePanel(name) {
  if (shown === name) {
    closePanel();
    return;
  }
  shown = name;
  for (const page of PAGES) {
    byId(`${page}-page`).hidden = page !== name;
    byId(page).setAttribute("aria-expanded", String(page === name));
  }
  byId("panel-title").textContent = name === "settings" ? "Settings" : "Performance";
  panel.setAttribute("aria-label", byId("panel-title").textContent);
  panel.hidden = false;
  document.body.classList.add("with-panel");
  if (name === "performance") openPerformance();
  else closePerformance();
  byId("close-panel").focus();
}

/** Open the settings panel at a setting. */
export function openSetting(name) {
  if (shown !== "settings") togglePanel("settings");
  focusSetting(name);
}

/** Close the panel; return false if it was already closed. */
export function closePanel() {
  if (!shown) return false;
  const button = byId(shown);
  button.setAttribute("aria-expanded", "false");
  shown = null;
  panel.hidden = true;
  document.body.classList.remove("with-panel");
  closePerformance();
  button.focus();
  return true;
}

const THEMES = [["auto", "Theme: system"], ["sun", "Theme: light"], ["moon", "Theme: dark"]];
const NAMES = [null, "light", "dark"];

function nextTheme() {
  const next = NAMES[(NAMES.indexOf(small.get("theme")) + 1) % NAMES.length];
  small.set("theme", next);
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  showTheme();
}

function showTheme() {
  const [name, label] = THEMES[Math.max(0, NAMES.indexOf(small.get("theme")))];
  byId("theme").replaceChildren(icon(name), el("span", { class: "word" }, "Theme"));
  byId("theme").setAttribute("aria-label", label);
  byId("theme").title = label;
}

export const isMac = /Mac|iPhone|iPad/.test(navigator.platform);
export const CONTROL = isMac ? "⌘" : "Ctrl";

export const SHORTCUTS = [
  [["Enter"], "Send the message"],
  [["Shift", "Enter"], "A line break"],
  [["Esc"], "Close the open panel or dialog, or stop the answer"],
  [["↑"], "Edit your last message (in an empty box)"],
  [[CONTROL, "K"], "New conversation"],
  [[CONTROL, "Shift", "Enter"], "Answer again"],
  [[CONTROL, "Shift", "F"], "Search conversations"],
  [[CONTROL, "B"], "Show or hide conversations"],
  [[CONTROL, ","], "Settings"],
  [[CONTROL, "."], "Performance"],
  [["F2"], "Rename a conversation (in the list)"],
  [["Del"], "Delete a conversation (in the list)"],
  [[CONTROL, "/"], "This list"],
];

/** Show the keyboard shortcuts. */
export function showShortcuts() {
  const rows = SHORTCUTS.map(([keys, text]) => el("div", {}, el("dt", {}, keys.flatMap((key, i) => [i ? " + " : null, el("kbd", {}, key)])), el("dd", {}, text)));
  byId("shortcut-list").replaceChildren(...rows);
  byId("shortcuts-dialog").showModal();
}
