// Parses and validates sampling settings, which the server describes in GET /props (woolly/sampling/option.py).
//
// `kind` is the type: number, whole, flag, choice, lines, names or json. `needs` lists settings without which this
// setting has no effect and is not sent. `mirostat` is false for settings that Mirostat replaces.

import { state } from "../app/state.js";

/** Return the settings by panel group, in the server's order. */
export function groups() {
  const found = new Map();
  for (const field of state.options) found.set(field.group, [...(found.get(field.group) ?? []), field]);
  return [...found].map(([name, fields], i) => ({ name, fields, open: i === 0 }));
}

const byName = (name) => state.options.find((field) => field.name === name);

/** Error of a setting; `setting` is its name, if known. */
export class SettingError extends Error {
  constructor(message, setting = null) {
    super(message);
    this.setting = setting;
  }
}

/** Parse the text of a field; undefined if it is empty. */
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
  if (!Number.isFinite(value)) throw new SettingError(`${field.label} is “${trimmed}”; expected a number.`);
  if (field.kind === "whole" && !Number.isInteger(value)) throw new SettingError(`${field.label} is ${trimmed}; expected an integer.`);
  if (field.min !== undefined && value < field.min) throw new SettingError(`${field.label} is ${trimmed}; expected at least ${field.min}.`);
  if (field.max !== undefined && value > field.max) throw new SettingError(`${field.label} is ${trimmed}; expected at most ${field.max}.`);
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

/** Return true if a setting has an effect together with the others. */
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

/** Call `read`, and add the name of the setting to a SettingError. */
function named(setting, read) {
  try {
    return read();
  } catch (error) {
    if (error instanceof SettingError) error.setting = setting;
    throw error;
  }
}

/** Return the request fields for a conversation's settings. SettingError for an invalid setting. */
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
  else if (settings.form && !pattern) throw new SettingError("The schema or pattern of the structured output is empty; fill it in, or choose “Any text”.", "pattern");
  else if (settings.form === "json_schema") request.response_format = { type: "json_schema", json_schema: { name: "answer", schema: named("pattern", () => parseJson("The JSON schema", pattern)) } };
  else if (settings.form) request[settings.form] = pattern;
  return request;
}

/** Return typed settings by the server's names, without invalid ones. */
export function typedSettings(settings) {
  const sampling = settings.sampling ?? {};
  const rows = state.options.map((field) => [field.name, readSafely(field, sampling[field.name] ?? "")]);
  const typed = Object.fromEntries(rows.filter(([name, value]) => value !== undefined && !(["seed", "max_tokens"].includes(name) && value < 0)));
  const pattern = (settings.pattern ?? "").trim();
  if (pattern && ["grammar", "regex"].includes(settings.form)) typed[settings.form] = pattern;
  const schema = settings.form === "json_schema" ? readSafely({ kind: "json", label: "" }, pattern) : undefined;
  return schema ? { ...typed, json_schema: schema } : typed;
}

/** Return the number of settings that differ from the server's defaults. */
export function countChanged(settings) {
  const n = Object.values(settings.sampling ?? {}).filter((text) => text.trim() !== "").length;
  return n + ["system", "form", "reasoning", "overflow", "tools", "mcp", "probabilities"].filter((name) => settings[name]).length;
}
