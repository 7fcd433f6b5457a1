// Performance panel: statistics of the server. Polls only while the panel is visible.

import * as api from "../app/api.js";
import { Chart } from "./chart.js";
import { byId, el } from "../app/dom.js";
import { bytes, duration, number, percent } from "../app/format.js";
import { chosenModel } from "../app/state.js";

const EVERY = 1000; // milliseconds

const host = byId("performance-figures");
let timer = null;
let cards = null;
let before = null; // {time, tokens} of the last poll
let hasSlots = true;

/** Start polling. */
export function openPerformance() {
  if (timer !== null) return;
  if (!cards) build();
  timer = setTimeout(look, 0);
}

/** Stop polling. */
export function closePerformance() {
  clearTimeout(timer);
  timer = null;
  before = null;
}

function card(name, chart = null) {
  const value = el("strong", {}, "–");
  const note = el("span", { class: "note" }, "");
  const node = el("section", { class: "card", "aria-label": name }, el("h3", {}, name), el("p", {}, value, note), chart?.node);
  return { node, chart, set: (text, more, number_) => {
    value.textContent = text;
    note.textContent = more;
    chart?.push(number_, `${text} ${more}`);
  } };
}

function meter(name) {
  const bar = el("div", { class: "fill" });
  const track = el("div", { class: "meter", role: "meter", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": 100 }, bar);
  const made = card(name);
  made.node.append(track);
  return { ...made, setShare: (share) => {
    const hundredths = Math.max(0, Math.min(100, Math.round(100 * (share || 0))));
    track.setAttribute("aria-valuenow", String(hundredths));
    bar.style.width = `${hundredths}%`;
  } };
}

function build() {
  cards = {
    rate: card("Speed", new Chart("Tokens per second in the last minute")),
    bandwidth: meter("Memory bandwidth"),
    first: card("First token", new Chart("Milliseconds to the first token in the last minute")),
    queue: card("Requests", new Chart("Running and waiting requests in the last minute", { top: 4 })),
    kv: card("KV cache", new Chart("Share of the pages in use in the last minute", { top: 1 })),
    weights: meter("Weight store"),
    prefix: meter("Prefix cache"),
  };
  host.replaceChildren(
    el("p", { class: "problem", role: "alert", hidden: true }),
    el("div", { class: "cards" }, ...Object.values(cards).map((one) => one.node)),
    el("dl", { class: "facts" }),
  );
}

async function look() {
  const mine = timer;
  try {
    if (!document.hidden) {
      const [stats, slots] = await Promise.all([api.stats(chosenModel()?.name), currentSlots()]);
      if (timer !== mine) return;
      show(stats, slots);
      tell("");
    }
  } catch (error) {
    tell(error.message);
  }
  if (timer === mine) timer = setTimeout(look, EVERY);
}

/** Return the running requests, if /slots is enabled, because totals only count finished answers. */
async function currentSlots() {
  if (!hasSlots) return [];
  try {
    return (await api.slots()).filter((slot) => slot.is_processing);
  } catch (error) {
    if (error.code === "unreachable" || error.status === 401) throw error;
    hasSlots = error.status !== 404;
    return [];
  }
}

function tell(problem) {
  const line = host.querySelector(".problem");
  line.hidden = problem === "";
  if (line.textContent !== problem) line.textContent = problem;
}

function show(stats, slots) {
  const now = performance.now();
  const tokens = stats.completion_tokens + slots.reduce((sum, slot) => sum + (slot.next_token?.n_decoded ?? 0), 0);
  // A cancelled answer may reduce the token count.
  const rate = before ? Math.max(0, ((tokens - before.tokens) * 1000) / (now - before.time)) : 0;
  before = { time: now, tokens };
  const average = stats.average_tokens_per_second;
  cards.rate.set(`${number(rate)} tokens/s`, average ? `${number(average)} in the average answer` : "no answers yet", rate);

  const first = stats.first_token_ms;
  cards.first.set(first.p50 ? duration(first.p50) : "–", first.p50 ? `half of the answers; 95 % within ${duration(first.p95)}` : "no answers yet", first.p50);

  const running = stats.running ?? 0;
  const waiting = stats.waiting ?? 0;
  cards.queue.set(`${number(running)} running`, `${number(waiting)} waiting`, running + waiting);

  const kv = stats.kv_cache;
  const used = kv ? kv.pages_used / kv.pages : 0;
  cards.kv.set(kv ? percent(used) : "–", kv ? `${number(kv.pages_used * kv.tokens_per_page)} of ${number(kv.pages * kv.tokens_per_page)} tokens, ${bytes(kv.bytes)}` : "no model is loaded", used);

  const weights = stats.weights;
  cards.weights.set(weights ? bytes(weights.packed_bytes) : "–", weights ? weightsNote(weights) : "no model is loaded");
  cards.weights.setShare(weights?.hit_rate);

  const bandwidth = stats.bandwidth;
  const isKnown = bandwidth?.share !== null && bandwidth?.share !== undefined;
  cards.bandwidth.set(bandwidth?.share ? percent(bandwidth.share) : "–", isKnown ? bandwidthNote(bandwidth) : "not measured yet");
  cards.bandwidth.setShare(bandwidth?.share);

  const prefix = stats.prefix_cache;
  const asked = prefix ? prefix.hit_tokens + prefix.miss_tokens : 0;
  cards.prefix.set(asked ? percent(prefix.hit_rate) : "–", !prefix ? "no model is loaded" : asked ? `of ${number(asked)} prompt tokens were cached` : "no prompt yet");
  cards.prefix.setShare(prefix?.hit_rate);

  facts({
    Model: stats.model ?? "none loaded",
    "Computed by": stats.device?.name ?? null,
    "GPU memory": stats.device?.memory_bytes ? `${bytes(stats.device.memory_bytes)} of ${bytes(stats.device.memory_total_bytes)}` : null,
    "Prompt speed": stats.prompt_tokens_per_second ? `${number(stats.prompt_tokens_per_second)} tokens/s` : null,
    Memory: `${number(stats.memory_usage_mb)} MB`,
    "Answers so far": `${number(stats.answers)}, ${number(stats.completion_tokens)} tokens`,
    Requests: `${number(stats.requests)}, ${number(stats.errors)} failed`,
    Running: `for ${duration(stats.uptime_seconds * 1000)}`,
  });
}

function weightsNote(weights) {
  if (!weights.hits && !weights.misses) return "loaded; not read yet";
  return `loaded; ${percent(weights.hit_rate)} of the reads were hits, ${number(weights.evictions)} evicted`;
}

function bandwidthNote(bandwidth) {
  const limit = `${number(bandwidth.measured_gb_per_second)} GB/s`;
  return bandwidth.achieved_gb_per_second ? `of this machine's limit: ${number(bandwidth.achieved_gb_per_second)} of ${limit}` : `no answers yet; this machine's limit is ${limit}`;
}

function facts(pairs) {
  const known = Object.entries(pairs).filter(([, value]) => value !== null);
  host.querySelector(".facts").replaceChildren(...known.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}
