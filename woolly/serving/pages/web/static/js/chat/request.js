// Request: what the server gets of a conversation.

import { chosenModel, state } from "../app/state.js";
import { toRequest } from "../panels/samplers.js";
import { offeredTools } from "./tools.js";
import { noteOf, sentPath } from "./window.js";

// The words of woolly/chat/compaction.py.
const NOTE = "What was said before is removed. This is the note that you wrote of it:\n\n";

/** Returns the body of a request for the answer to a path of messages. SettingError if a setting cannot be read. */
export function requestOf(conversation, path, more = {}) {
  const { settings } = conversation;
  const note = noteOf(conversation, path);
  const system = [settings.system?.trim() ? settings.system : "", note === null ? "" : NOTE + note].filter(Boolean).join("\n\n");
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const node of sentPath(conversation, path)) {
    const message = messageOf(node, settings);
    const last = messages.at(-1);
    // A question without an answer and the one after it are one: many templates want roles to take turns.
    if (last?.role === node.role && node.role !== "tool" && !last.tool_calls) last.content = joined(last.content, message.content);
    else messages.push(message);
  }
  const begun = more.continue_final_message ? path.at(-1)?.reasoning : "";
  if (begun) messages.at(-1).reasoning_content = begun;
  const fields = toRequest(settings, state.defaults);
  const tools = [...(fields.tools ?? []), ...offeredTools(settings)];
  if (tools.length) fields.tools = tools;
  return { ...modelField(), messages, ...fields, stream: true, stream_options: { include_usage: true }, return_progress: true, ...more };
}

/** A message as OpenAI's API has it; of images, videos and audio files that are left out, the names stand in the text. */
export function messageOf(node, { images, audio } = {}) {
  const isLeft = (file) => !file.pdf && (file.audio ? audio : images) === "off";
  const media = (node.files ?? []).filter(isSent);
  const parts = media.filter((file) => !isLeft(file)).map(partOf);
  const names = media.filter(isLeft).map((file) => `[${file.image ? "Image" : file.video ? "Video" : "Audio"} ${file.name}]`);
  const text = [...names, fullText(node)].filter(Boolean).join("\n\n");
  const message = { role: node.role, content: parts.length ? [...parts, ...partsOf(text)] : text };
  if (node.calls?.length) message.tool_calls = node.calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  if (node.role === "tool") message.tool_call_id = node.call;
  return message;
}

/** Whether a file is sent as it is, not as text of the message. */
export const isSent = (file) => Boolean(file.image || file.audio || file.video || file.pdf);

const partOf = ({ name, image, audio, video, pdf }) =>
  pdf ? { type: "file", file: { filename: name, file_data: pdf } } : video ? { type: "video_url", video_url: { url: video } } : image ? { type: "image_url", image_url: { url: image } } : { type: "input_audio", input_audio: { data: audio.slice(audio.indexOf(",") + 1), format: "wav" } };

const partsOf = (content) => (typeof content !== "string" ? content : content ? [{ type: "text", text: content }] : []);

/** Returns the contents of two messages as one; parts stay parts. */
const joined = (one, other) => (typeof one === "string" && typeof other === "string" ? `${one}\n\n${other}` : [...partsOf(one), ...partsOf(other)]);

/** The text of a message with the files that were attached to it. */
export function fullText(node) {
  const files = (node.files ?? []).filter((file) => !isSent(file)).map(({ name, text }) => {
    const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
    const language = /\.([A-Za-z0-9]{1,10})$/.exec(name)?.[1] ?? "";
    return `File ${name}:\n${fence}${language}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...files, ...(node.content ? [node.content] : [])].join("\n\n");
}

/** Returns the chosen model as a field; none if the server has one loaded; else the model that the page shows. */
function modelField() {
  const isFree = !state.models.some((one) => one.name === state.model) && state.models.some((one) => one.loaded);
  const model = isFree ? null : chosenModel();
  return model ? { model: model.name } : {};
}
