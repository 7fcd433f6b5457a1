// The Guard: a conversation that ended the tab when it was shown is not opened again at the next start.

import { small } from "./store.js";

const NAME = "opening";

/** Marks a conversation until its first frame is drawn. */
export function markOpening(id) {
  small.set(NAME, id);
  requestAnimationFrame(() => setTimeout(clear, 0));
}

const clear = () => small.set(NAME, null);

/** Returns the id of the conversation that was never drawn, once; null if there is none. */
export function takeUnopened() {
  const id = small.get(NAME);
  clear();
  return id;
}

// A page that is left as usual has not died, even if it was hidden and drew nothing.
window.addEventListener("pagehide", clear);
