"use strict";
(function () {
  const announced = document.getElementById("announced");

  function announce(text) {
    announced.textContent = "";
    setTimeout(function () { announced.textContent = text; }, 50);
  }

  function copySelected(source) {
    if (source.select) {
      source.select();
    } else {
      const range = document.createRange();
      range.selectNodeContents(source);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
    }
    return document.execCommand("copy");
  }

  async function copy(button) {
    const source = button.closest(".code").querySelector("code, textarea");
    const label = button.textContent;
    let copied = false;
    try {
      await navigator.clipboard.writeText(source.value || source.textContent);
      copied = true;
    } catch (error) {
      copied = copySelected(source);
    }
    button.focus();
    announce(copied ? "copied" : "not copied: select the text and copy it");
    button.textContent = copied ? "Copied" : "Select and copy";
    button.disabled = false;
    setTimeout(function () { button.textContent = label; }, 2000);
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", function () { copy(button); });
  }

  const form = document.querySelector(".filters");
  if (form) {
    const findings = Array.from(document.querySelectorAll(".finding"));
    const apply = function () {
      const boxes = Array.from(form.querySelectorAll("input"));
      const severities = boxes.filter(function (box) { return box.checked; }).map(function (box) { return box.value; });
      const code = document.getElementById("code-filter").value;
      let shown = 0;
      for (const finding of findings) {
        const isShown = severities.includes(finding.dataset.severity) && (!code || finding.dataset.code === code);
        finding.hidden = !isShown;
        shown += isShown ? 1 : 0;
      }
      document.getElementById("shown").textContent = shown + " of " + findings.length + " shown";
    };
    form.hidden = false;
    form.addEventListener("change", apply);
    form.addEventListener("submit", function (event) { event.preventDefault(); });
    apply();
  }

  let closed = [];
  addEventListener("beforeprint", function () {
    closed = Array.from(document.querySelectorAll("details:not([open])"));
    for (const details of closed) { details.open = true; }
  });
  addEventListener("afterprint", function () {
    for (const details of closed) { details.open = false; }
  });
})();
