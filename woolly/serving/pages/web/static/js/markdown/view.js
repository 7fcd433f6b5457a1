// MarkdownView: renders growing text. Blocks that further text cannot change are not updated, so that the work
// per chunk depends on the last block, not on the length of the answer.

import { el } from "../app/dom.js";
import { formulaNode } from "../math/find.js";
import { parseBlocks } from "./blocks.js";
import { CodeView } from "./code.js";
import { renderInline } from "./inline.js";

const DEEPEST = 10; // nesting of quotes and lists; deeper ones are shown as text

export class MarkdownView {
  constructor(host) {
    this.host = host;
    this.tail = ""; // source of the blocks that may still change
    this.views = []; // views of these blocks
  }

  /** Append text; `render` shows it. */
  push(text) {
    this.tail += text;
  }

  /** Render all pushed text. */
  render() {
    const lines = this.tail.split("\n");
    const blocks = parseBlocks(lines);
    blocks.forEach((block, i) => {
      const held = this.views[i];
      if (held && update(held, block)) return;
      const view = viewOf(block, 0);
      if (held) held.node.replaceWith(view.node);
      else this.host.append(view.node);
      this.views[i] = view;
    });
    for (const view of this.views.splice(blocks.length)) view.node.remove();
    this.settle(lines, blocks);
  }

  /** Drop the source of blocks that are followed by another block with a complete first line. */
  settle(lines, blocks) {
    const isSure = blocks.length && blocks.at(-1).line < lines.length - 1;
    const n = blocks.length - (isSure ? 1 : 2);
    if (n <= 0) return;
    this.tail = lines.slice(blocks[n].line).join("\n");
    this.views.splice(0, n);
  }
}

/** Render a complete text in `host`. */
export function renderMarkdown(host, text) {
  const view = new MarkdownView(host);
  view.push(text);
  view.render();
}

/** Update a view if it shows the beginning of the same block; return false otherwise. */
function update(view, block) {
  if (view.block.kind !== block.kind) return false;
  if (block.kind === "code") {
    if (view.code.name !== block.language || !block.text.startsWith(view.code.text)) return false;
    view.code.grow(block.text);
  } else if (block.kind === "list" || block.kind === "table") {
    const isSame = block.kind === "list" ? block.ordered === view.block.ordered && block.start === view.block.start : same(block, view.block);
    if (!isSame) return false;
    updateParts(view, block);
  } else if (block.kind === "quote") {
    return same(block.lines, view.block.lines);
  } else if (block.text !== view.block.text || block.level !== view.block.level || block.label !== view.block.label) return false;
  view.block = block;
  return true;
}

const same = (a, b) => JSON.stringify(a.head ? [a.head, a.aligned] : a) === JSON.stringify(b.head ? [b.head, b.aligned] : b);

/** Update items and rows, keeping nodes with an unchanged source. */
function updateParts(view, block) {
  block.parts.forEach((part, i) => {
    if (view.block.parts[i]?.source === part.source) return;
    const node = view.part(part);
    if (view.parts.children[i]) view.parts.children[i].replaceWith(node);
    else view.parts.append(node);
  });
  while (view.parts.children.length > block.parts.length) view.parts.lastElementChild.remove();
}

function viewOf(block, depth) {
  if (block.kind === "code") {
    const code = new CodeView(block.language);
    code.grow(block.text);
    return { block, node: code.node, code };
  }
  if (block.kind === "list") return listView(block, depth);
  if (block.kind === "table") return tableView(block);
  return { block, node: nodeOf(block, depth) };
}

function nodeOf(block, depth) {
  if (block.kind === "heading") return el(`h${Math.min(6, block.level + 2)}`, { class: `level-${block.level}` }, ...renderInline(block.text));
  if (block.kind === "formula") return el("p", {}, formulaNode(block.source, block.text, true));
  if (block.kind === "rule") return el("hr");
  if (block.kind === "footnote") return el("p", { class: "footnote" }, el("sup", { class: "reference" }, block.label), el("span", {}, ...renderInline(block.text)));
  if (block.kind === "quote") return el("blockquote", {}, ...inner(block.lines, depth));
  return el("p", {}, ...renderInline(block.text));
}

function inner(lines, depth) {
  if (depth >= DEEPEST) return [el("p", {}, lines.join("\n"))];
  return parseBlocks(lines).map((block) => viewOf(block, depth + 1).node);
}

function listView(block, depth) {
  const node = el(block.ordered ? "ol" : "ul", block.ordered && block.start !== 1 ? { start: block.start } : {});
  const part = (item) => itemNode(item, depth);
  node.append(...block.parts.map(part));
  return { block, node, parts: node, part };
}

const TASK = /^\[([ xX])\][ \t]+/;

function itemNode(item, depth) {
  const task = TASK.exec(item.lines[0]);
  const lines = task ? [item.lines[0].slice(task[0].length), ...item.lines.slice(1)] : item.lines;
  const nodes = inner(lines, depth);
  const first = nodes[0];
  // A tight item has text without a paragraph.
  if (first?.tagName === "P" && (nodes.length === 1 || /^[OU]L$/.test(nodes[1].tagName))) nodes.splice(0, 1, ...first.childNodes);
  if (!task) return el("li", {}, ...nodes);
  const isDone = task[1] !== " ";
  return el("li", { class: "task" }, el("span", { role: "img", "aria-label": isDone ? "done" : "not done" }, isDone ? "☑" : "☐"), " ", ...nodes);
}

function tableView(block) {
  const cell = (tag, text, i) => el(tag, { class: ["", "to-left", "to-right", "to-centre"][["", "l", "r", "lr"].indexOf(block.aligned[i])] || null, scope: tag === "th" ? "col" : null }, ...renderInline(text));
  const part = (row) => el("tr", {}, ...row.cells.map((text, i) => cell("td", text, i)));
  const parts = el("tbody", {}, ...block.parts.map(part));
  const head = el("thead", {}, el("tr", {}, ...block.head.map((text, i) => cell("th", text, i))));
  const node = el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, el("table", {}, head, parts));
  return { block, node, parts, part };
}
