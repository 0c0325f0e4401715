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
