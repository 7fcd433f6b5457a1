// DOM elements. All nodes are created here; strings become text nodes and are never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const MATHML = "http://www.w3.org/1998/Math/MathML";

/** Create an HTML element. `on` has listeners; an attribute is set for true and omitted for false, null and undefined. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Create a MathML element. */
export function mathml(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(MATHML, tag), attributes, children);
}

/** Join a number and its unit without a line break. */
export const fact = (text) => el("span", { class: "fact" }, text);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [kind, listener] of Object.entries(value)) node.addEventListener(kind, listener);
    } else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Return the element with this id. */
export const byId = (id) => document.getElementById(id);

/** Create an icon button; `label` is its accessible name and tooltip. */
export function iconButton(name, label, onClick, attributes = {}) {
  const { class: extra, ...rest } = attributes;
  return el(
    "button",
    { type: "button", class: `icon-button ${extra ?? ""}`.trim(), "aria-label": label, title: label, on: { click: onClick }, ...rest },
    icon(name),
  );
}

// Paths in a 20 by 20 view box.
const ICONS = {
  menu: "M3 6h14M3 10h14M3 14h14",
  plus: "M10 4v12M4 10h12",
  close: "M5 5l10 10M15 5L5 15",
  send: "M10 16V4M5 9l5-5 5 5",
  stop: "M6 6h8v8H6z",
  copy: "M7 7h9v9H7zM13 7V4H4v9h3",
  check: "M4 10.5l4 4 8-9",
  redo: "M16 10a6 6 0 1 1-1.8-4.3M16 3v3.5h-3.5",
  edit: "M4 16l.8-3.4L13 4.4a1.4 1.4 0 0 1 2 0l.6.6a1.4 1.4 0 0 1 0 2L7.4 15.2z",
  trash: "M4 6h12M8 6V4h4v2M6 6l.7 10h6.6L14 6M8.7 9v4M11.3 9v4",
  settings: "M3 6h8M15 6h2M3 14h2M9 14h8M11 4v4M15 4v4h-4V4zM5 12h4v4H5z",
  chart: "M3 16h14M5 13V9M9 13V5M13 13V8M17 13V6",
  search: "M8.5 14a5.5 5.5 0 1 1 0-11 5.5 5.5 0 0 1 0 11zM12.5 12.5L17 17",
  down: "M5 8l5 5 5-5",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  save: "M10 3v9M6 8.5l4 4 4-4M4 16h12",
  open: "M10 13V4M6 7.5l4-4 4 4M4 16h12",
  sun: "M10 13.5a3.5 3.5 0 1 1 0-7 3.5 3.5 0 0 1 0 7zM10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M4.3 15.7l1.1-1.1M14.6 5.4l1.1-1.1",
  moon: "M16 11.5A6.5 6.5 0 0 1 8.5 4 6.5 6.5 0 1 0 16 11.5z",
  auto: "M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14",
  keyboard: "M2.5 5.5h15v9h-15zM5.5 8.5h.01M8.5 8.5h.01M11.5 8.5h.01M14.5 8.5h.01M6.5 11.5h7",
  code: "M7 5l-5 5 5 5M13 5l5 5-5 5",
  attach: "M14.5 9l-5 5a3 3 0 0 1-4.2-4.2l6-6a2 2 0 0 1 2.9 2.900l-6 6a1 1 0 0 1-1.4-1.4l5-5",
  microphone: "M10 12.500a2.500 2.500 0 0 1-2.500-2.500V5.500a2.500 2.500 0 0 1 5 0V10a2.500 2.500 0 0 1-2.500 2.500zM5 10a5 5 0 0 0 10 0M10 15v2.500",
  fork: "M6 3.500v13M6 11c6 0 8-2 8-6M14 3.500v2",
  tools: "M12.500 3.500a4 4 0 0 0-3.800 5.300L3 14.500 5.500 17l5.700-5.700a4 4 0 0 0 5.100-5.100l-2.300 2.300-2.200-.5-.5-2.200z",
  pin: "M8 3h4M8.500 3v5L6 11.500h8L11.500 8V3M10 11.500V17",
  folder: "M3 5.500h5l1.500 2H17v8H3z",
  columns: "M3 4h6v12H3zM11 4h6v12h-6z",
  key: "M7 13a3.5 3.5 0 1 1 2.9-1.5L17 4.5M14 7.5l2 2",
};

/** Create an icon, hidden from assistive technology because its button has a label. */
export function icon(name) {
  return svg("svg", { viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true", focusable: "false" }, svg("path", { d: ICONS[name] }));
}

/** Create the logo: a ball of wool. */
export function mark() {
  return svg(
    "svg",
    { viewBox: "0 0 48 48", class: "mark", "aria-hidden": "true", focusable: "false" },
    svg("circle", { cx: 22, cy: 22, r: 17 }),
    svg("path", { d: "M7 16c9-4 20 0 27 12M5.500 25c8-3 17 0 22 12M13 8c9 0 19 5 25 14M9 32c1-11 8-20 19-25M18 38.500c-1-10 4-21 16-26M28 38c0-6 4-12 11-15M32 36c4 5 8 5 12 2" }),
  );
}

const announcer = byId("announcer");

/** Announce a message to screen readers. */
export function announce(text) {
  announcer.textContent = "";
  requestAnimationFrame(() => {
    announcer.textContent = text;
  });
}

/** Show a toast that disappears after a while; `action` is {label, run}. */
export function toast(text, action = null, seconds = 6) {
  const host = byId("toasts");
  const line = el("div", { class: "toast", role: "status" }, el("span", {}, text));
  const close = () => line.remove();
  if (action) {
    const run = () => {
      close();
      action.run();
    };
    line.append(el("button", { type: "button", class: "text-button", on: { click: run } }, action.label));
  }
  host.replaceChildren(line);
  setTimeout(close, seconds * 1000);
}

/** Copy text to the clipboard, even outside of a secure context. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = el("textarea", { class: "visually-hidden", "aria-hidden": "true" });
    box.value = text;
    const focused = document.activeElement;
    (document.querySelector("dialog[open]") ?? document.body).append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    focused?.focus();
    return done;
  }
}

/** Save text as a file through a browser download. */
export function saveText(text, name, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Create a button that copies the result of `read` and confirms it. */
export function copyButton(label, read) {
  const button = iconButton("copy", label, async () => {
    const done = await copyText(read());
    button.replaceChildren(icon(done ? "check" : "close"));
    announce(done ? "Copied" : "The browser does not allow copying");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}
