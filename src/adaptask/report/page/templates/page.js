"use strict";
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
