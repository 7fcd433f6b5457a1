// Token probabilities of an answer, with alternatives.

import { el } from "../app/dom.js";
import { percent } from "../app/format.js";

const share = (logprob) => percent(Math.exp(logprob));
const visible = (text) => text.replace(/ /g, "␣").replace(/\n/g, "⏎");

/** Add the log-probabilities of a chunk: [text, logprob, [[text, logprob], ...]]. */
export function takeTokens(tokens, given) {
  for (const one of given ?? []) tokens.push([one.token, one.logprob, (one.top_logprobs ?? []).map((other) => [other.token, other.logprob])]);
}

/** Render the tokens, with unlikely tokens highlighted. A tooltip or a click shows the alternatives. */
export function probabilitiesView(tokens) {
  const chosen = el("p", { class: "alternatives", role: "status" }, "Choose a token to see its alternatives.");
  const choose = ([text, logprob, others], node) => {
    node.parentNode.querySelector(".chosen")?.classList.remove("chosen");
    node.classList.add("chosen");
    const rows = [[text, logprob], ...others.filter(([other]) => other !== text)].sort(([, a], [, b]) => b - a);
    chosen.replaceChildren(...rows.map(([other, its]) => el("span", { class: other === text ? "chosen" : "" }, el("code", {}, visible(other)), ` ${share(its)}`)));
  };
  const token = (one) => {
    const [text, logprob, others] = one;
    const title = [`${visible(text)} ${share(logprob)}`, ...others.filter(([other]) => other !== text).map(([other, its]) => `${visible(other)} ${share(its)}`)].join("\n");
    return el("span", { class: `token doubt-${Math.min(4, Math.floor(-logprob / 0.7))}`, title, on: { click: (event) => choose(one, event.currentTarget) } }, text);
  };
  return el("details", { class: "reasoning probabilities" }, el("summary", {}, "Token probabilities"), el("div", { class: "plain" }, ...tokens.map(token)), chosen);
}
