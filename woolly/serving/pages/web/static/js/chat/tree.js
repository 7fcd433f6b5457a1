// Conversation: a tree of messages, of which the page shows one path. Edits and retries add branches, so that no
// text is lost.

const TITLE = 60; // characters

/** Create an empty conversation. */
export function createConversation(settings = {}) {
  const now = Date.now();
  return { id: crypto.randomUUID?.() ?? randomId(), title: "", created: now, updated: now, leaf: null, settings: structuredClone(settings), messages: [] };
}

// crypto.randomUUID needs a secure context, but the page may be served over plain HTTP in a local network.
function randomId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Add a message after `parent` (null: at the beginning) and show it. */
export function addMessage(conversation, parent, message) {
  const node = { id: randomId(), parent, created: Date.now(), reasoning: "", ...message };
  conversation.messages.push(node);
  conversation.leaf = node.id;
  conversation.updated = Date.now();
  if (node.role === "user" && hasOwnTitle(conversation, node)) conversation.title = titleOf(node.content || node.files?.[0]?.name || "");
  return node;
}

/** Return true if the title is to be made of this message: it is empty, or was made of another version of the message. */
function hasOwnTitle(conversation, node) {
  if (!conversation.title) return true;
  return siblingsOf(conversation, node).some((other) => other !== node && node.parent === null && conversation.title === titleOf(other.content));
}

/** Return the shown path, first message first. */
export function shownPath(conversation) {
  const byId = new Map(conversation.messages.map((node) => [node.id, node]));
  const path = [];
  for (let node = byId.get(conversation.leaf); node && path.length <= byId.size; node = byId.get(node.parent)) path.push(node);
  return path.reverse();
}

/** Return the versions of a message, oldest first. */
export function siblingsOf(conversation, node) {
  return conversation.messages.filter((other) => other.parent === node.parent);
}

/** Show the branch of this message with its last shown path. */
export function showBranch(conversation, node) {
  let leaf = node;
  for (;;) {
    const below = conversation.messages.filter((other) => other.parent === leaf.id);
    if (!below.length) break;
    leaf = below[below.length - 1];
  }
  conversation.leaf = leaf.id;
}

/** Remove a message; its successors follow its predecessor. */
export function removeMessage(conversation, node) {
  const siblings = siblingsOf(conversation, node).filter((other) => other !== node);
  const isLeaf = conversation.leaf === node.id;
  conversation.messages = conversation.messages.filter((other) => other !== node);
  for (const other of conversation.messages) if (other.parent === node.id) other.parent = node.parent;
  if (conversation.from === node.id) conversation.from = siblings.at(-1)?.id; // another version of the question
  if (conversation.from === undefined) delete conversation.from;
  if (!isLeaf) return;
  if (siblings.length) showBranch(conversation, siblings.at(-1));
  else conversation.leaf = node.parent;
}

/** Create a conversation with the messages up to this one. */
export function copyPath(conversation, node) {
  const copy = createConversation(conversation.settings);
  for (const one of shownPath({ ...conversation, leaf: node.id })) addMessage(copy, copy.leaf, { ...structuredClone(one), id: randomId(), parent: copy.leaf });
  copy.title = `${conversation.title} (fork)`.trim();
  return copy;
}

/** Return the beginning of a text as a title. */
export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0].replace(/\s+/g, " ");
  return line.length > TITLE ? `${line.slice(0, TITLE - 1).trimEnd()}…` : line;
}

/** Return true if the title or messages contain all words. */
export function holdsWords(conversation, words) {
  const text = [conversation.title, ...conversation.messages.map((node) => node.content)].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}

const isText = (value) => typeof value === "string";

/** Return an imported conversation with known fields only, or null if it is invalid. */
export function readConversation(given) {
  if (typeof given !== "object" || given === null || !Array.isArray(given.messages)) return null;
  const seen = new Set();
  const messages = [];
  for (const one of given.messages) {
    const sound = typeof one === "object" && one !== null && isText(one.id) && isText(one.content) && ["user", "assistant", "tool"].includes(one.role);
    if (!sound || seen.has(one.id) || (one.parent !== null && !seen.has(one.parent))) return null;
    seen.add(one.id);
    messages.push({
      id: one.id,
      parent: one.parent,
      role: one.role,
      content: one.content,
      reasoning: isText(one.reasoning) ? one.reasoning : "",
      created: Number(one.created) || Date.now(),
      model: isText(one.model) ? one.model : undefined,
      ending: isText(one.ending) ? one.ending : undefined,
      figures: readFigures(one.figures),
      ...readExtras(one),
    });
  }
  const fresh = createConversation();
  return {
    ...fresh,
    id: isText(given.id) ? given.id : fresh.id,
    title: isText(given.title) ? given.title.slice(0, 200) : "",
    created: Number(given.created) || fresh.created,
    updated: Number(given.updated) || fresh.updated,
    leaf: seen.has(given.leaf) ? given.leaf : (messages.at(-1)?.id ?? null),
    settings: readSettings(given.settings),
    messages,
    ...(seen.has(given.from) ? { from: given.from, notes: readNotes(given.notes, seen) } : {}),
    ...(given.pinned === true ? { pinned: true } : {}),
    ...(isText(given.folder) && given.folder.trim() ? { folder: given.folder.trim().slice(0, 60) } : {}),
  };
}

/** Return the summaries, each with the first message that is sent after it. */
function readNotes(given, seen) {
  if (!Array.isArray(given) || !given.every((note) => isText(note?.text))) return [];
  return given.map(({ text, from }) => (seen.has(from) ? { text, from } : { text }));
}

/** Return optional fields of a message: files, format, tool calls and tokens. */
function readExtras(one) {
  const extras = {};
  for (const name of ["form", "call", "name", "pair"]) if (isText(one[name])) extras[name] = one[name];
  if (Number.isInteger(one.seed)) extras.seed = one.seed;
  const list = (name, fields) => {
    if (Array.isArray(one[name]) && one[name].every((item) => fields.every((field) => isText(item?.[field])))) extras[name] = one[name].map((item) => Object.fromEntries(fields.map((field) => [field, item[field]])));
  };
  list("files", ["name", "text"]);
  extras.files?.forEach((file, i) => {
    if (/^data:image\/(png|jpeg|webp|gif|bmp);base64,/.test(one.files[i].image ?? "")) file.image = one.files[i].image;
    else if (/^data:audio\/wav;base64,/.test(one.files[i].audio ?? "")) file.audio = one.files[i].audio;
    else if (/^data:video\/(mp4|quicktime|webm|x-matroska);base64,/.test(one.files[i].video ?? "")) file.video = one.files[i].video;
    else if (/^data:application\/pdf;base64,/.test(one.files[i].pdf ?? "")) file.pdf = one.files[i].pdf;
  });
  list("calls", ["id", "name", "arguments"]);
  const isToken = (token) => Array.isArray(token) && isText(token[0]) && Number.isFinite(token[1]);
  if (Array.isArray(one.tokens) && one.tokens.every((token) => isToken(token) && Array.isArray(token[2]) && token[2].every(isToken))) extras.tokens = one.tokens;
  return extras;
}

function readFigures(given) {
  if (typeof given !== "object" || given === null) return undefined;
  return Object.fromEntries(Object.entries(given).filter(([, value]) => Number.isFinite(value)));
}

function readSettings(given) {
  const settings = {};
  for (const name of ["system", "form", "pattern", "reasoning", "overflow", "images", "audio", "beside", "tools", "mcp", "without", "probabilities"]) if (isText(given?.[name])) settings[name] = given[name];
  if (isText(given?.pictures)) settings.images ??= given.pictures; // the name in older files
  if (isText(given?.sounds)) settings.audio ??= given.sounds; // the name in older files
  if (typeof given?.sampling === "object" && given.sampling !== null) {
    settings.sampling = Object.fromEntries(Object.entries(given.sampling).filter(([, value]) => isText(value)));
  }
  return settings;
}
