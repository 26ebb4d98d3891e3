// Runs before the page is painted, so that a chosen theme never flashes in the other one. It is a script of its own,
// because the page's policy allows none within the page.
const theme = localStorage.getItem("jobwheel.theme");
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
