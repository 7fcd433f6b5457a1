// Chart: an SVG line over time.

import { svg } from "../app/dom.js";

const WIDTH = 240;
const HEIGHT = 48;

export class Chart {
  /** Show `length` values; `top` is the minimum of the highest value on the axis. */
  constructor(label, { length = 60, top = 0 } = {}) {
    this.values = [];
    this.length = length;
    this.top = top;
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line" });
    this.label = label;
    this.node = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, this.area, this.line);
  }

  /** Add a value at the right; `words` is its text for screen readers. */
  push(value, words) {
    this.values = [...this.values, Number.isFinite(value) ? value : 0].slice(-this.length);
    const top = Math.max(this.top, ...this.values) || 1;
    const step = WIDTH / (this.length - 1);
    const first = this.length - this.values.length;
    const points = this.values.map((one, i) => `${((first + i) * step).toFixed(1)} ${(HEIGHT - 2 - (one / top) * (HEIGHT - 6)).toFixed(1)}`);
    const path = `M${points.join("L")}`;
    this.line.setAttribute("d", path);
    this.area.setAttribute("d", `${path}L${WIDTH} ${HEIGHT}L${(first * step).toFixed(1)} ${HEIGHT}Z`);
    this.node.setAttribute("aria-label", `${this.label}: ${words}`);
  }
}
