// CodeView: a block of code that grows. A line is looked at once when it is complete; only the last one again.

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
      // Wide code scrolls by itself, and must then be reachable by keyboard.
      el("pre", { tabindex: "0", "aria-label": `Code${name ? `, ${name}` : ""}` }, this.code),
    );
  }

  /** A button that shows a drawing below its code: as an image, in which a browser runs no script and fetches nothing. */
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

  /** A button that saves a page or a drawing as a file, for the browser to open: the chat page runs no code of a model. */
  saver() {
    const ending = { html: "html", svg: "svg", xml: "svg" }[this.name];
    return ending ? iconButton("save", "Save as a file", () => saveText(this.text, `answer.${ending}`, ending === "svg" ? "image/svg+xml" : "text/html")) : null;
  }

  /** Shows `text`, which begins with what is shown already. */
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

  /** Nodes of a line; one that is complete decides what the following ones are part of. */
  line(text, isComplete) {
    if (!this.language) return this.name === "diff" ? [diffLine(text)] : [text];
    const [tokens, state] = highlightLine(text, this.language, this.state);
    if (isComplete) this.state = state;
    return tokens.map(([kind, part]) => (kind ? el("span", { class: `t-${kind}` }, part) : part));
  }
}

const DIFF = { "+": "t-added", "-": "t-removed", "@": "t-c" };

const diffLine = (text) => (DIFF[text[0]] ? el("span", { class: DIFF[text[0]] }, text) : text);
