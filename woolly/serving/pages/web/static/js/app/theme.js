// Theme: light, dark or system. Not a module, so that it runs before the first paint.

(() => {
  let kept = null;
  try {
    kept = JSON.parse(localStorage.getItem("woolly.theme"));
  } catch {
    // Use the system theme.
  }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
