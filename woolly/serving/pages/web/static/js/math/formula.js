// TeX to MathML. A formula with an unknown command is not rendered, but shown as text.

import { mathml } from "../app/dom.js";
import { environments } from "./environments.js";
import { ACCENTS, FENCES, FUNCTIONS, LARGE, LETTERS, LIMITS, OPERATORS, SPACES, inAlphabet, isAlphabet } from "./symbols.js";

export const MAX_FORMULA_LENGTH = 5000; // characters
const DEEPEST = 40; // nesting of groups
const TOKEN = /\\(?:[A-Za-z]+|[^])|\d+(?:\.\d+)?|%[^\n]*\n?|\s+|[^]/uy;
const ENDS = new Set(["}", "&", "\\\\", "\\cr", "\\right", "\\middle", "\\end"]);

class Unknown extends Error {}

/** Return a formula as <math>, or null if it has an unknown command. */
export function renderFormula(source, isDisplay) {
  if (source.length > MAX_FORMULA_LENGTH || source.trim() === "") return null;
  try {
    const reader = new Reader(source);
    const nodes = reader.row();
    if (reader.next !== "") return null;
    return mathml("math", { display: isDisplay ? "block" : null, alttext: source.trim() }, ...nodes);
  } catch (error) {
    if (error instanceof Unknown) return null;
    throw error;
  }
}

const mo = (text, attributes = {}) => mathml("mo", attributes, text);
const mi = (text) => mathml("mi", [...text].length > 1 || /[Α-Ω∞∂∇]/.test(text) ? { mathvariant: "normal" } : {}, text);
const mrow = (nodes) => (nodes.length === 1 ? nodes[0] : mathml("mrow", {}, ...nodes));
const mspace = (em) => mathml("mspace", { width: `${em}em` });

class Reader {
  constructor(source) {
    this.source = source;
    this.depth = 0;
    this.alphabet = null;
    this.at = 0;
    this.advance();
  }

  /** Advance to the next token, skipping spaces and comments. */
  advance() {
    do {
      this.from = this.at;
      TOKEN.lastIndex = this.at;
      this.next = TOKEN.exec(this.source)?.[0] ?? "";
      this.at += this.next.length;
    } while (/^[\s%]/.test(this.next));
  }

  take() {
    const token = this.next;
    this.advance();
    return token;
  }

  expect(token) {
    if (this.take() !== token) throw new Unknown(token);
  }

  /** Return the nodes up to the end of a group, cell, row or formula. */
  row(end = null) {
    this.depth += 1;
    if (this.depth > DEEPEST) throw new Unknown("depth");
    const nodes = [];
    while (this.next !== "" && this.next !== end && !ENDS.has(this.next)) {
      if (this.next === "\\displaystyle" || this.next === "\\textstyle") {
        const isDisplay = this.take() === "\\displaystyle";
        nodes.push(mathml("mstyle", { displaystyle: String(isDisplay) }, ...this.row(end)));
        break;
      }
      nodes.push(...this.scripted());
    }
    this.depth -= 1;
    return nodes;
  }

  /** Return one node for {...} or a single token. */
  argument() {
    if (this.next === "{") {
      this.advance();
      const nodes = this.row();
      this.expect("}");
      return mathml("mrow", {}, ...nodes);
    }
    if (this.next === "" || ENDS.has(this.next) || this.next === "^" || this.next === "_") throw new Unknown(this.next);
    if (/^\d\d/.test(this.next)) {
      // An argument without braces is one digit: \frac12 is one half.
      this.at = this.from + 1;
      const digit = this.next[0];
      this.advance();
      return mathml("mn", {}, digit);
    }
    this.depth += 1;
    if (this.depth > DEEPEST) throw new Unknown("depth");
    const nodes = this.atom();
    this.depth -= 1;
    return mrow(nodes);
  }

  /** Return the raw characters of {...}. */
  raw() {
    if (this.next !== "{") throw new Unknown(this.next);
    let depth = 0;
    for (let i = this.from; i < this.source.length; i += 1) {
      if (this.source[i] === "\\") i += 1;
      else if (this.source[i] === "{") depth += 1;
      else if (this.source[i] === "}" && (depth -= 1) === 0) {
        const text = this.source.slice(this.from + 1, i);
        this.at = i + 1;
        this.advance();
        return text;
      }
    }
    throw new Unknown("{");
  }

  /** Return an atom with its subscript and superscript. */
  scripted() {
    let base = this.next === "^" || this.next === "_" ? [mathml("mrow")] : this.atom();
    let below = null;
    let above = null;
    let isLimits = base.isLimits ?? false;
    for (;;) {
      if (this.next === "\\limits" || this.next === "\\nolimits") isLimits = this.take() === "\\limits";
      else if (this.next === "_" && !below) below = this.script();
      else if (this.next === "^" && !above) above = this.script();
      else if (this.next === "'" && !above) above = this.primes();
      else break;
    }
    if (!below && !above) return base;
    const [last, ...after] = base.isFunction ? base : [base.at(-1)];
    const names = isLimits ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    const name = names[below && above ? 2 : below ? 0 : 1];
    const node = mathml(name, {}, last, ...[below, above].filter(Boolean));
    base = base.isFunction ? [] : base.slice(0, -1);
    return [...base, node, ...after];
  }

  script() {
    this.advance();
    return this.argument();
  }

  primes() {
    let n = 0;
    while (this.next === "'") {
      this.advance();
      n += 1;
    }
    const signs = mo("′".repeat(n));
    if (this.next !== "^") return signs;
    return mathml("mrow", {}, signs, this.script());
  }

  /** Return the nodes of a token, group or command. */
  atom() {
    const token = this.next;
    if (token === "{") return [this.argument()];
    this.advance();
    if (token[0] === "\\") return this.command(token.slice(1));
    if (/^\d/.test(token)) return [mathml("mn", {}, this.styled(token))];
    if (/^\p{L}$/u.test(token)) return [this.letter(token)];
    if (token === "~") return [mspace(0.333)];
    if (token === "|") return [mo(token, { stretchy: "false", lspace: "0", rspace: "0" })];
    if ("()[]/".includes(token)) return [mo(token, { stretchy: "false" })];
    if (token === "}" || token === "&" || token === "#" || token === "$") throw new Unknown(token);
    return [mo({ "-": "−", "*": "∗", ":": ":" }[token] ?? token)];
  }

  styled(text) {
    return this.alphabet ? [...text].map((one) => inAlphabet(this.alphabet, one)).join("") : text;
  }

  letter(character) {
    if (this.alphabet === "mathrm") return mathml("mi", { mathvariant: "normal" }, character);
    return mi(this.styled(character));
  }

  command(name) {
    if (LETTERS.has(name)) return [this.letter(LETTERS.get(name))];
    if (OPERATORS.has(name)) return [mo(OPERATORS.get(name), /arrow|to$/.test(name) ? { stretchy: "false" } : {})];
    if (LARGE.has(name)) {
      const [sign, isLimits] = LARGE.get(name);
      return Object.assign([mo(sign, { largeop: "true", movablelimits: isLimits ? "true" : null })], { isLimits });
    }
    if (FUNCTIONS.has(name)) return named(name, false);
    if (LIMITS.has(name)) return named(LIMITS.get(name), true);
    if (SPACES.has(name)) return [mspace(SPACES.get(name))];
    if (/^\s$/.test(name)) return [mspace(0.333)];
    if (ACCENTS.has(name)) return this.accent(...ACCENTS.get(name));
    if (FENCES.has(`\\${name}`)) return [mo(FENCES.get(`\\${name}`), { stretchy: "false" })];
    if (isAlphabet(name)) return [this.inAlphabet(name)];
    const size = /^(big|Big|bigg|Bigg)[lrm]?$/.exec(name);
    if (size) return [this.big({ big: 1.2, Big: 1.8, bigg: 2.4, Bigg: 3 }[size[1]])];
    if (Object.hasOwn(COMMANDS, name)) return [COMMANDS[name](this, name)].flat();
    throw new Unknown(name);
  }

  inAlphabet(name) {
    const before = this.alphabet;
    this.alphabet = name;
    const word = /^\{([A-Za-z]{2,})\}/.exec(this.source.slice(this.from, this.from + 60));
    // A word in an upright alphabet is one identifier, not a product of letters.
    const node = word && (name === "mathrm" || name === "mathbf" || name === "mathsf" || name === "mathtt" || name === "mathit") ? mi(this.styled(this.raw())) : this.argument();
    this.alphabet = before;
    return node;
  }

  accent(sign, isStretchy, place) {
    const body = this.argument();
    const node = mathml(place === "over" ? "mover" : "munder", { accent: place === "over" ? "true" : null, accentunder: place === "under" ? "true" : null }, body, mo(sign, { stretchy: String(isStretchy) }));
    return Object.assign([node], { isLimits: "⏞⏟".includes(sign) });
  }

  fence() {
    const sign = FENCES.get(this.take());
    if (sign === undefined) throw new Unknown("fence");
    return sign;
  }

  big(size) {
    return mo(this.fence(), { stretchy: "true", symmetric: "true", minsize: `${size}em`, maxsize: `${size}em` });
  }
}

function named(text, isLimits) {
  const name = isLimits ? mo(text, { movablelimits: "true", lspace: "0", rspace: "0" }) : mathml("mi", {}, text);
  return Object.assign([name, mo("\u2061")], { isLimits, isFunction: true });
}

const fraction = (attributes = {}, style = null) => (reader) => {
  const node = mathml("mfrac", attributes, reader.argument(), reader.argument());
  return style === null ? node : mathml("mstyle", { displaystyle: style, scriptlevel: "0" }, node);
};

const binomial = (style = null) => (reader) => mathml("mrow", {}, mo("("), fraction({ linethickness: "0" }, style)(reader), mo(")"));

const text = (reader) => {
  const words = reader.raw();
  if (/[$\\{}]/.test(words.replace(/\\[ %&#_$]/g, ""))) throw new Unknown("text");
  return mathml("mtext", {}, words.replace(/\\([ %&#_$])/g, "$1").replace(/^ | $/g, "\u00a0"));
};

const stacked = (name) => (reader) => {
  const first = reader.argument();
  return mathml(name, {}, reader.argument(), first);
};

const wrapped = (attributes, tag = "mrow") => (reader) => mathml(tag, attributes, reader.argument());

const arrow = (sign) => (reader) => {
  let below = null;
  if (reader.next === "[") below = mathml("mrow", {}, ...optional(reader));
  const over = mathml("mpadded", { width: "+1em", lspace: "0.5em" }, reader.argument());
  return below ? mathml("munderover", {}, mo(sign, { stretchy: "true" }), below, over) : mathml("mover", {}, mo(sign, { stretchy: "true" }), over);
};

function optional(reader) {
  reader.expect("[");
  const nodes = reader.row("]");
  reader.expect("]");
  return nodes;
}

const COMMANDS = {
  frac: fraction(),
  dfrac: fraction({}, "true"),
  tfrac: fraction({}, "false"),
  cfrac: fraction({}, "true"),
  binom: binomial(),
  dbinom: binomial("true"),
  tbinom: binomial("false"),
  text,
  textrm: text,
  textbf: wrappedText("bold"),
  textit: wrappedText("slanted"),
  texttt: text,
  mbox: text,
  operatorname: (reader) => {
    const isLimits = reader.next === "*";
    if (isLimits) reader.advance();
    const name = reader.raw();
    if (/[^A-Za-z ]/.test(name)) throw new Unknown("operatorname");
    return mathml("mrow", {}, mathml("mi", { mathvariant: "normal" }, name), mo("\u2061"));
  },
  sqrt: (reader) => {
    if (reader.next !== "[") return mathml("msqrt", {}, reader.argument());
    const index = mathml("mrow", {}, ...optional(reader));
    return mathml("mroot", {}, reader.argument(), index);
  },
  overset: stacked("mover"),
  stackrel: stacked("mover"),
  underset: stacked("munder"),
  phantom: wrapped({}, "mphantom"),
  boxed: wrapped({ class: "boxed" }),
  overline: wrapped({ class: "overline" }),
  underline: wrapped({ class: "underline" }),
  xrightarrow: arrow("→"),
  xleftarrow: arrow("←"),
  pmod: (reader) => [mspace(0.6), mo("(", { stretchy: "false" }), mathml("mi", {}, "mod"), mspace(0.333), reader.argument(), mo(")", { stretchy: "false" })],
  bmod: () => mo("mod", { lspace: "0.22em", rspace: "0.22em" }),
  mod: (reader) => [mspace(0.6), mathml("mi", {}, "mod"), mspace(0.333), reader.argument()],
  not: (reader) => {
    const [node] = reader.atom();
    if (node?.localName !== "mo") throw new Unknown("not");
    return mo(`${node.textContent}\u0338`.normalize("NFC"));
  },
  tag: (reader) => [mspace(2), mathml("mtext", {}, `(${reader.raw()})`)],
  left: (reader) => {
    const nodes = [mo(reader.fence(), { fence: "true", stretchy: "true" }), ...reader.row()];
    while (reader.next === "\\middle") {
      reader.advance();
      nodes.push(mo(reader.fence(), { stretchy: "true" }), ...reader.row());
    }
    reader.expect("\\right");
    nodes.push(mo(reader.fence(), { fence: "true", stretchy: "true" }));
    return mathml("mrow", {}, ...nodes.filter((node) => node.localName !== "mo" || node.textContent !== ""));
  },
  begin: (reader) => {
    const name = reader.raw();
    const build = environments[name.replace(/\*$/, "")];
    if (!build) throw new Unknown(name);
    const columns = name === "array" ? reader.raw() : "";
    const rows = tableRows(reader);
    reader.expect("\\end");
    if (reader.raw() !== name) throw new Unknown(name);
    return build(rows, columns);
  },
  substack: (reader) => {
    reader.expect("{");
    const rows = tableRows(reader);
    reader.expect("}");
    return environments.gathered(rows, "");
  },
};

function wrappedText(look) {
  return (reader) => mathml("mrow", { class: look }, text(reader));
}

/** Return the rows of cells of a table, up to its end. */
function tableRows(reader) {
  const rows = [[]];
  for (;;) {
    rows.at(-1).push(reader.row());
    if (reader.next === "&") reader.advance();
    else if (reader.next === "\\\\" || reader.next === "\\cr") {
      reader.advance();
      if (reader.next === "[") optional(reader);
      rows.push([]);
    } else break;
  }
  if (rows.at(-1).length === 1 && !rows.at(-1)[0].length) rows.pop();
  return rows;
}
