// Fill every part of the page, and keep the navigation at the section that is read.
startTheme();
const places = (part) => [...document.querySelectorAll(`[data-part="${part}"]`)];
const runOf = (host) => REPORT.runs[Number(host.dataset.run)];
const timelines = places("timeline").map((host) => new Timeline(host, runOf(host)));
timelines.forEach((timeline) => timeline.setView(timeline.whole, true));
places("timeline").slice(0, 1).forEach((host) => linkTimelines(timelines, host));
places("census").forEach((host) => startCensus(host, runOf(host), timelines[0]));
places("rates").forEach((host) => startRates(host, runOf(host)));
places("anatomy").forEach((host) => startAnatomy(host, runOf(host)));
places("heat").forEach((host) => startHeat(host, runOf(host), timelines[Number(host.dataset.run)]));
if (REPORT.comparison) {
  places("waterfall").forEach((host) => startWaterfall(host, REPORT.comparison));
  places("pair-anatomy").forEach((host) => startPairAnatomy(host, REPORT.comparison));
  places("pair-sites").forEach((host) => startPairSites(host, REPORT.comparison));
}

const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    links.forEach((link) => link.removeAttribute("aria-current"));
    links.get(entry.target.id)?.setAttribute("aria-current", "true");
  }
}, { rootMargin: "-15% 0px -75% 0px" });
links.forEach((_, id) => { const section = document.getElementById(id); if (section) seen.observe(section); });
document.documentElement.dataset.ready = "true";
