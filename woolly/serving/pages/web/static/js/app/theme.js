// Theme: light, dark, or the system's. Not a module: it runs before the page is painted.

(() => {
  let kept = null;
  try {
    kept = JSON.parse(localStorage.getItem("woolly.theme"));
  } catch {
    // The system's, then.
  }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
