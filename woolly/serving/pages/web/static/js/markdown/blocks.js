// Markdown blocks: headings, lists, tables, code, formulas and paragraphs. HTML is shown as text.

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(?=\S)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+(?=\S)|[ \t]*$)/;
const FORMULA = /^ {0,3}(\$\$|\\\[)/;
const NOTE = /^ {0,3}\[\^([^\]\s]{1,30})\]:[ \t]+(?=\S)/;
const DELIMITERS = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

const isBlank = (line) => line.trim() === "";
const indentOf = (line) => line.length - line.trimStart().length;

/**
 * Return the blocks of lines. Each has `kind` and `line`, its first line. Code: `text`, `language`, `closed`. Heading:
 * `level`, `text`. Quote: `lines`. List: `ordered`, `start`, `parts` of {lines, source}. Table: `head`, `aligned`,
 * `parts` of {cells, source}. Formula: `text` with delimiters, `source` without. Footnote: `label`, `text`.
 * Paragraph: `text`.
 */
export function parseBlocks(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const read = readers.find((one) => one.begins(lines, at)) ?? paragraph;
    const [block, next] = read.read(lines, at);
    blocks.push({ ...block, line: at });
    at = next;
  }
  return blocks;
}

const code = {
  begins: (lines, at) => FENCE.test(lines[at]),
  read(lines, at) {
    const [, indent, fence, info] = FENCE.exec(lines[at]);
    const taken = [];
    let next = at + 1;
    for (; next < lines.length; next += 1) {
      const line = lines[next].trim();
      if (line.startsWith(fence) && line === fence[0].repeat(line.length)) {
        return [{ kind: "code", language: languageOf(info), text: taken.join("\n"), closed: true }, next + 1];
      }
      taken.push(lines[next].slice(Math.min(indent.length, indentOf(lines[next]))));
    }
    return [{ kind: "code", language: languageOf(info), text: taken.join("\n"), closed: false }, next];
  },
};

const languageOf = (info) => info.trim().split(/[\s,{:]/, 1)[0].toLowerCase().slice(0, 30);

const heading = {
  begins: (lines, at) => HEADING.test(lines[at]),
  read(lines, at) {
    const [whole, marks] = HEADING.exec(lines[at]);
    const text = lines[at].slice(whole.length).trimEnd().replace(/ #{1,6}$/, "");
    return [{ kind: "heading", level: marks.length, text }, at + 1];
  },
};

const footnote = {
  begins: (lines, at) => NOTE.test(lines[at]),
  read(lines, at) {
    const [whole, label] = NOTE.exec(lines[at]);
    let next = at + 1;
    while (next < lines.length && !isBlank(lines[next]) && !interrupts(lines, next)) next += 1;
    return [{ kind: "footnote", label, text: [lines[at].slice(whole.length), ...lines.slice(at + 1, next)].map((line) => line.trim()).join("\n") }, next];
  },
};

const rule = {
  begins: (lines, at) => RULE.test(lines[at]),
  read: (lines, at) => [{ kind: "rule" }, at + 1],
};

const quote = {
  begins: (lines, at) => QUOTE.test(lines[at]),
  read(lines, at) {
    let next = at;
    while (next < lines.length && QUOTE.test(lines[next])) next += 1;
    return [{ kind: "quote", lines: lines.slice(at, next).map((line) => line.replace(QUOTE, "")) }, next];
  },
};

const list = {
  begins: (lines, at) => ITEM.test(lines[at]),
  read(lines, at) {
    const [, indent, first] = ITEM.exec(lines[at]);
    const kind = first.at(-1);
    const parts = [];
    let next = at;
    while (next < lines.length) {
      const found = ITEM.exec(lines[next]);
      if (!found || found[2].at(-1) !== kind || Math.abs(found[1].length - indent.length) > 1 || RULE.test(lines[next])) break;
      const end = endOfItem(lines, next, found[1].length);
      parts.push(readItem(lines.slice(next, end), found[0].length));
      next = end;
    }
    return [{ kind: "list", ordered: /\d/.test(first), start: Number.parseInt(first, 10) || 0, parts }, next];
  },
};

/** Return the end of a list item, whose lines are indented more than its marker or continue its paragraph. */
function endOfItem(lines, at, indent) {
  let next = at + 1;
  while (next < lines.length) {
    if (isBlank(lines[next])) {
      let after = next + 1;
      while (after < lines.length && isBlank(lines[after])) after += 1;
      // Blank lines between two items belong to neither.
      if (after === lines.length || (indentOf(lines[after]) < indent + 2 && !ITEM.test(lines[after]))) break;
      next = after;
      if (indentOf(lines[next]) < indent + 2) break;
      continue;
    }
    const isDeeper = indentOf(lines[next]) >= indent + 2;
    if (!isDeeper && (ITEM.test(lines[next]) || interrupts(lines, next))) break;
    next += 1;
  }
  return next;
}

function readItem(lines, width) {
  const inner = [lines[0].slice(width), ...lines.slice(1).map((line) => line.slice(Math.min(indentOf(line), width)))];
  return { lines: inner, source: lines.join("\n").trimEnd() };
}

const table = {
  begins(lines, at) {
    if (!lines[at].includes("|") || !DELIMITERS.test(lines[at + 1] ?? "")) return false;
    return cellsOf(lines[at]).length === cellsOf(lines[at + 1]).length;
  },
  read(lines, at) {
    const head = cellsOf(lines[at]);
    const aligned = cellsOf(lines[at + 1]).map((cell) => `${cell.startsWith(":") ? "l" : ""}${cell.endsWith(":") ? "r" : ""}`);
    const parts = [];
    let next = at + 2;
    for (; next < lines.length && !isBlank(lines[next]) && lines[next].includes("|"); next += 1) {
      const cells = cellsOf(lines[next]);
      parts.push({ cells: head.map((_, i) => cells[i] ?? ""), source: lines[next] });
    }
    return [{ kind: "table", head, aligned, parts }, next];
  },
};

function cellsOf(line) {
  const cells = [""];
  let inCode = false;
  const text = line.trim();
  for (let i = text[0] === "|" ? 1 : 0; i < text.length; i += 1) {
    if (text[i] === "`") inCode = !inCode && text.indexOf("`", i + 1) >= 0;
    if (text[i] === "\\" && text[i + 1] === "|") {
      cells[cells.length - 1] += "|";
      i += 1;
    } else if (text[i] === "|" && !inCode) cells.push("");
    else cells[cells.length - 1] += text[i];
  }
  if (cells.length > 1 && cells.at(-1).trim() === "") cells.pop();
  return cells.map((cell) => cell.trim());
}

const textOf = (lines, at, next) => lines.slice(at, next).map((line) => line.trim()).join("\n");

const formula = {
  begins: (lines, at) => FORMULA.test(lines[at]),
  /** Return the lines of a formula, in which lines that look like list items are not list items. */
  read(lines, at) {
    const closer = FORMULA.exec(lines[at])[1] === "$$" ? "$$" : "\\]";
    let next = at;
    for (; next < lines.length && !isBlank(lines[next]); next += 1) {
      const end = lines[next].indexOf(closer, next === at ? FORMULA.exec(lines[at])[0].length : 0);
      if (end < 0) continue;
      const text = textOf(lines, at, next + 1);
      // Text after the formula on the same line makes it a paragraph.
      if (lines[next].slice(end + 2).trim() !== "") return [{ kind: "paragraph", text }, next + 1];
      return [{ kind: "formula", text, source: text.slice(2, -2) }, next + 1];
    }
    return [{ kind: "paragraph", text: textOf(lines, at, next) }, next];
  },
};

const paragraph = {
  read(lines, at) {
    let next = at + 1;
    let isOpen = hasOpenFormula(lines[at]);
    for (; next < lines.length && !isBlank(lines[next]) && !interrupts(lines, next, isOpen); next += 1) isOpen = hasOpenFormula(lines[next]) !== isOpen;
    return [{ kind: "paragraph", text: textOf(lines, at, next) }, next];
  },
};

/** Return true if a line opens (or closes) a multi-line formula. */
const hasOpenFormula = (line) => line.split("$$").length % 2 === 0;

const readers = [code, heading, rule, quote, list, table, formula, footnote];

/** Return true if a line begins a block instead of continuing a paragraph; `inFormula`: the paragraph has an open formula. */
function interrupts(lines, at, inFormula = false) {
  if (ITEM.test(lines[at])) return !isBlank(lines[at].replace(ITEM, "")) || RULE.test(lines[at]);
  if (formula.begins(lines, at)) return !inFormula;
  return [code, heading, rule, quote, table, footnote].some((one) => one.begins(lines, at));
}
