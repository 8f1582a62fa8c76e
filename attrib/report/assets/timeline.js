// A timeline under the hand: pointer, wheel and keys move the view and the selection.
const KEYS = "← → step through launches, ↑ ↓ go to the same site before and after, Shift + ← → pan, + − zoom, Enter zooms to the launch, 0 shows the whole step, Home and End go to the first and last launch, Escape clears.";
const CLICK = 4;
const ZOOM = 1.5;

class Timeline {
  constructor(host, run) {
    this.run = run;
    this.scene = new Scene(run);
    this.whole = { begin: 0, end: this.scene.span };
    this.state = { view: this.whole, selected: -1, hovered: -1, hidden: new Set(), site: null, colour: "category" };
    this.followers = [];
    this.build(host);
    this.painter = new Painter(this.canvas, this.scene);
    this.listen();
    new ResizeObserver(() => this.fit()).observe(this.stage);
    onTheme(() => {
      this.painter.readTheme();
      this.fit();
      if (printing) this.paint();
    });
    this.fit();
    this.show();
  }

  build(host) {
    const line = this.run.timeline;
    const help = uniqueId("timeline-keys");
    const button = (name, label, act) => el("button", { type: "button", class: "button", "data-act": name, "aria-label": label, title: label, on: { click: act } }, { in: "+", out: "−", all: "Whole step" }[name]);
    this.colourBox = el("select", { class: "button", "aria-label": "Colour launches by", on: { change: (event) => { this.state.colour = event.target.value; this.draw(); } } },
      el("option", { value: "category" }, "Colour: category"), el("option", { value: "class" }, "Colour: share of class"));
    this.siteChip = el("button", { type: "button", class: "button", hidden: "", on: { click: () => this.highlight(null) } });
    this.info = el("span", { class: "count" });
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.tip = el("div", { class: "tip", hidden: "" });
    this.hint = el("div", { class: "hint" }, "Ctrl + wheel zooms, drag pans");
    this.stage = el("div", {
      class: "stage", tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-describedby": help,
      "aria-label": `Timeline of ${plural(this.scene.count, ...launchWord(this.run))} in ${duration(this.scene.span)}`,
    }, this.canvas, this.tip, this.hint);
    this.panel = el("div", { class: "launch", "aria-live": "polite" });
    host.append(
      el("div", { class: "toolbar" }, button("out", "Zoom out", () => this.zoom(ZOOM)), button("in", "Zoom in", () => this.zoom(1 / ZOOM)), button("all", "Show the whole step", () => this.setView(this.whole)),
        this.run.class_curve ? this.colourBox : null, this.siteChip, el("span", { class: "gap" }), this.info),
      this.legend(), this.stage, this.panel, el("p", { class: "visually-hidden", id: help, text: KEYS }),
    );
    const notes = [`Step ${line.step + 1} of ${line.steps}: its span, ${duration(line.span_ns)}, is nearest the median.`];
    if (line.omitted) notes.push(`Only its first ${fixed(this.scene.count, 0)} launches are shown; ${fixed(line.omitted, 0)} are left out.`);
    notes.push("The ledger gives each moment to the launch that was not yet covered; hatched gaps are idle. GB/s bars are bytes / duration; the line over a bar is the class of its size.");
    host.append(el("p", { class: "remark", text: notes.join(" ") }));
  }

  legend() {
    const time = new Map();
    const line = this.run.timeline;
    this.scene.category.forEach((name, i) => time.set(name, (time.get(name) ?? 0) + line.exclusive_ns[i]));
    const idle = line.idle_ns.reduce((sum, [, length]) => sum + length, 0);
    const names = Object.keys(REPORT.palette.categories).filter((name) => time.has(name));
    const value = (ns) => el("b", { text: `${fixed(ns / 1e6, 3)} ms` });
    return el("div", { class: "legend", role: "group", "aria-label": "Show or dim categories" },
      names.map((name) => el("button", {
        type: "button", "aria-pressed": "true", "data-category": name,
        on: { click: (event) => this.dim(name, event.currentTarget) },
      }, swatch(name), name, value(time.get(name)))),
      el("button", { type: "button", disabled: "", "aria-pressed": "true" }, swatch("idle"), "idle", value(idle)));
  }

  dim(name, button) {
    const { hidden } = this.state;
    if (!hidden.delete(name)) hidden.add(name);
    button.setAttribute("aria-pressed", String(!hidden.has(name)));
    this.draw();
  }

  fit() {
    this.painter.resize(this.stage.clientWidth);
    this.draw();
  }

  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }

  paint() {
    const state = printing ? { ...this.state, view: this.whole } : this.state;
    this.painter.draw(state);
  }

  setView(view, told = false) {
    this.state.view = view;
    Object.assign(this.stage.dataset, { begin: Math.round(view.begin), end: Math.round(view.end) });
    const width = view.end - view.begin;
    this.info.textContent = width >= this.scene.span ? `whole step, ${duration(this.scene.span)}` : `${duration(view.begin)} – ${duration(view.end)} (${duration(width)})`;
    this.draw();
    if (!told) this.followers.forEach((other) => other.setView(other.scene.bounded(view.begin, width), true));
  }

  zoom(factor, at = null) {
    const { view, selected } = this.state;
    const { scene } = this;
    const middle = selected >= 0 ? (scene.line.start_ns[selected] + scene.end[selected]) / 2 : NaN;
    const centre = at ?? (middle >= view.begin && middle <= view.end ? middle : (view.begin + view.end) / 2);
    this.setView(scene.zoomed(view, factor, centre));
  }

  select(i) {
    this.state.selected = i;
    this.stage.dataset.selected = i;
    if (i >= 0) this.setView(this.scene.including(this.state.view, i));
    this.show();
    this.draw();
  }

  highlight(site) {
    this.state.site = site;
    this.siteChip.hidden = site === null;
    this.siteChip.textContent = site === null ? "" : `Only ${site} ✕`;
    this.stage.dataset.site = site ?? "";
    this.draw();
  }

  showSite(site) {
    this.highlight(site);
    const i = this.run.timeline.site.findIndex((place) => this.run.sites[place].site === site);
    this.reveal();
    this.select(i);
  }

  showLayer(layer) {
    const found = this.scene.layers.find((one) => one.layer === layer);
    this.reveal();
    if (found) this.setView(this.scene.around(found.begin, found.end, 0.1));
  }

  reveal() {
    this.stage.scrollIntoView({ block: "center" });
    this.stage.focus({ preventScroll: true });
  }

  // the launch panel: what the selection is, or how to select
  show() {
    const i = this.state.selected;
    this.panel.classList.toggle("chosen", i >= 0);
    if (i < 0) {
      const keys = [["← →", "launches"], ["↑ ↓", "same site"], ["Shift ← →", "pan"], ["+ −", "zoom"], ["Enter", "zoom to launch"], ["0", "whole step"], ["Esc", "clear"]];
      this.panel.replaceChildren(el("p", { class: "keys" }, "Click a launch, or focus the timeline and use ", ...keys.flatMap(([key, what]) => [el("kbd", { text: key }), ` ${what}  `])));
      return;
    }
    const { line, end } = this.scene;
    const { site, category } = this.run.sites[line.site[i]];
    const variant = this.run.variants[line.variant[i]];
    const size = (sizes) => (sizes.some((one) => one < 0) ? "unknown" : sizes.join(" × "));
    const facts = [
      [launchWord(this.run)[0], `${i + 1} of ${this.scene.count}`], ["layer", line.layer[i] < 0 ? UNKNOWN : String(line.layer[i])], ["stream", String(line.streams[line.stream[i]].stream)],
      ["start", duration(line.start_ns[i])], ["duration", duration(line.duration_ns[i])], ["exclusive", duration(line.exclusive_ns[i])],
      ...(known(line.wait_ns?.[i]) ? [["waiting, mean", duration(line.wait_ns[i])]] : []), ["overlapped", duration(line.duration_ns[i] - line.exclusive_ns[i])], ["weights", bytes(line.weight_bytes[i])], ["KV", bytes(line.kv_bytes[i])],
      ["rate, exclusive", this.gbps(this.scene.exclusiveRate(i))], ["rate, duration", this.gbps(this.scene.rate(i))], ["class of this size", this.gbps(this.scene.classRate(line.weight_bytes[i]))],
      ["grid", size(variant.grid)], ["block", `${size(variant.block)} threads`], ["end", duration(end[i])],
    ];
    this.panel.replaceChildren(
      el("p", { class: "title" }, swatch(category), el("span", { text: line.layer[i] < 0 ? site : `blk.${line.layer[i]}.${site}` })),
      el("dl", {}, facts.map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value })))),
      el("p", { class: "kernel" }, el("code", { text: variant.kernel })),
    );
  }

  gbps(value) {
    return known(value) ? `${rate(value)} GB/s` : UNKNOWN;
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const track = this.scene.tracks.find((one) => y >= one.y - 1 && y <= one.y + one.height + GAP - 1);
    return { x, y, track, time: this.painter.time(x, this.state.view) };
  }

  hit({ track, time, x }) {
    if (!track || !["lane", "ledger", "rates"].includes(track.kind) || x < this.painter.gutter) return -1;
    const slack = (3 * (this.state.view.end - this.state.view.begin)) / (this.painter.width - this.painter.gutter);
    return this.scene.launchAt(track, time, slack);
  }

  listen() {
    const { stage } = this;
    stage.addEventListener("pointerdown", (event) => this.press(event));
    stage.addEventListener("pointermove", (event) => this.move(event));
    stage.addEventListener("pointerup", (event) => this.release(event));
    stage.addEventListener("pointercancel", () => this.drop());
    stage.addEventListener("pointerleave", () => this.hover(-1));
    stage.addEventListener("dblclick", (event) => {
      const i = this.hit(this.point(event));
      if (i >= 0) this.setView(this.scene.around(this.scene.line.start_ns[i], this.scene.end[i]));
    });
    stage.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    stage.addEventListener("keydown", (event) => this.key(event));
  }

  press(event) {
    if (event.button) return;
    const point = this.point(event);
    this.drag = { x: point.x, view: this.state.view, overview: point.track?.kind === "overview", moved: false };
    this.stage.setPointerCapture(event.pointerId);
    if (this.drag.overview) this.centre(point.x);
  }

  centre(x) {
    const { begin, end } = this.state.view;
    this.setView(this.scene.bounded(this.painter.time(x, this.whole) - (end - begin) / 2, end - begin));
  }

  move(event) {
    const point = this.point(event);
    if (!this.drag) {
      this.hover(this.hit(point), point);
      return;
    }
    if (Math.abs(point.x - this.drag.x) > CLICK) this.drag.moved = true;
    if (this.drag.overview) this.centre(point.x);
    else if (this.drag.moved) {
      this.stage.classList.add("dragging");
      this.hover(-1);
      const { view, x } = this.drag;
      this.setView(this.scene.panned(view, ((x - point.x) * (view.end - view.begin)) / (this.painter.width - this.painter.gutter)));
    }
  }

  release(event) {
    if (this.drag && !this.drag.moved && !this.drag.overview) this.select(this.hit(this.point(event)));
    this.drop();
  }

  drop() {
    this.drag = null;
    this.stage.classList.remove("dragging");
  }

  hover(i, point = null) {
    if (this.state.hovered !== i) {
      this.state.hovered = i;
      this.draw();
    }
    this.tip.hidden = i < 0;
    if (i < 0) return;
    const { line } = this.scene;
    const { site, category } = this.run.sites[line.site[i]];
    const rates = known(this.scene.rate(i)) ? ` · ${rate(this.scene.exclusiveRate(i))} GB/s (${rate(this.scene.rate(i))} by duration)` : "";
    this.tip.replaceChildren(el("b", { text: line.layer[i] < 0 ? site : `blk.${line.layer[i]}.${site}` }), el("div", { text: `${category} · at ${duration(line.start_ns[i])}` }),
      el("div", { text: `${duration(line.duration_ns[i])} long, ${duration(line.exclusive_ns[i])} exclusive${rates}` }));
    const left = clamp(point.x + 14, 4, Math.max(this.painter.width - this.tip.offsetWidth - 4, 4));
    const top = point.y + 16 + this.tip.offsetHeight > this.scene.height ? Math.max(point.y - this.tip.offsetHeight - 10, 2) : point.y + 16;
    this.tip.style.translate = `${left}px ${top}px`;
  }

  // a plain wheel scrolls the page; Ctrl or ⌘ zooms, sideways pans
  wheel(event) {
    const { view } = this.state;
    const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(clamp(event.deltaY, -120, 120) * 0.004), this.point(event).time);
    } else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
      event.preventDefault();
      this.setView(this.scene.panned(view, (sideways * (view.end - view.begin)) / this.painter.width));
    } else {
      this.hint.classList.add("shown");
      clearTimeout(this.hintTimer);
      this.hintTimer = setTimeout(() => this.hint.classList.remove("shown"), 900);
    }
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { view, selected } = this.state;
    const { scene } = this;
    const last = scene.count - 1;
    const pan = (share) => this.setView(scene.panned(view, share * (view.end - view.begin)));
    const step = (by) => {
      const unseen = selected < 0 ? scene.visible(view)[by > 0 ? 0 : 1] - (by > 0 ? 0 : 1) : selected + by;
      this.select(clamp(unseen, 0, last));
    };
    const keys = {
      ArrowRight: () => (event.shiftKey ? pan(0.2) : step(1)),
      ArrowLeft: () => (event.shiftKey ? pan(-0.2) : step(-1)),
      ArrowDown: () => this.same(1),
      ArrowUp: () => this.same(-1),
      "+": () => this.zoom(1 / ZOOM),
      "=": () => this.zoom(1 / ZOOM),
      "-": () => this.zoom(ZOOM),
      _: () => this.zoom(ZOOM),
      0: () => this.setView(this.whole),
      Home: () => this.select(0),
      End: () => this.select(last),
      Enter: () => { if (selected >= 0) this.setView(scene.around(scene.line.start_ns[selected], scene.end[selected], 2)); },
      Escape: () => { this.highlight(null); this.select(-1); },
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }

  same(by) {
    const { selected } = this.state;
    const { site } = this.scene.line;
    if (selected < 0) return;
    for (let i = selected + by; i >= 0 && i < this.scene.count; i += by) {
      if (site[i] === site[selected]) {
        this.select(i);
        return;
      }
    }
  }
}
