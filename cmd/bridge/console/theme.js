// Runs before the page is drawn, so that it does not flash in other colours.
"use strict";
(() => {
  let chosen = "";
  try { chosen = localStorage.getItem("bridge.theme") ?? ""; } catch { /* no storage: the system's */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
