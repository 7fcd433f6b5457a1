// Settings panel of a conversation: system prompt, structured output and samplers.

import * as chat from "../chat/chat.js";
import { byId, el, toast } from "../app/dom.js";
import { presetsRow } from "./presets.js";
import { FORMS, SettingError, countChanged, groups, isUseful, readValue } from "./samplers.js";
import { emit, on, state } from "../app/state.js";
import { small } from "../app/store.js";

const host = byId("settings-fields");
const badge = byId("settings-badge");

const EXAMPLE = JSON.stringify({ type: "object", properties: { name: { type: "string" }, age: { type: "integer" } }, required: ["name", "age"] }, null, 2);
const EXAMPLES = { json_schema: EXAMPLE, grammar: 'root ::= "yes" | "no"', regex: "[0-9]{4}-[0-9]{2}-[0-9]{2}" };

let controls = []; // {field, row, box, note}

/** Add event listeners. */
export function setUpSettings() {
  byId("settings-reset").addEventListener("click", reset);
  byId("settings-keep").addEventListener("click", () => {
    small.set("settings", settings());
    toast("New conversations will use these settings.");
  });
  on("settings", render);
  on("models", () => (controls.length || !state.current ? placeholders() : render()));
}

const settings = () => state.current.settings;

function changed() {
  // Settings changed before the first message must survive a reload.
  if (state.current.messages.length) chat.keep(state.current);
  else small.set("fresh-settings", settings());
  refresh();
  emit("setting");
}

/** Open the group of a setting and focus its field. */
export function focusSetting(name) {
  const box = host.querySelector(`[data-setting="${CSS.escape(name)}"]`);
  const group = box?.closest("details");
  if (group) group.open = true;
  box?.scrollIntoView({ block: "center" });
  box?.focus();
}

function apply(others) {
  state.current.settings = others;
  changed();
  render();
}

function reset() {
  const before = structuredClone(settings());
  apply({});
  toast("Settings reset to the server's defaults.", { label: "Undo", run: () => apply(before) });
}

function render() {
  const open = new Set([...host.querySelectorAll("details[open]")].map((one) => one.dataset.group));
  const isFirst = !controls.length;
  controls = [];
  host.replaceChildren(
    presetsRow(settings, apply),
    textRow("system", "System prompt", "Instructions before the conversation.", 4),
    formRow(),
    choiceRow("reasoning", "Reasoning", [["", "Default"], ["none", "Off"], ["low", "Low"], ["medium", "Medium"], ["high", "High"]], "For reasoning models.", "reasoning_effort"),
    choiceRow("overflow", "Context overflow", [["", "Ask"], ["compact", "Compact older turns"], ["drop", "Drop oldest turns"]], "What to do when the conversation exceeds the context."),
    ...groups().map((group) =>
      el(
        "details",
        { "data-group": group.name, open: isFirst ? group.open : open.has(group.name) },
        el("summary", {}, group.name, el("span", { class: "count" })),
        el("div", { class: "fields" }, group.fields.map(fieldRow)),
      ),
    ),
    el(
      "details",
      { "data-group": "Tools", open: open.has("Tools") },
      el("summary", {}, "Tools and probabilities", el("span", { class: "count" })),
      ...(state.tools.length ? [choiceRow("mcp", "MCP tools", [["", "Offer"], ["off", "Off"]], mcpHelp())] : []),
      textRow("tools", "Tools (JSON)", "Functions that the model may call, in OpenAI's format; you enter their results.", 4, "tools"),
      choiceRow("probabilities", "Token probabilities", [["", "Off"], ["on", "Show"]], "Shows the tokens of each answer with their probabilities and alternatives.", "logprobs"),
    ),
  );
  placeholders();
  refresh();
}

const mcpHelp = () => `Of the MCP servers ${[...new Set(state.tools.map((tool) => tool.server))].join(", ")}. Each call needs your approval; enable or disable tools with the button at the message box.`;

let n = 0;

function labelled(label, help, box, unit = null) {
  const id = `setting-${(n += 1)}`;
  box.id = id;
  box.setAttribute("aria-describedby", `${id}-help`);
  const note = el("small", { id: `${id}-help` }, help);
  const isShort = box.tagName === "SELECT" || box.type === "number";
  return [el("div", { class: isShort ? "field short" : "field" }, el("label", { for: id }, label, unit ? el("span", { class: "unit" }, ` (${unit})`) : null), box, note), note];
}

function textRow(name, label, help, rows, apiName = null) {
  const box = el("textarea", { rows, spellcheck: "false", value: settings()[name] ?? "", title: apiName, "data-setting": name });
  box.addEventListener("input", () => {
    settings()[name] = box.value;
    changed();
  });
  return labelled(label, help, box)[0];
}

function choiceRow(name, label, choices, help, apiName = null) {
  const box = select(choices, settings()[name] ?? "");
  if (apiName) box.title = apiName;
  box.addEventListener("change", () => {
    settings()[name] = box.value;
    changed();
  });
  return labelled(label, help, box)[0];
}

const select = (choices, value) => el("select", {}, choices.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));

function formRow() {
  const row = choiceRow("form", "Structured output", FORMS, "Constrains the answer.", "response_format, grammar, regex");
  const chooser = row.querySelector("select");
  const pattern = textRow("pattern", "Schema or pattern", "", 7);
  const box = pattern.querySelector("textarea");
  const note = pattern.querySelector("small");
  const use = el("button", { type: "button", class: "button small" }, "Use example");
  pattern.append(use);
  box.classList.add("code-box");
  const show = () => {
    pattern.hidden = !(chooser.value in EXAMPLES);
    pattern.querySelector("label").textContent = FORMS.find(([key]) => key === chooser.value)[1];
    check();
  };
  const check = () => {
    const isEmpty = chooser.value in EXAMPLES && !box.value.trim();
    let problem = isEmpty ? "This field is empty: fill it in, or choose “Any text” above." : "";
    use.hidden = !isEmpty;
    if (chooser.value === "json_schema" && !isEmpty) {
      try {
        JSON.parse(box.value);
      } catch (error) {
        problem = `Invalid JSON: ${error.message}`;
      }
    }
    mark(box, note, problem, "");
  };
  const fill = () => {
    box.value = settings().pattern = EXAMPLES[chooser.value];
    changed();
    check();
  };
  // The example is inserted as a value, because a placeholder would look like a filled field.
  chooser.addEventListener("change", () => {
    if (chooser.value in EXAMPLES && ["", ...Object.values(EXAMPLES)].includes(box.value.trim())) fill();
    show();
  });
  use.addEventListener("click", () => {
    fill();
    box.focus();
  });
  box.addEventListener("input", check);
  show();
  return el("div", {}, row, pattern);
}

function fieldRow(field) {
  const value = settings().sampling?.[field.name] ?? "";
  let box;
  if (field.kind === "choice") box = select([["", "Default"], ...field.choices.map((name, i) => [String(i), name])], value);
  else if (field.kind === "flag") box = select([["", "Default"], ["true", "Yes"], ["false", "No"]], value);
  else if (field.kind === "lines" || field.kind === "json") box = el("textarea", { rows: 2, spellcheck: "false", class: "code-box", value });
  else if (field.kind === "names") box = el("input", { type: "text", spellcheck: "false", autocomplete: "off", value });
  else box = el("input", { type: "number", inputmode: "decimal", step: field.step ?? 1, min: field.min, max: field.max, autocomplete: "off", value });
  const [row, note] = labelled(field.label, field.help, box, field.unit);
  row.querySelector("label").title = field.name;
  const take = () => {
    settings().sampling = { ...settings().sampling, [field.name]: box.value };
    if (box.value === "") delete settings().sampling[field.name];
    changed();
  };
  box.addEventListener("input", take);
  box.title = field.name;
  box.dataset.setting = field.name;
  controls.push({ field, row, box, note });
  return row;
}

function mark(box, note, problem, help) {
  box.toggleAttribute("aria-invalid", problem !== "");
  if (problem) box.setAttribute("aria-invalid", "true");
  note.textContent = problem || help;
  note.classList.toggle("wrong", problem !== "");
}

/** Update which settings have an effect, which are invalid and how many differ. */
function refresh() {
  const sampling = settings().sampling ?? {};
  for (const { field, row, box, note } of controls) {
    box.disabled = !isUseful(field, sampling, state.defaults);
    row.classList.toggle("changed", box.value.trim() !== "");
    let problem = "";
    try {
      if (!box.disabled) readValue(field, box.value);
      if (box.validity.badInput) problem = "Enter a number.";
    } catch (error) {
      if (!(error instanceof SettingError)) throw error;
      problem = error.message;
    }
    mark(box, note, problem, field.help);
  }
  for (const group of host.querySelectorAll("details")) {
    const count = group.querySelectorAll(".changed").length;
    group.querySelector(".count").textContent = count ? String(count) : "";
  }
  const count = countChanged(settings());
  badge.textContent = count ? String(count) : "";
  badge.hidden = !count;
  byId("settings").setAttribute("aria-label", count ? `Settings, ${count} changed` : "Settings");
  byId("settings-reset").disabled = !count;
}

/** Show the server's defaults in empty fields. */
function placeholders() {
  for (const { field, box } of controls) {
    const value = state.defaults[field.name];
    if (value === undefined || field.kind === "choice" || field.kind === "flag") continue;
    if (field.name === "seed") box.placeholder = "any";
    else if (field.name === "max_tokens") box.placeholder = value > 0 ? String(value) : "no limit";
    else if (field.kind === "lines") box.placeholder = value.map((text) => text.replace(/\n/g, "\\n")).join("\n");
    else if (field.kind === "json") box.placeholder = "none";
    else box.placeholder = Array.isArray(value) ? value.join(", ") : String(Number(Number(value).toPrecision(6)));
  }
}
