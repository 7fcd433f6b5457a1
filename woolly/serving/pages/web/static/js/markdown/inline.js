// Inline Markdown: emphasis, code, formulas, links and line breaks.

import { el } from "../app/dom.js";
import { readFormula } from "../math/find.js";

const SPECIAL = /[\\`*_~[!\n<$]|https?:\/\//g;
const ESCAPED = /[!-/:-@[-`{-~]/;
const ADDRESS = /https?:\/\/[^\s<>"'`\\]{1,2000}/y;
const ANGLED = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const REFERENCE = /\[\^([^\]\s]{1,30})\](?!:)/y;
const SAFE = new Set(["http:", "https:", "mailto:"]);

const MAX_LABEL_LENGTH = 2000; // characters between [ and ]
const MAX_DEPTH = 32; // of nested emphasis, and of the search for an opening delimiter
const MAX_DELIMITERS = 6; // per run; longer runs are text, because each pair adds a nesting level

/** Return the nodes of a text. All characters become text nodes; a link with an unsafe scheme stays unchanged. */
export function renderInline(text, inLink = false) {
  return resolve(scan(text, inLink));
}

function scan(text, inLink) {
  const tokens = [];
  const unclosed = new Set(); // backtick runs (by length) and formula delimiters without an end
  let plain = 0;
  let at = 0;
  const push = (node, from, to) => {
    if (from > plain) tokens.push(text.slice(plain, from));
    if (node !== null) tokens.push(node);
    plain = at = to;
  };
  for (;;) {
    SPECIAL.lastIndex = at;
    const found = SPECIAL.exec(text);
    if (!found) break;
    const i = found.index;
    const sign = text[i];
    if (sign === "$" || (sign === "\\" && "()[]".includes(text[i + 1] || " "))) {
      const formula = sign === "\\" && ")]".includes(text[i + 1]) ? null : readFormula(text, i, unclosed);
      if (formula) push(formula.node, i, formula.to);
      else at = i + (sign === "$" ? 1 : 2); // keep the backslash, because a formula was meant
    } else if (sign === "\\" && ESCAPED.test(text[i + 1] ?? "")) push(text[i + 1], i, i + 2);
    else if (sign === "\n") push(el("br"), i, i + 1);
    else if (sign === "`") readCode(text, i, unclosed, push, (to) => (at = to));
    else if (sign === "*" || sign === "_" || sign === "~") {
      let to = i + 1;
      while (text[to] === sign) to += 1;
      push(delimiter(text, i, to), i, to);
    } else {
      const link = inLink ? null : readLink(text, i);
      if (link) push(link.node, i, link.to);
      else at = i + found[0].length;
    }
  }
  push(null, text.length, text.length);
  return tokens;
}

function readCode(text, from, unclosed, push, skip) {
  let to = from;
  while (text[to] === "`") to += 1;
  const length = to - from;
  const end = unclosed.has(length) ? -1 : endOfCode(text, to, length);
  if (end < 0) {
    unclosed.add(length);
    skip(to);
    return;
  }
  const inner = text.slice(to, end).replace(/\n/g, " ");
  const isPadded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() !== "";
  push(el("code", {}, isPadded ? inner.slice(1, -1) : inner), from, end + length);
}

function endOfCode(text, from, length) {
  for (let i = text.indexOf("`", from); i >= 0; ) {
    let to = i;
    while (text[to] === "`") to += 1;
    if (to - i === length) return i;
    i = text.indexOf("`", to);
  }
  return -1;
}

function readLink(text, i) {
  if (text[i] === "h") {
    if (/[\w:]/.test(text[i - 1] ?? "")) return null; // inside a word or a URL with another scheme
    ADDRESS.lastIndex = i;
    const address = trimAddress(ADDRESS.exec(text)?.[0] ?? "");
    return linkTo(address, [address], i + address.length);
  }
  if (text[i] === "<") {
    ANGLED.lastIndex = i;
    const found = ANGLED.exec(text);
    return found && linkTo(found[1], [found[1]], i + found[0].length);
  }
  REFERENCE.lastIndex = i;
  const reference = REFERENCE.exec(text);
  if (reference) return { node: el("sup", { class: "reference" }, reference[1]), to: i + reference[0].length };
  const open = text[i] === "!" ? i + 1 : i;
  if (text[open] !== "[") return null;
  const close = endOfLabel(text, open);
  if (close < 0 || text[close + 1] !== "(") return null;
  const end = endOfTarget(text, close + 2);
  if (end < 0) return null;
  const target = text.slice(close + 2, end).trim().split(/\s/, 1)[0].replace(/^<|>$/g, "");
  // Remote images are not loaded: the description becomes a link.
  const label = text.slice(open + 1, close) || target;
  return linkTo(target, renderInline(label, true), end + 1);
}

function endOfLabel(text, open) {
  let depth = 0;
  for (let i = open; i < text.length && i < open + MAX_LABEL_LENGTH; i += 1) {
    if (text[i] === "\\") i += 1;
    else if (text[i] === "[") depth += 1;
    else if (text[i] === "]" && (depth -= 1) === 0) return i;
  }
  return -1;
}

function endOfTarget(text, from) {
  let depth = 0;
  for (let i = from; i < text.length && i < from + MAX_LABEL_LENGTH && text[i] !== "\n"; i += 1) {
    if (text[i] === "(") depth += 1;
    else if (text[i] === ")" && (depth -= 1) < 0) return i;
  }
  return -1;
}

/** Remove trailing punctuation that belongs to the sentence. */
function trimAddress(address) {
  let end = address.length;
  for (;;) {
    const last = address[end - 1];
    const isOpened = last === ")" && address.slice(0, end).split("(").length >= address.slice(0, end).split(")").length;
    if (end > 0 && ".,;:!?)]}*_~".includes(last) && !isOpened) end -= 1;
    else return address.slice(0, end);
  }
}

function linkTo(target, label, to) {
  const address = safeAddress(target);
  if (address === null) return null;
  return { node: el("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow", title: address }, ...label), to };
}

/** Return an absolute URL with a safe scheme, or null. */
export function safeAddress(target) {
  try {
    const url = new URL(target);
    return SAFE.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

const isSpace = (character) => character === undefined || /\s/u.test(character);
const isSign = (character) => character !== undefined && /[\p{P}\p{S}]/u.test(character);

/** Read a delimiter run of *, _ or ~ with its flanking, as in CommonMark. */
function delimiter(text, from, to) {
  const before = text[from - 1];
  const after = text[to];
  const opens = !isSpace(after) && (!isSign(after) || isSpace(before) || isSign(before));
  const closes = !isSpace(before) && (!isSign(before) || isSpace(after) || isSign(after));
  const sign = text[from];
  const n = to - from;
  if (n > MAX_DELIMITERS || (sign === "~" && n !== 2)) return text.slice(from, to);
  if (sign !== "_") return { sign, n, opens, closes };
  return { sign, n, opens: opens && (!closes || isSign(before)), closes: closes && (!opens || isSign(after)) };
}

const isDelimiter = (token) => typeof token === "object" && !(token instanceof Node);
const plainly = (token) => (isDelimiter(token) ? token.sign.repeat(token.n) : token);

/** Return the nodes of tokens, matching each closing run with the nearest opening run. */
function resolve(tokens) {
  const out = [];
  let open = []; // indices in `out`
  for (const token of tokens) {
    if (!isDelimiter(token)) {
      out.push(token);
      continue;
    }
    while (token.closes && token.n > 0) {
      const place = open.findLastIndex((i) => out[i].sign === token.sign);
      if (place < 0) break;
      const opener = out[open[place]];
      const n = Math.min(2, opener.n, token.n);
      const inner = out.splice(open[place] + 1).map(plainly);
      opener.n -= n;
      token.n -= n;
      open = open.slice(0, opener.n ? place + 1 : place);
      if (!opener.n) out.pop();
      out.push(el(n === 1 ? "em" : token.sign === "~" ? "del" : "strong", {}, ...inner));
    }
    if (token.n > 0) {
      if (token.opens) open = [...open, out.length].slice(-MAX_DEPTH);
      out.push(token.opens ? token : plainly(token));
    }
  }
  return out.map(plainly);
}
