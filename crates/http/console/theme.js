// Sets the colours before the first paint.
(function () {
  "use strict";
  let theme = null;
  try { theme = localStorage.getItem("evenkeel-theme"); } catch { /* no storage: the system's colours */ }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
