// Popover: a list opened by a button, and closed by a click or focus elsewhere.

/** Add event listeners; `onOpen` is called when the list opens. Returns the functions to open and close it. */
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
  /** Close the list and focus its button; return false if it was already closed. */
  const close = () => {
    if (popover.hidden) return false;
    toggle(false);
    button.focus();
    return true;
  };
  return { toggle, close };
}
