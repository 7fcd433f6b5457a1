// Files: texts that go with the next message. They are read in the browser, and sent as fenced text with their names.

import { announce, byId, el, iconButton, toast } from "../app/dom.js";
import { bytes } from "../app/format.js";

const MOST_EACH = 256 * 1024; // bytes
const MOST_ALL = 1024 * 1024;

const list = byId("files");
const input = byId("attach-file");
let held = []; // {name, text}
let onChange = () => {};

/** Begins to listen; `changed` is called when files come or go. */
export function setUpFiles(changed) {
  onChange = changed;
  byId("attach").title = `Attach text files, ${bytes(MOST_EACH)} each at most; or drop or paste them`;
  byId("attach").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    add([...input.files]);
    input.value = "";
  });
  byId("message").addEventListener("paste", (event) => {
    if (!event.clipboardData?.files.length) return;
    event.preventDefault();
    add([...event.clipboardData.files]);
  });
  const main = document.querySelector("main");
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const drop = (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    main.classList.toggle("dropping", event.type === "dragover");
    if (event.type === "drop") add([...event.dataTransfer.files]);
  };
  for (const kind of ["dragover", "dragleave", "drop"]) main.addEventListener(kind, drop);
}

/** Whether files wait for a message. */
export const hasFiles = () => held.length > 0;

/** Returns the files, and holds them no more. */
export function takeFiles() {
  const files = held;
  held = [];
  render();
  return files;
}

async function add(files) {
  for (const file of files) {
    try {
      held.push({ name: file.name, text: await read(file) });
      announce(`${file.name} is attached`);
    } catch (error) {
      toast(error.message, null, 10);
    }
  }
  render();
  onChange();
}

async function read(file) {
  if (file.size > MOST_EACH) throw new Error(`${file.name} has ${bytes(file.size)}; a file may have ${bytes(MOST_EACH)}.`);
  if (file.size + held.reduce((sum, one) => sum + one.text.length, 0) > MOST_ALL) throw new Error(`${file.name} is too much: all files of a message may have ${bytes(MOST_ALL)}.`);
  let text = "";
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    text = "\0";
  }
  if (text.includes("\0")) throw new Error(`${file.name} is not a text file: only UTF-8 text can be attached.`);
  return text;
}

function render() {
  const remove = (file) => () => {
    held = held.filter((one) => one !== file);
    render();
    onChange();
    byId("message").focus();
  };
  list.replaceChildren(...held.map((file) => el("li", {}, fileLabel(file), iconButton("close", `Remove ${file.name}`, remove(file)))));
  list.hidden = !held.length;
}

/** The name and the size of a file. */
export const fileLabel = (file) => el("span", { class: "file" }, file.name, el("small", {}, ` ${bytes(new Blob([file.text]).size)}`));
