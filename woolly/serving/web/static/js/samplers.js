// Samplers: every setting of an answer that the server takes, in the order of the panel.
//
// `kind` says how text is read: number, whole, flag, choice, lines, names, json. `of` names the setting without which
// this one means nothing, and the value at which that one is off; it is then neither asked for nor sent.

export const GROUPS = [
  {
    name: "Answer",
    open: true,
    fields: [
      { name: "max_tokens", label: "Longest answer", kind: "whole", min: 1, unit: "tokens", help: "After so many, the answer is cut off." },
      { name: "temperature", label: "Temperature", kind: "number", min: 0, step: 0.05, help: "0 takes the likeliest token each time; higher is more varied." },
      { name: "seed", label: "Seed", kind: "whole", min: -1, help: "The same seed gives the same answer; -1 or empty for any." },
      { name: "stop", label: "Stop at", kind: "lines", help: "Texts that end the answer, one per line." },
    ],
  },
  {
    name: "Narrowing",
    fields: [
      { name: "top_k", label: "Top k", kind: "whole", min: -1, help: "Draw from so many likeliest tokens; 0 for all." },
      { name: "top_p", label: "Top p", kind: "number", min: 0, max: 1, step: 0.01, help: "Draw from the likeliest tokens that add up to this share." },
      { name: "min_p", label: "Min p", kind: "number", min: 0, max: 1, step: 0.01, help: "Drop tokens less likely than this share of the likeliest." },
      { name: "typical_p", label: "Typical p", kind: "number", min: 0, max: 1, step: 0.01, help: "Keep tokens about as surprising as expected; 1 is off." },
      { name: "top_n_sigma", label: "Top n sigma", kind: "number", step: 0.1, help: "Keep tokens within so many deviations of the best; -1 is off." },
      { name: "xtc_probability", label: "XTC probability", kind: "number", min: 0, max: 1, step: 0.05, help: "How often the likeliest tokens are left out; 0 is off." },
      { name: "xtc_threshold", label: "XTC threshold", kind: "number", min: 0, max: 1, step: 0.01, of: [["xtc_probability", 0]], help: "Only tokens likelier than this are left out." },
      { name: "min_keep", label: "Keep at least", kind: "whole", min: 0, unit: "tokens", help: "Candidates that narrowing leaves in any case." },
      { name: "dynatemp_range", label: "Dynamic temperature", kind: "number", min: 0, step: 0.05, help: "The temperature follows the entropy, this much up and down; 0 is off." },
      { name: "dynatemp_exponent", label: "Dynamic exponent", kind: "number", min: 0, step: 0.1, of: [["dynatemp_range", 0]], help: "How it follows." },
    ],
  },
  {
    name: "Repetition",
    fields: [
      { name: "repeat_penalty", label: "Repeat penalty", kind: "number", min: 0.01, step: 0.01, help: "Lowers tokens that were used; 1 is off." },
      { name: "presence_penalty", label: "Presence penalty", kind: "number", step: 0.05, help: "Lowers tokens that were used at all; 0 is off." },
      { name: "frequency_penalty", label: "Frequency penalty", kind: "number", step: 0.05, help: "Lowers tokens by how often they were used; 0 is off." },
      { name: "repeat_last_n", label: "Look back", kind: "whole", min: -1, unit: "tokens", of: [["repeat_penalty", 1], ["presence_penalty", 0], ["frequency_penalty", 0]], help: "How far the penalties look back; -1 for all." },
      { name: "dry_multiplier", label: "DRY multiplier", kind: "number", min: 0, step: 0.05, help: "Lowers what would continue a repeated sequence; 0 is off." },
      { name: "dry_base", label: "DRY base", kind: "number", min: 1, step: 0.05, of: [["dry_multiplier", 0]], help: "How the penalty grows with the length of the sequence." },
      { name: "dry_allowed_length", label: "DRY allowed length", kind: "whole", min: 0, unit: "tokens", of: [["dry_multiplier", 0]], help: "Sequences up to this length may repeat." },
      { name: "dry_penalty_last_n", label: "DRY look back", kind: "whole", min: -1, unit: "tokens", of: [["dry_multiplier", 0]], help: "How far it looks back; -1 for all." },
      { name: "dry_sequence_breakers", label: "DRY breakers", kind: "lines", escaped: true, of: [["dry_multiplier", 0]], help: "Texts that end a sequence, one per line; \\n is a line break." },
    ],
  },
  {
    name: "Mirostat",
    fields: [
      { name: "mirostat", label: "Mirostat", kind: "choice", choices: [["", "Default"], ["0", "Off"], ["1", "Version 1"], ["2", "Version 2"]], help: "Aims at a steady surprise; stands in for narrowing and repetition." },
      { name: "mirostat_tau", label: "Tau", kind: "number", min: 0, step: 0.1, of: [["mirostat", 0]], help: "The surprise aimed at." },
      { name: "mirostat_eta", label: "Eta", kind: "number", min: 0, step: 0.01, of: [["mirostat", 0]], help: "How fast it corrects." },
    ],
  },
  {
    name: "More",
    fields: [
      { name: "min_tokens", label: "Shortest answer", kind: "whole", min: 0, unit: "tokens", help: "Before so many, the model may not end its answer." },
      { name: "ignore_eos", label: "Never end", kind: "flag", help: "The model may not end its answer at all." },
      { name: "context_shift", label: "Drop old tokens", kind: "flag", help: "When the context is full, instead of ending." },
      { name: "n_keep", label: "Tokens to keep", kind: "whole", min: -1, of: [["context_shift", false]], help: "First tokens of the prompt that are never dropped; -1 for all." },
      { name: "samplers", label: "Order of samplers", kind: "names", help: "Those that run, in order, separated by commas." },
      { name: "logit_bias", label: "Logit bias", kind: "json", help: "JSON such as {\"15043\": 2.5, \" the\": false}: what is added to a token; false for never." },
    ],
  },
];

const FIELDS = GROUPS.flatMap((group) => group.fields);
const BY_NAME = new Map(FIELDS.map((field) => [field.name, field]));

// With Mirostat, no other sampler runs but the temperature.
const WITHOUT_MIROSTAT = new Set(["min_keep", "samplers", "dynatemp_range", "dynatemp_exponent"]);
for (const field of GROUPS[1].fields.concat(GROUPS[2].fields)) WITHOUT_MIROSTAT.add(field.name);

/** What is wrong with a setting, as a sentence. */
export class SettingError extends Error {}

/** The value that text stands for; undefined where it is empty. */
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
    throw new SettingError(`${label} is no JSON: ${error.message}.`);
  }
  if (typeof value !== "object" || value === null) throw new SettingError(`${label} is no JSON object.`);
  return value;
}

/** Whether a setting has a meaning beside the others. */
export function isUseful(field, sampling, defaults) {
  const held = (name) => readSafely(BY_NAME.get(name), sampling[name] ?? "") ?? defaults[name] ?? (name === "context_shift" ? false : 0);
  if (WITHOUT_MIROSTAT.has(field.name) && held("mirostat") !== 0) return false;
  return !field.of || field.of.some(([master, off]) => held(master) !== off);
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

/** The fields of a request for a conversation's settings. SettingError where one cannot be read. */
export function toRequest(settings, defaults) {
  const sampling = settings.sampling ?? {};
  const request = {};
  for (const field of FIELDS) {
    const value = isUseful(field, sampling, defaults) ? readValue(field, sampling[field.name] ?? "") : undefined;
    if (value !== undefined) request[field.name] = value;
  }
  if (settings.reasoning) request.reasoning_effort = settings.reasoning;
  const pattern = (settings.pattern ?? "").trim();
  if (settings.form === "json_object") request.response_format = { type: "json_object" };
  else if (settings.form && !pattern) throw new SettingError("The form of the answer is chosen, but its box is empty; fill it, or choose “Any text”.");
  else if (settings.form === "json_schema") request.response_format = { type: "json_schema", json_schema: { name: "answer", schema: parseJson("The JSON schema", pattern) } };
  else if (settings.form) request[settings.form] = pattern;
  return request;
}

/** How many settings differ from the server's. */
export function countChanged(settings) {
  const n = Object.values(settings.sampling ?? {}).filter((text) => text.trim() !== "").length;
  return n + ["system", "form", "reasoning"].filter((name) => settings[name]).length;
}
