// Catalogue search: models that are not installed, with download buttons.

import * as api from "../app/api.js";
import { announce, byId, copyButton, el, toast } from "../app/dom.js";
import { bytes, parameters, percent } from "../app/format.js";
import { emit, on, state } from "../app/state.js";

const MAX_ROWS = 30; // maximum rows shown

const list = byId("catalogue");
const box = byId("model-search");
let known = null; // {allowed, models}, once loaded
let isAsked = false;

/** Add event listeners; `onSearch` is called with the words, which also filter installed models. */
export function setUpCatalogue(onSearch) {
  box.addEventListener("input", () => {
    onSearch();
    ask();
    render();
  });
  on("pulls", render);
}

/** Return the words of the search box. */
export const searched = () => box.value.toLowerCase().split(/\s+/).filter(Boolean);

/** Return true if the text contains all words. */
export const holds = (text, words) => words.every((word) => text.toLowerCase().includes(word));

/** Load the catalogue from the server, once. */
async function ask() {
  if (isAsked) return;
  isAsked = true;
  try {
    known = await api.catalogue();
  } catch (error) {
    isAsked = false;
    emit("problem", error);
  }
  render();
}

function render() {
  const words = searched();
  const found = words.length && known ? known.models.filter((one) => !one.here && holds(`${one.name} ${one.kind} ${one.licence}`, words)) : [];
  const shown = [...found].sort((a, b) => rank(a) - rank(b)).slice(0, MAX_ROWS);
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.action : null;
  list.hidden = !words.length || !known;
  list.replaceChildren(
    el("li", { class: "heading" }, shown.length ? (known?.allowed ? "Download" : "Download in a terminal on the server") : "No other matches in the catalogue."),
    ...shown.map(row),
    ...(found.length > MAX_ROWS ? [el("li", { class: "heading" }, `${found.length - MAX_ROWS} more; refine your search`)] : []),
  );
  if (focused) list.querySelector(`[data-action="${CSS.escape(focused)}"]`)?.focus();
}

const FITS = { yes: "fits", tight: "tight: little memory would be left", "too large": "too large for this machine", "not yet": "not supported yet" };
const rank = (one) => Object.keys(FITS).indexOf(one.fits ?? "yes");

function row(one) {
  const going = state.pulls.get(one.name);
  const active = one.active < one.parameters ? `, ${parameters(one.active)} active` : "";
  const facts = [`${one.estimated ? "about " : ""}${bytes(one.size_bytes)}`, `${parameters(one.parameters)} parameters${active}`, one.quantization, one.kind === "chat" ? null : one.kind, one.licence].filter(Boolean);
  const fit = one.fits ? el("span", { class: "fit", "data-fit": one.fits }, ` · ${FITS[one.fits]}`) : null;
  return el(
    "li",
    { "data-state": going ? "loading" : "unloaded", "data-name": one.name },
    el("div", { class: "choose" }, el("span", { class: "dot", "aria-hidden": "true" }), el("span", { class: "name" }, one.name), el("span", { class: "facts" }, going ? progress(going) : [facts.join(" · "), fit])),
    action(one, going),
  );
}

function progress({ completed, total }) {
  if (!total) return "requesting …";
  const bar = el("span", { class: "fill" });
  bar.style.width = `${Math.floor((100 * completed) / total)}%`;
  return [el("span", { class: "track" }, bar), ` ${percent(completed / total)} of ${bytes(total)}`];
}

/** Render a download button, or the command to run on the server. */
function action(one, going) {
  if (going || one.fits === "not yet" || one.fits === "too large") return null;
  if (!known.allowed) return el("span", { class: "command" }, el("code", {}, `woolly pull ${one.name}`), copyButton("Copy the command", () => `woolly pull ${one.name}`));
  return el("button", { type: "button", class: "button small", "aria-label": `Download ${one.name}`, "data-action": `fetch ${one.name}`, on: { click: () => fetchModel(one) } }, "Download");
}

async function fetchModel(one) {
  const show = (step) => {
    state.pulls.set(one.name, step);
    emit("pulls");
  };
  show({ completed: 0, total: 0 });
  announce(`${one.name} is being downloaded`);
  try {
    for await (const step of api.pull(one.name)) show(step);
    one.here = true;
    toast(`${one.name} is installed.`);
  } catch (error) {
    toast(error.message, null, 12);
    emit("problem", error);
  } finally {
    state.pulls.delete(one.name);
    emit("pulls");
    emit("refresh");
  }
}
