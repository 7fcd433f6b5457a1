// The Popover: a list that its button opens, and that a click or the focus elsewhere closes.

/** Begins to listen; `onOpen` is called when the list is shown. Returns what opens and closes it. */
export function setUpPopover(button, popover, onOpen) {
  const toggle = (isOpen = popover.hidden) => {
    popover.hidden = !isOpen;
    button.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) onOpen();
  };
  document.addEventListener("pointerdown", (event) => {
    if (!popover.hidden && !popover.contains(event.target) && !button.contains(event.target)) toggle(false);
  });
  popover.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !popover.contains(event.relatedTarget) && event.relatedTarget !== button) toggle(false);
  });
  /** Closes the list and goes back to its button; returns false if it was closed. */
  const close = () => {
    if (popover.hidden) return false;
    toggle(false);
    button.focus();
    return true;
  };
  return { toggle, close };
}
