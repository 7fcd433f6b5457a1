// CodeView: a growing code block. Each complete line is highlighted once; only the last line is updated.

import { copyButton, el, iconButton, saveText } from "../app/dom.js";
import { highlightLine } from "./highlight.js";
import { findLanguage } from "./languages.js";

export class CodeView {
  constructor(name) {
    this.name = name;
    this.text = "";
    this.state = null;
    this.language = findLanguage(name);
    this.done = 0; // characters in complete lines
    this.tail = el("span");
    this.code = el("code", { class: `language-${name.replace(/[^\w+#-]/g, "") || "none"}` }, this.tail);
    this.node = el(
      "figure",
      { class: "code" },
      el("figcaption", {}, el("span", {}, name || "text"), this.shower(), this.saver(), copyButton("Copy code", () => this.text)),
      // Scrollable code must be focusable by keyboard.
      el("pre", { tabindex: "0", "aria-label": `Code${name ? `, ${name}` : ""}` }, this.code),
    );
  }

  /** Create a button that shows an SVG as an image, in which browsers run no scripts and load no resources. */
  shower() {
    if (this.name !== "svg" && this.name !== "xml") return null;
    const show = () => {
      const isShown = this.drawing !== undefined;
      this.drawing?.remove();
      this.drawing = isShown ? undefined : el("img", { class: "drawing", alt: "The drawing", src: `data:image/svg+xml,${encodeURIComponent(this.text)}` });
      if (this.drawing) this.node.append(this.drawing);
      button.textContent = isShown ? "Show drawing" : "Hide drawing";
    };
    const button = el("button", { type: "button", class: "button small quiet", on: { click: show } }, "Show drawing");
    return button;
  }

  /** Create a button that saves HTML or SVG as a file, because the chat page never runs generated code. */
  saver() {
    const ending = { html: "html", svg: "svg", xml: "svg" }[this.name];
    return ending ? iconButton("save", "Save as a file", () => saveText(this.text, `answer.${ending}`, ending === "svg" ? "image/svg+xml" : "text/html")) : null;
  }

  /** Show `text`, which extends the text shown so far. */
  grow(text) {
    if (text === this.text) return;
    const fresh = document.createDocumentFragment();
    for (let end = text.indexOf("\n", this.done); end >= 0; end = text.indexOf("\n", this.done)) {
      fresh.append(...this.line(text.slice(this.done, end), true), "\n");
      this.done = end + 1;
    }
    this.tail.before(fresh);
    this.tail.replaceChildren(...this.line(text.slice(this.done), false));
    this.text = text;
  }

  /** Return the nodes of a line; a complete line updates the state for the following lines. */
  line(text, isComplete) {
    if (!this.language) return this.name === "diff" ? [diffLine(text)] : [text];
    const [tokens, state] = highlightLine(text, this.language, this.state);
    if (isComplete) this.state = state;
    return tokens.map(([kind, part]) => (kind ? el("span", { class: `t-${kind}` }, part) : part));
  }
}

const DIFF = { "+": "t-added", "-": "t-removed", "@": "t-c" };

const diffLine = (text) => (DIFF[text[0]] ? el("span", { class: DIFF[text[0]] }, text) : text);
