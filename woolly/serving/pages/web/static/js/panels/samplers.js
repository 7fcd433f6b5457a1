// Samplers: reads and checks the settings of an answer. The server describes each in GET /props (woolly/sampling/option.py).
//
// `kind` says how text is read: number, whole, flag, choice, lines, names, json. `needs` names the settings without
// which this one means nothing; it is then neither asked for nor sent. `mirostat` is false if Mirostat stands in for it.

import { state } from "../app/state.js";

/** The settings by the parts of the panel, in the server's order. */
export function groups() {
  const found = new Map();
  for (const field of state.options) found.set(field.group, [...(found.get(field.group) ?? []), field]);
  return [...found].map(([name, fields], i) => ({ name, fields, open: i === 0 }));
}

const byName = (name) => state.options.find((field) => field.name === name);

/** What is wrong with a setting, as a sentence; `setting` is its name, once that is known. */
export class SettingError extends Error {
  constructor(message, setting = null) {
    super(message);
    this.setting = setting;
  }
}

/** Returns the value of a text; undefined if it is empty. */
export function readValue(field, text) {
  const trimmed = text.trim();
  if (trimmed === "") return undefined;
  if (field.kind === "flag") return trimmed === "true";
  if (field.kind === "choice") return Number(trimmed);
  if (field.kind === "lines") {
    const lines = text.split("\n").filter((line) => line !== "");
    return field.escaped ? lines.map((line) => line.replace(/\\n/g, "\n").replace(/\\t/g, "\t")) : lines;
  }
  if (field.kind === "names") return trimmed.split(/[\s,;]+/).filter(Boolean);
  if (field.kind === "json") return parseJson(field.label, trimmed);
  const value = Number(trimmed);
  if (!Number.isFinite(value)) throw new SettingError(`${field.label} is “${trimmed}”; a number was expected.`);
  if (field.kind === "whole" && !Number.isInteger(value)) throw new SettingError(`${field.label} is ${trimmed}; a whole number was expected.`);
  if (field.min !== undefined && value < field.min) throw new SettingError(`${field.label} is ${trimmed}; at least ${field.min} was expected.`);
  if (field.max !== undefined && value > field.max) throw new SettingError(`${field.label} is ${trimmed}; at most ${field.max} was expected.`);
  return value;
}

function parseJson(label, text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new SettingError(`${label} is not valid JSON: ${error.message}.`);
  }
  if (typeof value !== "object" || value === null) throw new SettingError(`${label} is not a JSON object.`);
  return value;
}

/** Whether a setting has a meaning beside the others. */
export function isUseful(field, sampling, defaults) {
  const held = (name) => readSafely(byName(name), sampling[name] ?? "") ?? defaults[name];
  if (field.mirostat === false && held("mirostat") !== 0) return false;
  return !field.needs || field.needs.some((name) => held(name) !== byName(name).off);
}

function readSafely(field, text) {
  try {
    return readValue(field, text);
  } catch {
    return undefined;
  }
}

export const FORMS = [
  ["", "Any text"],
  ["json_object", "Any JSON object"],
  ["json_schema", "JSON schema"],
  ["grammar", "Grammar (GBNF)"],
  ["regex", "Regular expression"],
];

/** Returns what `read` does; a SettingError gets the name of the setting that it is about. */
function named(setting, read) {
  try {
    return read();
  } catch (error) {
    if (error instanceof SettingError) error.setting = setting;
    throw error;
  }
}

/** Returns the fields of a request for a conversation's settings. SettingError if one cannot be read. */
export function toRequest(settings, defaults) {
  const sampling = settings.sampling ?? {};
  const request = {};
  for (const field of state.options) {
    const value = isUseful(field, sampling, defaults) ? named(field.name, () => readValue(field, sampling[field.name] ?? "")) : undefined;
    if (value !== undefined) request[field.name] = value;
  }
  if (settings.reasoning) request.reasoning_effort = settings.reasoning;
  if (settings.tools?.trim()) request.tools = named("tools", () => parseJson("Tools", settings.tools));
  if (settings.probabilities) Object.assign(request, { logprobs: true, top_logprobs: 5 });
  const pattern = (settings.pattern ?? "").trim();
  if (settings.form === "json_object") request.response_format = { type: "json_object" };
  else if (settings.form && !pattern) throw new SettingError("A structured output is chosen, but its box is empty; fill it, or choose “Any text”.", "pattern");
  else if (settings.form === "json_schema") request.response_format = { type: "json_schema", json_schema: { name: "answer", schema: named("pattern", () => parseJson("The JSON schema", pattern)) } };
  else if (settings.form) request[settings.form] = pattern;
  return request;
}

/** The settings of a conversation as typed values by the server's names; what cannot be read is left out. */
export function typedSettings(settings) {
  const sampling = settings.sampling ?? {};
  const rows = state.options.map((field) => [field.name, readSafely(field, sampling[field.name] ?? "")]);
  const typed = Object.fromEntries(rows.filter(([name, value]) => value !== undefined && !(["seed", "max_tokens"].includes(name) && value < 0)));
  const pattern = (settings.pattern ?? "").trim();
  if (pattern && ["grammar", "regex"].includes(settings.form)) typed[settings.form] = pattern;
  const schema = settings.form === "json_schema" ? readSafely({ kind: "json", label: "" }, pattern) : undefined;
  return schema ? { ...typed, json_schema: schema } : typed;
}

/** How many settings differ from the server's. */
export function countChanged(settings) {
  const n = Object.values(settings.sampling ?? {}).filter((text) => text.trim() !== "").length;
  return n + ["system", "form", "reasoning", "overflow", "tools", "mcp", "probabilities"].filter((name) => settings[name]).length;
}
