// The document the page was made of, and helpers to build elements. Text is only ever set as text.
const REPORT = JSON.parse(document.getElementById("report-data").textContent);

function put(element, properties) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key === "class") element.setAttribute("class", value);
    else if (key === "style") for (const [name, v] of Object.entries(value)) element.style.setProperty(name, v);
    else if (key === "on") for (const [name, handler] of Object.entries(value)) element.addEventListener(name, handler);
    else if (key === "text") element.textContent = value;
    else element.setAttribute(key, value);
  }
}

function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  put(element, properties);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

let uniqueNumber = 0;
const uniqueId = (stem) => `${stem}-${++uniqueNumber}`;

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

let toastTimer = 0;
function toast(text) {
  const box = document.getElementById("toast");
  box.textContent = text;
  box.classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => box.classList.remove("shown"), 2200);
}

async function copyText(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // a page opened from a file may lack the permission; a selection can be copied all the same
    const area = el("textarea", { class: "visually-hidden" });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    if (focused instanceof HTMLElement) focused.focus();
    if (!copied) {
      toast("The browser did not allow copying");
      return;
    }
  }
  toast(`Copied ${what}`);
}
