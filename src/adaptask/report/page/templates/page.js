"use strict";
// The button that copies the command; works from disk, with or without the clipboard interface.
(() => {
  const button = document.getElementById("copy");
  if (!button) return;
  const command = document.getElementById("command"), told = document.getElementById("copied");

  function copySelected() {
    const range = document.createRange(), selection = window.getSelection();
    range.selectNodeContents(command);
    selection.removeAllRanges();
    selection.addRange(range);
    return document.execCommand("copy");
  }

  button.addEventListener("click", async () => {
    let done = true;
    try {
      await navigator.clipboard.writeText(command.textContent);
    } catch {
      done = copySelected();
    }
    told.textContent = done ? "Copied." : "Selected; press Ctrl-C or Cmd-C.";
  });
})();

// Marks the section that is being read in the table of contents.
(() => {
  const links = [...document.querySelectorAll("nav a")];
  const headings = links.map((link) => document.getElementById(link.hash.slice(1)));

  function mark() {
    const read = headings.filter((heading) => heading.getBoundingClientRect().top < window.innerHeight / 3).length;
    const current = links[Math.max(0, read - 1)];
    for (const link of links) link === current ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
  }

  addEventListener("scroll", mark, { passive: true });
  addEventListener("resize", mark);
  mark();
})();

// Says that a table scrolls if it is wider than the screen.
(() => {
  const check = () => document.querySelectorAll(".scroll").forEach((box) =>
    box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1));
  addEventListener("resize", check);
  document.querySelectorAll("details").forEach((details) => details.addEventListener("toggle", check));
  check();
})();
