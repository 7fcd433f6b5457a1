// Try-out of the API reference: a form for each route that sends a request and streams the reply.

const KEY = "woolly.key"; // shared with the chat page

const element = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

const key = document.getElementById("key");
const find = document.getElementById("find");
const routes = [...document.querySelectorAll("details[data-path]")];

try {
  key.value = sessionStorage.getItem(KEY) ?? "";
} catch {
  // Storage is not available.
}
key.addEventListener("change", () => {
  try {
    sessionStorage.setItem(KEY, key.value);
  } catch {
    // Without storage, the key lasts until the page is closed.
  }
});

find.addEventListener("input", () => {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const route of routes) {
    const text = route.firstElementChild.textContent.toLowerCase();
    route.hidden = !words.every((word) => text.includes(word));
  }
});

for (const route of routes) route.addEventListener("toggle", () => route.open && !route.querySelector("form") && build(route));

/** Add the form of a route. */
function build(route) {
  const { method, path, example } = route.dataset;
  const names = JSON.parse(route.dataset.params);
  const boxes = new Map(names.map((name) => [name, element("input", { type: "text", "aria-label": name, placeholder: name, autocomplete: "off" })]));
  const body = example === undefined ? null : element("textarea", { rows: String(Math.min(14, example.split("\n").length + 1)), spellcheck: "false", "aria-label": "Body" });
  if (body) body.value = example;
  const send = element("button", {}, "Send");
  const curl = element("button", { type: "button" }, "Copy as curl");
  const reply = element("pre", { tabindex: "0", "aria-label": "Reply", "aria-live": "polite" });
  reply.hidden = true;
  const form = element("form", {}, ...boxes.values(), ...(body ? [body] : []), element("p", {}, send, " ", curl), reply);
  let running = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) return running.abort();
    running = new AbortController();
    send.textContent = "Stop";
    await perform(method, addressOf(path, boxes), body?.value, reply, running.signal);
    running = null;
    send.textContent = "Send";
    return undefined;
  });
  curl.addEventListener("click", async () => {
    const told = await navigator.clipboard?.writeText(curlOf(method, addressOf(path, boxes), body?.value)).then(() => true, () => false);
    curl.textContent = told ? "Copied" : "The browser does not allow copying";
  });
  route.querySelector("p").after(form);
}

/** Return the URL with path parameters filled in and the other parameters as a query. */
function addressOf(path, boxes) {
  let filled = path.replace(/^\//, "");
  const query = new URLSearchParams();
  for (const [name, { value }] of boxes) {
    const place = new RegExp(`\\{${name}(:path)?\\}`);
    if (place.test(filled)) filled = filled.replace(place, () => encodeURIComponent(value));
    else if (value) query.set(name, value);
  }
  return filled + (query.size ? `?${query}` : "");
}

const headersOf = (body) => ({ ...(key.value ? { Authorization: `Bearer ${key.value}` } : {}), ...(body === undefined ? {} : { "Content-Type": "application/json" }) });

async function perform(method, address, body, reply, signal) {
  reply.hidden = false;
  reply.textContent = "…";
  try {
    const response = await fetch(address, { method, headers: headersOf(body), body, signal, cache: "no-store" });
    const head = `${response.status} ${response.statusText}\n\n`;
    if (/^application\/json/.test(response.headers.get("content-type") ?? "")) {
      reply.textContent = head + pretty(await response.text());
      return;
    }
    reply.textContent = head;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let read = await reader.read(); !read.done; read = await reader.read()) reply.append(read.value);
  } catch (error) {
    reply.append(error.name === "AbortError" ? "\n(stopped)" : `\n${error.message}`);
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Return the request as a shell command, with a placeholder for the key. */
function curlOf(method, address, body) {
  const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const parts = ["curl", ...(method === "GET" ? [] : ["-X", method]), quoted(new URL(address, location.href).href)];
  if (key.value) parts.push("-H", '"Authorization: Bearer $KEY"');
  if (body !== undefined) parts.push("-H", quoted("Content-Type: application/json"), "-d", quoted(body));
  return parts.join(" ");
}
