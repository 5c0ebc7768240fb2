// Before anything is drawn: the theme that was chosen here, if one was.
(() => {
  try {
    const chosen = localStorage.getItem("cantata.theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch {
    // a browser that keeps nothing shows what the machine prefers
  }
})();
