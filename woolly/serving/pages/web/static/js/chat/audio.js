// Audio files and microphone recordings. WAV files are sent unchanged; other formats are converted in the browser to
// 16 kHz mono WAV, so that the server needs no decoder for them.

import { announce, byId, toast } from "../app/dom.js";

const RATE = 16000;
const MAX_SECONDS = 300; // maximum length of a recording (10 MB)
const NAMES = /\.(wav|mp3|flac|ogg|oga|opus|m4a|aac|webm)$/i;

/** Return true for an audio file, by media type or else by file name. */
export const isAudio = (file) => (file.type ? file.type.startsWith("audio/") : NAMES.test(file.name));

/** Convert an audio file to a WAV Blob. */
export async function readAudio(file) {
  const buffer = await file.arrayBuffer();
  const letters = (from) => String.fromCharCode(...new Uint8Array(buffer.slice(from, from + 4)));
  if (letters(0) === "RIFF" && letters(8) === "WAVE") return new Blob([buffer], { type: "audio/wav" });
  let audio = null;
  try {
    audio = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(buffer);
  } catch {
    throw new Error(`${file.name} is not an audio file that this browser can play.`);
  }
  return toWav(audio);
}

/** Mix all channels to 16-bit mono. */
function toWav(audio) {
  const view = new DataView(new ArrayBuffer(44 + 2 * audio.length));
  const write = (at, letters) => [...letters].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, 36 + 2 * audio.length, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, audio.sampleRate, true);
  view.setUint32(28, 2 * audio.sampleRate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  write(36, "data");
  view.setUint32(40, 2 * audio.length, true);
  const channels = Array.from({ length: audio.numberOfChannels }, (_, i) => audio.getChannelData(i));
  for (let i = 0; i < audio.length; i += 1) {
    const mean = channels.reduce((sum, one) => sum + one[i], 0) / channels.length;
    view.setInt16(44 + 2 * i, Math.round(32767 * Math.max(-1, Math.min(1, mean))), true);
  }
  return new Blob([view], { type: "audio/wav" });
}

const button = byId("record");
let recorder = null;
let isAsking = false; // the browser's permission prompt is open
let recorded = 0;

/** Add event listeners to the microphone button; `add` is called with a list of one file. */
export function setUpRecording(add) {
  button.addEventListener("click", () => (recorder ? recorder.stop() : record(add)));
}

/** Show the microphone button if the model supports audio and the browser allows recording. */
export function showRecording(takesAudio) {
  button.hidden = !recorder && !(takesAudio && navigator.mediaDevices && window.MediaRecorder);
  const label = recorder ? "Stop recording" : "Record audio";
  button.setAttribute("aria-label", label);
  button.title = label;
  button.classList.toggle("recording", recorder !== null);
}

async function record(add) {
  if (isAsking) return;
  isAsking = true;
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    start(stream, add);
  } catch {
    toast("The microphone is not available: allow this page to use it, or attach a file.", null, 10);
  }
  isAsking = false;
}

function start(stream, add) {
  const parts = [];
  recorder = new MediaRecorder(stream);
  const timer = setTimeout(() => recorder?.stop(), 1000 * MAX_SECONDS);
  recorder.addEventListener("dataavailable", (event) => parts.push(event.data));
  recorder.addEventListener("stop", () => {
    clearTimeout(timer);
    for (const track of stream.getTracks()) track.stop();
    const type = recorder.mimeType;
    recorder = null;
    recorded += 1;
    showRecording(true);
    add([new File(parts, `recording-${recorded}.wav`, { type })]);
  });
  recorder.start();
  showRecording(true);
  announce("Recording");
}
