// Request bodies for the server.

import { chosenModel, state } from "../app/state.js";
import { toRequest } from "../panels/samplers.js";
import { offeredTools } from "./tools.js";
import { noteOf, sentPath } from "./window.js";

// Same text as in woolly/chat/compaction.py.
const NOTE = "What was said before is removed. This is the note that you wrote of it:\n\n";

/** Return the request body for a path of messages. SettingError for an invalid setting. */
export function requestOf(conversation, path, more = {}) {
  const { settings } = conversation;
  const note = noteOf(conversation, path);
  const system = [settings.system?.trim() ? settings.system : "", note === null ? "" : NOTE + note].filter(Boolean).join("\n\n");
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const node of sentPath(conversation, path)) {
    const message = messageOf(node, settings);
    const last = messages.at(-1);
    // Merge consecutive questions, because many templates require alternating roles.
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

/** Convert a message to OpenAI's format; omitted media are replaced by their names in the text. */
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

/** Return true for files that are not sent as text. */
export const isSent = (file) => Boolean(file.image || file.audio || file.video || file.pdf);

const partOf = ({ name, image, audio, video, pdf }) =>
  pdf ? { type: "file", file: { filename: name, file_data: pdf } } : video ? { type: "video_url", video_url: { url: video } } : image ? { type: "image_url", image_url: { url: image } } : { type: "input_audio", input_audio: { data: audio.slice(audio.indexOf(",") + 1), format: "wav" } };

const partsOf = (content) => (typeof content !== "string" ? content : content ? [{ type: "text", text: content }] : []);

/** Merge the contents of two messages. */
const joined = (one, other) => (typeof one === "string" && typeof other === "string" ? `${one}\n\n${other}` : [...partsOf(one), ...partsOf(other)]);

/** Return the text of a message with its attached text files. */
export function fullText(node) {
  const files = (node.files ?? []).filter((file) => !isSent(file)).map(({ name, text }) => {
    const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
    const language = /\.([A-Za-z0-9]{1,10})$/.exec(name)?.[1] ?? "";
    return `File ${name}:\n${fence}${language}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...files, ...(node.content ? [node.content] : [])].join("\n\n");
}

/** Return the model field: the chosen model, nothing if a model is loaded, or else the displayed model. */
function modelField() {
  const isFree = !state.models.some((one) => one.name === state.model) && state.models.some((one) => one.loaded);
  const model = isFree ? null : chosenModel();
  return model ? { model: model.name } : {};
}
