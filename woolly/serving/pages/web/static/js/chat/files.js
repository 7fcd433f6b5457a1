// Attachments of the next message: text, images, audio, videos and PDF files. They are read in the browser. Text files are
// sent as fenced blocks with their names, the others in base64.

import { announce, byId, el, iconButton, toast } from "../app/dom.js";
import { bytes } from "../app/format.js";
import { chosenModel, takesAudio, on, state, takesImages, takesVideos } from "../app/state.js";
import { isAudio, readAudio, setUpRecording, showRecording } from "./audio.js";

const MAX_FILE_BYTES = 256_000; // bytes
const MAX_TEXT_BYTES = 1_000_000;
const MAX_IMAGE_BYTES = 6_000_000; // per file
const MAX_SENT_BYTES = 11_000_000; // of all media; in base64 they fit the server's default limit of 16 MiB per body
const IMAGES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
const PDF = "application/pdf";
const VIDEOS = ["video/mp4", "video/quicktime", "video/webm", "video/x-matroska"];
const KINDS = "PNG, JPEG, WebP, GIF or BMP";

const list = byId("files");
const input = byId("attach-file");
let held = []; // {name, text}, an image also {image}, an audio file {audio}, a video {video} and a PDF file {pdf}: its data: URL, with an empty text
let onChange = () => {};

/** Add event listeners; `changed` is called when files are added or removed. */
export function setUpFiles(changed) {
  onChange = changed;
  on("models", showKinds);
  setUpRecording(add);
  byId("attach").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    add([...input.files]);
    input.value = "";
  });
  byId("message").addEventListener("paste", (event) => {
    // Spreadsheets and word processors copy an image in addition to the text.
    if (!event.clipboardData?.files.length || event.clipboardData.types.includes("text/plain")) return;
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

/** Show the file types that the chosen model supports, and warn about unsupported attachments. */
function showKinds() {
  const more = [lacksImages() ? [] : ["images"], lacksAudio() ? [] : ["audio"], lacksVideos() ? [] : ["videos"]].flat().join(" or ");
  byId("attach").title = `Attach text files, ${bytes(MAX_FILE_BYTES)} each at most${state.pdfReason ? "" : ", or PDF files"}${more ? `, or ${more}` : ""}; or drop or paste them`;
  list.classList.toggle("no-images", lacksImages());
  list.classList.toggle("no-audio", lacksAudio());
  list.classList.toggle("no-videos", lacksVideos());
  const note = byId("files-note");
  note.hidden = !isUnsent();
  if (hasUnsupportedImage()) note.textContent = `${chosenModel().name} does not support images: choose a model that does, or remove the image.`;
  else if (hasUnsupportedVideo()) note.textContent = `${chosenModel().name} does not support videos: choose a model that does, or remove the video.`;
  else if (isUnsent()) note.textContent = `${chosenModel().name} does not support audio: choose a model that does, or remove the audio file.`;
  showRecording(chosenModel() !== null && !lacksAudio());
  onChange();
}

const lacksImages = () => chosenModel() !== null && !takesImages(chosenModel());
const lacksAudio = () => chosenModel() !== null && !takesAudio(chosenModel());
const hasUnsupportedImage = () => lacksImages() && held.some((file) => file.image);

const lacksVideos = () => chosenModel() !== null && !takesVideos(chosenModel());
const hasUnsupportedVideo = () => lacksVideos() && held.some((file) => file.video);

/** Return true if an attached file has a modality that the chosen model does not support. */
export const isUnsent = () => hasUnsupportedImage() || hasUnsupportedVideo() || (lacksAudio() && held.some((file) => file.audio));

/** Return true if files are attached. */
export const hasFiles = () => held.length > 0;

/** Return the attached files. */
export const heldFiles = () => [...held];

/** Return and clear the attached files. */
export function takeFiles() {
  const files = held;
  held = [];
  render();
  return files;
}

async function add(files) {
  for (const file of files) {
    try {
      held.push(await readOne(file));
      announce(`${file.name} is attached`);
    } catch (error) {
      toast(error.message, null, 10);
    }
  }
  render();
}

async function readOne(file) {
  if (IMAGES.includes(file.type)) return readImage(file);
  if (isAudio(file)) return attachAudio(file);
  if (file.type === PDF) return readPdf(file);
  if (VIDEOS.includes(file.type)) return readVideo(file);
  return { name: file.name, text: await read(file) };
}

async function attachAudio(file) {
  if (lacksAudio()) throw new Error(`${chosenModel().name} does not support audio; ${otherKinds()} can be attached.`);
  const wav = file.size > MAX_SENT_BYTES ? file : await readAudio(file);
  checkSum(file.name, wav);
  return { name: file.name, text: "", audio: await dataUrl(file.name, wav) };
}

async function readImage(file) {
  if (lacksImages()) throw new Error(`${chosenModel().name} does not support images; ${otherKinds()} can be attached.`);
  if (file.size > MAX_IMAGE_BYTES) throw new Error(`${file.name} has ${bytes(file.size)}; the limit for images is ${bytes(MAX_IMAGE_BYTES)}.`);
  checkSum(file.name, file);
  return { name: file.name || "image", text: "", image: await dataUrl(file.name, file) };
}

async function readVideo(file) {
  if (lacksVideos()) throw new Error(`${chosenModel().name} does not support videos; ${lacksImages() ? otherKinds() : "images"} can be attached.`);
  checkSum(file.name, file);
  return { name: file.name, text: "", video: await dataUrl(file.name, file) };
}

/** Return the attachments that every model supports. */
const otherKinds = () => (state.pdfReason ? "text files" : "text and PDF files");

/** Attach a PDF file; text-only models get its text. */
async function readPdf(file) {
  if (state.pdfReason) throw new Error(`${file.name} cannot be attached: ${state.pdfReason}`);
  checkSum(file.name, file);
  return { name: file.name, text: "", pdf: await dataUrl(file.name, file) };
}

function checkSum(name, blob) {
  // Base64 encodes three bytes as four characters.
  const sum = held.reduce((all, one) => all + (one.image ?? one.audio ?? one.video ?? one.pdf ?? "").length * 0.75, blob.size);
  if (sum > MAX_SENT_BYTES) throw new Error(`${name} does not fit: the limit for all images, audio, videos and PDF files of a message is ${bytes(MAX_SENT_BYTES)}.`);
}

const dataUrl = (name, blob) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${name} cannot be read.`));
    reader.readAsDataURL(blob);
  });

async function read(file) {
  if (file.size > MAX_FILE_BYTES) throw new Error(`${file.name} has ${bytes(file.size)}; the limit for text files is ${bytes(MAX_FILE_BYTES)}.`);
  if (file.size + held.reduce((sum, one) => sum + one.text.length, 0) > MAX_TEXT_BYTES) throw new Error(`${file.name} does not fit: the limit for all text files of a message is ${bytes(MAX_TEXT_BYTES)}.`);
  let text = "";
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    text = "\0";
  }
  if (text.includes("\0")) throw new Error(`${file.name} is not supported; attach UTF-8 text, an image (${KINDS}), audio, a video or a PDF file.`);
  return text;
}

function render() {
  const remove = (file) => () => {
    held = held.filter((one) => one !== file);
    render();
    byId("message").focus();
  };
  list.replaceChildren(...held.map((file) => el("li", {}, fileLabel(file), iconButton("close", `Remove ${file.name}`, remove(file)))));
  list.hidden = !held.length;
  showKinds();
}

/** Render a file: name and size, a thumbnail for images, a player for audio and videos. */
export const fileLabel = (file) => (file.image ? imageLabel(file) : file.audio ? audioLabel(file) : file.video ? videoLabel(file) : textLabel(file));

const videoLabel = (file) => el("span", { class: "file" }, el("video", { class: "preview", controls: true, muted: true, preload: "metadata", src: file.video, "aria-label": file.name }), file.name);

const audioLabel = (file) => el("span", { class: "file" }, el("audio", { controls: true, preload: "metadata", src: file.audio, "aria-label": file.name }), file.name);

const imageLabel = (file) => el("span", { class: "file" }, el("img", { class: "preview", src: file.image, alt: file.name }), file.name);

const textLabel = (file) => el("span", { class: "file" }, file.name, el("small", {}, ` ${bytes(file.pdf ? file.pdf.length * 0.75 : new Blob([file.text]).size)}`));
