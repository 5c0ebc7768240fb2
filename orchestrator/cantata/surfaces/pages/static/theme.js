// Sets the stored theme before the first paint.
(() => {
  try {
    const chosen = localStorage.getItem("cantata.theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch {
    // without storage the theme is that of the system
  }
})();
