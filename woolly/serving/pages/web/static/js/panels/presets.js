// Presets: named settings for any conversation, stored in this browser.

import { el, toast } from "../app/dom.js";
import { small } from "../app/store.js";

const MAX_NAME_LENGTH = 60; // of a name

const all = () => small.get("presets", {}) ?? {};

/** Serialize non-empty settings, so that equivalent settings are equal. */
function comparable(settings) {
  const filled = (value) => (typeof value === "object" ? Object.keys(value).length > 0 : value !== "");
  return JSON.stringify(Object.entries(settings).filter(([, value]) => filled(value)).sort());
}

/** Render the preset row. `settings()` returns the conversation's settings; `apply` replaces them. */
export function presetsRow(settings, apply) {
  const presets = all();
  const names = Object.keys(presets).sort((a, b) => a.localeCompare(b));
  const held = names.find((name) => comparable(presets[name]) === comparable(settings())) ?? "";
  const chooser = el("select", { id: "preset", "aria-label": "Preset" }, el("option", { value: "" }, names.length ? "None" : "None saved yet"), names.map((name) => el("option", { value: name, selected: name === held }, name)));
  const name = el("input", { type: "text", maxlength: MAX_NAME_LENGTH, placeholder: "Name of the preset", "aria-label": "Name of the preset", autocomplete: "off", value: held });
  const remove = el("button", { type: "button", class: "button small", disabled: !held }, "Delete");
  chooser.addEventListener("change", () => apply(structuredClone(presets[chooser.value] ?? {})));
  remove.addEventListener("click", () => {
    const { [held]: gone, ...rest } = all();
    small.set("presets", rest);
    apply(settings());
    toast(`Preset “${held}” deleted.`, { label: "Undo", run: () => (small.set("presets", { ...all(), [held]: gone }), apply(settings())) });
  });
  const save = (event) => {
    event.preventDefault();
    const given = name.value.trim();
    if (!given) return name.focus();
    small.set("presets", { ...all(), [given]: structuredClone(settings()) });
    apply(settings());
    toast(`Settings saved as “${given}”.`);
    return undefined;
  };
  return el(
    "form",
    { class: "field presets", on: { submit: save } },
    el("label", { for: "preset" }, "Preset"),
    el("div", { class: "row" }, chooser, remove),
    el("div", { class: "row" }, name, el("button", { type: "submit", class: "button small" }, "Save as preset")),
    el("small", {}, "System prompt and all settings, stored in this browser."),
  );
}
