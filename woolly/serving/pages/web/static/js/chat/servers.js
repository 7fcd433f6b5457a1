// MCP servers: a list with a switch per tool, and errors of failed servers.

import * as chat from "./chat.js";
import { byId, el, iconButton } from "../app/dom.js";
import { setUpPopover } from "../app/popover.js";
import { emit, on, state } from "../app/state.js";
import { small } from "../app/store.js";
import { isOffered, offerTools, startAgain } from "./tools.js";

const button = byId("tools");
const popover = byId("tool-list");
const problems = byId("server-problems");
const seen = new Map(); // dismissed errors by server
const unfolded = new Set(); // servers whose tools are listed

const { toggle, close } = setUpPopover(button, popover, () => {
  render();
  popover.querySelector("input, button")?.focus();
});

/** Close the list of tools; return false if it was already closed. */
export const closeServers = close;

/** Add event listeners. */
export function setUpServers() {
  button.addEventListener("click", () => toggle());
  for (const kind of ["tools", "settings", "current"]) on(kind, render);
}

function render() {
  showProblems();
  button.hidden = !state.servers.length;
  if (button.hidden || !state.current) return;
  const n = state.tools.filter((tool) => isOffered(state.current.settings, tool)).length;
  const nFailed = state.servers.filter((server) => server.state === "failed").length;
  byId("tools-count").textContent = String(n);
  button.classList.toggle("failed", nFailed > 0);
  const label = `Tools: ${n} offered${nFailed ? `, ${nFailed} ${nFailed > 1 ? "servers" : "server"} failed` : ""}`;
  button.setAttribute("aria-label", label);
  button.title = label;
  if (popover.hidden) return;
  const focused = popover.contains(document.activeElement) ? document.activeElement.dataset.name : null;
  popover.replaceChildren(...state.servers.map(serverView));
  if (focused) popover.querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus();
}

function serverView(server) {
  const tools = state.tools.filter((tool) => tool.server === server.name);
  const nOn = tools.filter((tool) => isOffered(state.current.settings, tool)).length;
  const words = { starting: "starting …", failed: "failed", up: `${nOn} of ${tools.length} tools` }[server.state];
  const head = el(
    "div",
    { class: "server", "data-state": server.state },
    tools.length ? toggleSwitch(`server ${server.name}`, server.name, nOn > 0, tools) : el("strong", {}, server.name),
    el("span", { class: "state" }, words),
    server.state === "failed" ? el("button", { type: "button", class: "button small", "data-name": `again ${server.name}`, on: { click: () => startAgain(server.name) } }, "Try again") : null,
  );
  if (server.state === "failed") return el("section", {}, head, el("p", { class: "reason" }, capital(server.reason)));
  if (!tools.length) return el("section", {}, head);
  const list = el("ul", {}, tools.map((tool) => el("li", {}, toggleSwitch(`tool ${tool.name}`, tool.name, isOffered(state.current.settings, tool), [tool]), el("small", {}, tool.description?.trim().split("\n", 1)[0] ?? ""))));
  const folded = el("details", { open: unfolded.has(server.name) }, el("summary", {}, "Tools"), list);
  folded.addEventListener("toggle", () => (folded.open ? unfolded.add(server.name) : unfolded.delete(server.name)));
  return el("section", {}, head, folded);
}

function toggleSwitch(id, label, isOn, tools) {
  const box = el("input", { type: "checkbox", role: "switch", "data-name": id });
  box.checked = isOn;
  box.addEventListener("change", () => {
    offerTools(state.current.settings, tools, box.checked);
    if (state.current.messages.length) chat.keep(state.current);
    else small.set("fresh-settings", state.current.settings);
    emit("settings");
  });
  return el("label", {}, box, el("span", {}, label));
}

/** Render a dismissible line for each failed server. */
function showProblems() {
  const failed = state.servers.filter(({ name, state: condition, reason }) => condition === "failed" && seen.get(name) !== reason);
  const shown = failed.map(({ name, reason }) => `${name} ${reason}`).join("\n");
  if (problems.dataset.shown === shown) return; // keep the button between mouse down and click
  problems.dataset.shown = shown;
  problems.replaceChildren(...failed.map(problemLine));
  problems.hidden = !failed.length;
}

function problemLine({ name, reason }) {
  const putAway = () => {
    seen.set(name, reason);
    showProblems();
  };
  return el(
    "div",
    { class: "server-problem", role: "alert" },
    el("span", {}, capital(reason)),
    el("button", { type: "button", class: "text-button", on: { click: () => startAgain(name) } }, "Try again"),
    iconButton("close", "Put away", putAway),
  );
}

const capital = (text) => `${text.slice(0, 1).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
