// Key dialog: asks for the server's key and verifies it. The key is stored for this tab only.

import * as api from "./api.js";
import { byId } from "./dom.js";
import { emit, state } from "./state.js";

const dialog = byId("key-dialog");
const box = byId("key");
const button = byId("key-submit");

const WRONG = "This key is not valid; check that it is complete.";

/** Add event listeners. */
export function setUpLock() {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    tryKey(box.value.trim());
  });
  box.addEventListener("input", () => tell(""));
}

/** Open the dialog after the server has rejected the key of a request. */
export function lock(error) {
  if (error.key !== api.key.get()) return; // another key has been entered since
  const isNews = !state.isLocked || error.key !== "";
  api.key.set("");
  state.isLocked = true;
  state.models = [];
  if (dialog.open || !isNews) return;
  box.value = "";
  tell(error.key === "" ? "" : WRONG);
  showLock();
}

/** Open the dialog. */
export function showLock() {
  if (!dialog.open) dialog.showModal();
  box.focus();
}

/** Keep the dialog open until the server accepts the key, so that the user can correct it. */
async function tryKey(given) {
  if (button.disabled) return;
  if (!api.isSoundKey(given)) {
    refuse("A key has letters, digits and symbols, but no spaces.");
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
