// Model picker: choose, load and unload models.

import * as api from "../app/api.js";
import { announce, byId, el, icon, iconButton, toast } from "../app/dom.js";
import { bytes, number, parameters } from "../app/format.js";
import { showLock } from "../app/lock.js";
import { setUpPopover } from "../app/popover.js";
import { answers, chosenModel, emit, loadWords, modelState, on, state } from "../app/state.js";
import { small } from "../app/store.js";
import { holds, searched, setUpCatalogue } from "./catalogue.js";
import { besideOf, isBeside, toggleBeside } from "./compare.js";

const button = byId("model");
const list = byId("model-list");

const WORDS = { ready: "loaded", loading: "loading…", unloading: "unloading…", unloaded: "not loaded" };

const popover = setUpPopover(button, byId("models"), () => {
  emit("refresh");
  const box = byId("model-search");
  // On touch devices, focusing the box would open the keyboard over the list.
  if (!matchMedia("(hover: hover)").matches) (list.querySelector('[aria-pressed="true"]') ?? list.querySelector("button"))?.focus();
  else {
    box.focus();
    box.select();
  }
});

/** Close the picker; return false if it was already closed. */
export const closePicker = popover.close;

/** Add event listeners. */
export function setUpPicker() {
  button.addEventListener("click", () => (state.isLocked ? showLock() : popover.toggle()));
  on("models", render);
  on("settings", () => state.models.length && render()); // no model is known before
  setUpCatalogue(render);
  setInterval(() => state.busy.size && render(), 1000);
}

function render() {
  const chosen = chosenModel();
  const [condition, name] = chosen ? [modelState(chosen), shortName(chosen.name)] : absent();
  const isLost = state.health === "unreachable";
  button.dataset.state = isLost ? "unreachable" : condition;
  byId("model-name").textContent = name;
  byId("model-state").textContent = isLost && chosen ? "no connection" : chosen ? stateWords(chosen) : "";
  const second = state.current ? besideOf(state.current) : null;
  byId("model-beside").textContent = second ? `beside ${shortName(second.name)}` : "";
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.action : null;
  const words = searched();
  const found = state.models.filter((model) => holds([model.name, ...(model.aliases ?? [])].join(" "), words));
  const ordered = [...found.filter(answers), ...found.filter((model) => !answers(model))];
  list.replaceChildren(...ordered.map((model) => row(model, model === chosen)));
  if (chosen && !found.length) list.append(el("li", { class: "empty" }, "No installed model matches."));
  if (!chosen) list.append(el("li", { class: "empty" }, EMPTY[condition]));
  if (focused) list.querySelector(`[data-action="${CSS.escape(focused)}"]`)?.focus();
}

/** Return the state of an empty list and its message. */
function absent() {
  if (state.health === "unreachable") return ["unreachable", "No connection"];
  return state.isLocked ? ["locked", "Key needed"] : ["unloaded", "No model"];
}

const EMPTY = {
  unreachable: "The server cannot be reached.",
  locked: "The server requires a key.",
  unloaded: "No model is installed on the server.",
};

const shortName = (name) => name.replace(/\.gguf$/, "");

function stateWords(model) {
  const busy = state.busy.get(model.name);
  const seconds = busy ? Math.round((Date.now() - busy.since) / 1000) : 0;
  const condition = modelState(model);
  const how = condition === "loading" ? loadWords(model) : "";
  return [WORDS[condition], how, seconds > 1 ? `${seconds} s` : ""].filter(Boolean).join(" ");
}

/** Render an unsupported model in gray, with the reason. */
function refusedRow(model) {
  return el(
    "li",
    { "data-state": "unsupported" },
    el(
      "button",
      { type: "button", class: "choose", "aria-disabled": "true", "data-action": `choose ${model.name}`, title: model.unsupported },
      el("span", { class: "dot", "aria-hidden": "true" }),
      el("span", { class: "name" }, shortName(model.name)),
      el("span", { class: "facts" }, `not supported: ${model.unsupported}`),
    ),
  );
}

function row(model, isChosen) {
  if (model.unsupported) return refusedRow(model);
  const condition = modelState(model);
  const isBusy = condition === "loading" || condition === "unloading";
  const choose = () => {
    state.model = model.name;
    small.set("model", model.name);
    emit("models");
    if (!model.loaded && !isBusy) move(model, "loading");
    else closePicker();
  };
  const verb = model.loaded ? "Unload" : "Load";
  const canChat = answers(model);
  return el(
    "li",
    { "data-state": condition },
    el(
      "button",
      { type: "button", class: "choose", "aria-pressed": String(isChosen), "aria-disabled": canChat ? null : "true", title: canChat ? null : "This model does not chat; choose a text-generation model", "data-action": `choose ${model.name}`, on: canChat ? { click: choose } : {} },
      el("span", { class: "dot", "aria-hidden": "true" }),
      el("span", { class: "name" }, shortName(model.name), isChosen ? icon("check") : null),
      el("span", { class: "facts" }, facts(model).join(" · "), fitWords(model)),
    ),
    isChosen || !canChat ? null : compareButton(model),
    el("button", { type: "button", class: "button small", disabled: isBusy, "aria-label": `${verb} ${model.name}`, title: model.loaded ? "Free the model's memory" : "Load the model into memory, without choosing it", "data-action": `move ${model.name}`, on: { click: () => move(model, model.loaded ? "unloading" : "loading") } }, verb),
  );
}

function compareButton(model) {
  const isOn = isBeside(model.name);
  const label = isOn ? `Do not answer with ${model.name}` : `Also answer with ${model.name}, using the same seed`;
  return iconButton("columns", label, () => toggleBeside(model.name), { "aria-pressed": String(isOn), "data-action": `beside ${model.name}` });
}

const KINDS = { embedding: "embedding model", token_embedding: "embedding model", rerank: "reranker", classify: "classifier", transcription: "speech-to-text model" };

/** Return the kind of a model that does not chat, as text. */
function kindWords(model) {
  if (answers(model)) return null;
  return `${KINDS[model.capabilities.find((one) => one in KINDS)] ?? "no text generation"}, no chat`;
}

const facts = (model) => [stateWords(model), kindWords(model), `${parameters(model.parameters)} parameters`, model.quantization, bytes(model.size_bytes), `context ${number(model.context_length)}`].filter(Boolean);

/** Return whether an unloaded model fits into memory, as text. */
function fitWords(model) {
  if (model.loaded || !model.fits) return null;
  const words = { yes: "fits", tight: "tight: little memory would be left", "too large": "too large for this machine's memory" }[model.fits];
  return el("span", { class: "fit", "data-fit": model.fits }, ` · ${words}`);
}

/** Load or unload a model; the server replies when it is done. */
async function move(model, verb) {
  state.busy.set(model.name, { verb, since: Date.now() });
  emit("models");
  announce(`${model.name} is ${verb}`);
  try {
    await (verb === "loading" ? api.loadModel(model.name) : api.unloadModel(model.name));
    announce(`${model.name} is ${verb === "loading" ? "loaded" : "unloaded"}`);
  } catch (error) {
    toast(error.message, null, 12);
    emit("problem", error);
  } finally {
    state.busy.delete(model.name);
    emit("refresh");
  }
}
