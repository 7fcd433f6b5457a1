// Servers: the MCP servers behind this server, and why one of them failed.

import { byId, el, iconButton } from "../app/dom.js";
import { on, state } from "../app/state.js";
import { startAgain } from "./tools.js";

const problems = byId("server-problems");
const seen = new Map(); // the reasons that a person has put away, by server

/** Begins to listen. */
export function setUpServers() {
  on("tools", showProblems);
}

/** One line for each server that failed, until it is put away. */
function showProblems() {
  const failed = state.servers.filter(({ name, state: condition, reason }) => condition === "failed" && seen.get(name) !== reason);
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
