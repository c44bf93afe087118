// Conveniences over pages that work without them: copying, sliders, answers without a reload.
"use strict";

const status = (text) => { document.getElementById("status").textContent = text; };

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = document.createElement("textarea");
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
    button.focus();
  }
  const said = button.textContent;
  button.textContent = "Copied";
  status("Copied");
  setTimeout(() => { button.textContent = said; }, 1500);
}

function showCopies(root) {
  for (const button of root.querySelectorAll("[data-copy], [data-copy-link]")) {
    button.hidden = false;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy], [data-copy-link]");
  if (!button) return;
  const from = button.dataset.copy;
  copy(from ? document.getElementById(from).textContent : location.href, button);
});

// A slider stands for the number field beside it; only the field is sent.
function toShare(slider, value) {
  const low = Number(slider.dataset.low), high = Number(slider.dataset.high);
  const share = slider.dataset.log === "1"
    ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return Math.round(Math.min(Math.max(share, 0), 1) * 100);
}

function fromShare(slider) {
  const low = Number(slider.dataset.low), high = Number(slider.dataset.high);
  const share = Number(slider.value) / 100;
  const value = slider.dataset.log === "1"
    ? low * (high / low) ** share : low + (high - low) * share;
  return Number(value.toPrecision(2));
}

let waiting = 0;
let asked = 0;

async function refresh(form) {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value.trim()) query.append(name, value.trim());
  const url = `${form.getAttribute("action")}?${query}`;
  const results = document.getElementById("results");
  const mine = ++asked;
  results.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(url, { headers: { accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (mine !== asked) return;
    const fresh = page.getElementById("results");
    if (!fresh) throw new Error("another page");
    results.replaceChildren(...fresh.childNodes);
    document.title = page.title;
    document.querySelector(".top nav").replaceWith(page.querySelector(".top nav"));
    history.replaceState(null, "", url);
    showCopies(results);
    const head = results.querySelector("h2");
    status(head ? head.textContent.replace(/\s+/g, " ").trim() : "Answered");
  } catch {
    location.assign(url);
  } finally {
    if (mine === asked) results.removeAttribute("aria-busy");
  }
}

for (const slider of document.querySelectorAll(".slider")) {
  const field = document.getElementById(slider.dataset.for);
  const sync = () => {
    const value = Number(field.value || slider.dataset.default);
    slider.value = Number.isFinite(value) && value >= 0 ? toShare(slider, value || Number(slider.dataset.low)) : 0;
    slider.setAttribute("aria-valuetext", field.value || `${slider.dataset.default} (the site's)`);
  };
  slider.hidden = false;
  sync();
  field.addEventListener("input", sync);
  slider.addEventListener("input", () => {
    field.value = String(fromShare(slider));
    slider.setAttribute("aria-valuetext", field.value);
    clearTimeout(waiting);
    const form = field.form;
    if (form.checkValidity()) waiting = setTimeout(() => refresh(form), 350);
  });
}

for (const form of document.querySelectorAll("form[data-auto]")) {
  form.addEventListener("change", () => form.requestSubmit());
}

// Empty fields stay out of the address, so that a shared link is short.
for (const form of document.querySelectorAll("form[method=get]")) {
  form.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) if (!String(value).trim()) event.formData.delete(name);
  });
}

// On a narrow screen the answer comes first; the form folds away above it.
for (const fold of document.querySelectorAll("[data-fold]")) {
  const narrow = matchMedia("(max-width: 860px)");
  const settle = () => { fold.open = !narrow.matches; };
  document.documentElement.classList.add("foldable");
  narrow.addEventListener("change", settle);
  settle();
}

showCopies(document);
