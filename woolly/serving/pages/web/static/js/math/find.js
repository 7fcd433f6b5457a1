// Finds formulas in text. Prices are not formulas: $...$ must not have spaces next to the delimiters.

import { el } from "../app/dom.js";
import { MAX_FORMULA_LENGTH, renderFormula } from "./formula.js";

const WIDE = 60; // characters of TeX from which an inline formula may need to scroll

// Plain words, which formulas have only in \text{...}.
const PROSE = /(?<![\\A-Za-z])[A-Za-z]{2,}/;
const TEX = /[\\^_{}=]/;

const CLOSERS = { $$: "$$", "\\[": "\\]", "\\(": "\\)", $: "$" };

/**
 * Return {node, to} of the formula that begins at `from`, or null. A formula that cannot be rendered stays
 * unchanged. `unclosed` collects closing delimiters that were not found.
 */
export function readFormula(text, from, unclosed) {
  const opener = text.startsWith("$$", from) || text[from] === "\\" ? text.slice(from, from + 2) : "$";
  const closer = CLOSERS[opener];
  const start = from + opener.length;
  if (opener === "$" && (/[\p{L}\p{N}$]/u.test(text[from - 1] ?? "") || /\s/.test(text[start] ?? " "))) return null;
  const end = unclosed.has(closer) ? -1 : find(text, closer, start);
  if (end < 0) {
    unclosed.add(closer);
    return null;
  }
  const source = text.slice(start, end);
  const to = end + closer.length;
  if (opener === "$" ? !isClosed(source, text[to] ?? "") : source.length > MAX_FORMULA_LENGTH) return null;
  return { node: formulaNode(source, text.slice(from, to), opener === "$$" || opener === "\\["), to };
}

/** Return the node of a formula, or its text if it cannot be rendered. */
export function formulaNode(source, whole, isDisplay) {
  const math = renderFormula(source, isDisplay);
  if (!math) return el("span", { class: "plain" }, whole);
  if (isDisplay) return el("span", { class: "formula", tabindex: "0", role: "group", "aria-label": "Formula" }, math);
  return source.length > WIDE ? el("span", { class: "formula wide" }, math) : math;
}

function isClosed(source, after) {
  if (/\s$/.test(source) || /[\p{L}\p{N}]/u.test(after)) return false;
  return !(/^\d/.test(source) && PROSE.test(source) && !TEX.test(source));
}

function find(text, closer, from) {
  for (let i = text.indexOf(closer, from); i >= 0; i = text.indexOf(closer, i + 1)) {
    let slashes = 0;
    while (text[i - 1 - slashes] === "\\") slashes += 1;
    if (slashes % 2 === 0) return i;
  }
  return -1;
}
