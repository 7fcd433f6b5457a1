// TeX environments: matrices, cases and aligned equations.

import { mathml } from "../app/dom.js";

/** Create a table; `aligned(i)` is the class of the cells of column i. */
function table(rows, aligned = () => null, attributes = {}) {
  const row = (cells) => mathml("mtr", {}, ...cells.map((nodes, i) => mathml("mtd", { class: aligned(i) }, ...nodes)));
  return mathml("mtable", attributes, ...rows.map(row));
}

const fence = (sign) => mathml("mo", { fence: "true", stretchy: "true", symmetric: "true" }, sign);

const matrix = (open, close) => (rows) => mathml("mrow", {}, ...(open ? [fence(open)] : []), table(rows), ...(close ? [fence(close)] : []));

const sides = (i) => (i % 2 ? "to-left" : "to-right");
const equations = (rows) => table(rows, sides, { displaystyle: "true", class: "equations" });
const gathered = (rows) => table(rows, () => null, { displaystyle: "true" });
const cases = (rows) => mathml("mrow", {}, fence("{"), table(rows, () => "to-left"));

function array(rows, columns) {
  const letters = columns.replace(/[^lcr]/g, "");
  return table(rows, (i) => ({ l: "to-left", r: "to-right" })[letters[i]] ?? null);
}

/** Functions that create the node of an environment from its rows (and columns, for an array), by name. */
export const environments = {
  matrix: matrix("", ""),
  smallmatrix: matrix("", ""),
  pmatrix: matrix("(", ")"),
  bmatrix: matrix("[", "]"),
  Bmatrix: matrix("{", "}"),
  vmatrix: matrix("|", "|"),
  Vmatrix: matrix("‖", "‖"),
  cases,
  dcases: cases,
  array,
  align: equations,
  aligned: equations,
  split: equations,
  eqnarray: equations,
  gather: gathered,
  gathered,
  equation: gathered,
};
