// The Lock: asks for the server's key, tries it, and says when it is wrong. It is kept for this tab alone.

import * as api from "./api.js";
import { byId } from "./dom.js";
import { emit, state } from "./state.js";

const dialog = byId("key-dialog");
const box = byId("key");
const button = byId("key-submit");

const WRONG = "This key is not valid here; check that it is complete.";

/** Begins to listen. */
export function setUpLock() {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    tryKey(box.value.trim());
  });
  box.addEventListener("input", () => tell(""));
}

/** The server refused the key that a request brought, or wants one: nothing can be done without. */
export function lock(error) {
  if (error.key !== api.key.get()) return; // another one has been entered since
  const isNews = !state.isLocked || error.key !== "";
  api.key.set("");
  state.isLocked = true;
  state.models = [];
  if (dialog.open || !isNews) return;
  box.value = "";
  tell(error.key === "" ? "" : WRONG);
  showLock();
}

/** Opens the dialog. */
export function showLock() {
  if (!dialog.open) dialog.showModal();
  box.focus();
}

/** Keeps the dialog open until the server accepts the key, so that a wrong one can be corrected in place. */
async function tryKey(given) {
  if (button.disabled) return;
  if (!api.isSoundKey(given)) {
    refuse("A key has letters, digits and signs, but no spaces.");
    return;
  }
  api.key.set(given);
  button.disabled = true;
  button.textContent = "Trying…";
  try {
    await api.models();
  } catch (error) {
    api.key.set("");
    refuse(error.status === 401 ? WRONG : error.message);
    return;
  } finally {
    button.disabled = false;
    button.textContent = "Continue";
  }
  state.isLocked = false;
  box.value = "";
  dialog.close();
  emit("refresh");
  emit("unlocked");
}

function refuse(text) {
  tell(text);
  box.focus();
  box.select();
}

function tell(text) {
  byId("key-problem").textContent = text;
  box.toggleAttribute("aria-invalid", text !== "");
  if (text) box.setAttribute("aria-invalid", "true");
}
