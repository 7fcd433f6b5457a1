// Crash guard: a conversation that crashed the tab is not opened again at the next start.

import { small } from "./store.js";

const NAME = "opening";

/** Mark a conversation until its first frame is drawn. */
export function markOpening(id) {
  small.set(NAME, id);
  requestAnimationFrame(() => setTimeout(clear, 0));
}

const clear = () => small.set(NAME, null);

/** Return and clear the id of the conversation that was never drawn, or null. */
export function takeUnopened() {
  const id = small.get(NAME);
  clear();
  return id;
}

// A page that is closed normally has not crashed, even if it was hidden and drew nothing.
window.addEventListener("pagehide", clear);
