// Light, dark or as the system says; canvases ask here for colours and are told when they change.
const THEMES = ["auto", "light", "dark"];
const THEME_KEY = "attrib-report-theme";
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const themeListeners = [];
let printing = false;

const HATCHES = {
  "": "", "//": "hatch-slash", "\\\\": "hatch-back", "..": "hatch-dots", xx: "hatch-cross", "--": "hatch-rows",
  "++": "hatch-plus", oo: "hatch-rings", "||": "hatch-bars", "**": "hatch-stars",
};

const chosenTheme = () => document.documentElement.dataset.theme ?? "auto";
const isDark = () => !printing && (chosenTheme() === "dark" || (chosenTheme() === "auto" && systemDark.matches));
const fillOf = (ink) => (isDark() ? ink.dark : ink.light);
const categoryInk = (category) => REPORT.palette.categories[category] ?? REPORT.palette.categories.other;

// style and class of an element filled with an ink, right in both themes without being drawn again
function inked(ink, idle = false) {
  return { style: { "--c": `light-dark(${ink.light}, ${ink.dark})` }, class: `fill ${idle ? "hatch-idle" : HATCHES[ink.hatch]}` };
}
const inkedCategory = (category) => inked(categoryInk(category), category === "idle");
function swatch(category) {
  const ink = inkedCategory(category);
  return el("i", { style: ink.style, class: `swatch ${ink.class}`, "aria-hidden": "true" });
}

const probe = el("span", { class: "visually-hidden", "aria-hidden": "true" });
document.body.append(probe);
function themeColour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

const onTheme = (listener) => themeListeners.push(listener);
const tellTheme = () => themeListeners.forEach((listener) => listener());

function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = `Theme: ${name}`;
  tellTheme();
}

function startTheme() {
  const button = document.getElementById("theme");
  let stored = null;
  try {
    stored = localStorage.getItem(THEME_KEY);
  } catch {
    stored = null; // storage may be forbidden to files
  }
  button.hidden = false;
  setTheme(THEMES.includes(stored) ? stored : "auto");
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length];
    setTheme(next);
    try {
      localStorage.setItem(THEME_KEY, next);
    } catch {
      toast("The theme is not remembered here");
    }
  });
  systemDark.addEventListener("change", tellTheme);
  // paper is light; canvases are drawn again before the page is
  let onScreen = "auto";
  addEventListener("beforeprint", () => {
    onScreen = chosenTheme();
    printing = true;
    setTheme("light");
  });
  addEventListener("afterprint", () => {
    printing = false;
    setTheme(onScreen);
  });
}
