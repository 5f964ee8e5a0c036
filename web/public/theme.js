// Sets the chosen theme before the first paint, so that nothing flashes.
try {
  var chosen = localStorage.getItem("flexfeed.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch (_) {
  // Storage may be switched off: the system's theme applies.
}
