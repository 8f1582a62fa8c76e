// Draws a scene on a canvas. The ledger segment of a launch is the last part of it: what came before was covered.
const GUTTER = 68;
const NARROW = 560;
// cividis (Nuñez, Anderton and Renslow 2018): even steps in lightness for every colour vision
const RAMP = ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"];

function rampColour(share) {
  const at = clamp(share, 0, 1) * (RAMP.length - 1);
  const place = Math.min(Math.floor(at), RAMP.length - 2);
  const part = (colour, channel) => Number.parseInt(colour.slice(1 + 2 * channel, 3 + 2 * channel), 16);
  const mixed = [0, 1, 2].map((channel) => Math.round(part(RAMP[place], channel) + (at - place) * (part(RAMP[place + 1], channel) - part(RAMP[place], channel))));
  return `rgb(${mixed.join(" ")})`;
}

function luminance(colour) {
  const [r, g, b] = colour.startsWith("#") ? [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16)) : colour.match(/\d+/g).map(Number);
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}

class Painter {
  constructor(canvas, scene) {
    Object.assign(this, { canvas, scene, context: canvas.getContext("2d") });
    this.widths = new Map();
    this.readTheme();
  }

  readTheme() {
    this.colours = Object.fromEntries(["card", "raised", "line", "line-strong", "ink", "soft", "faint", "below", "clear"].map((name) => [name, themeColour(name)]));
    this.fills = new Map(Object.keys(REPORT.palette.categories).map((name) => [name, fillOf(categoryInk(name))]));
  }

  resize(width) {
    const ratio = Math.max(devicePixelRatio || 1, printing ? 2 : 1);
    this.width = width;
    this.gutter = width < NARROW ? 0 : GUTTER;
    const [w, h] = [Math.round(width * ratio), Math.round(this.scene.height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) Object.assign(this.canvas, { width: w, height: h });
    this.canvas.style.height = `${this.scene.height}px`;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  x(time, view) {
    return this.gutter + ((time - view.begin) / (view.end - view.begin)) * (this.width - this.gutter);
  }

  time(x, view) {
    return view.begin + ((x - this.gutter) / (this.width - this.gutter)) * (view.end - view.begin);
  }

  // state: {view, selected, hovered, hidden: Set of categories, site, colour: "category" | "class"}
  draw(state) {
    const { context: c, scene, width } = this;
    c.fillStyle = this.colours.card;
    c.fillRect(0, 0, width, scene.height);
    this.ruler(state.view);
    for (const track of scene.tracks) this[track.kind](track, state);
    this.gutterLabels();
    this.selection(state);
  }

  fill(i, state) {
    if (state.colour === "class") {
      const share = this.scene.exclusiveRate(i) / this.scene.classRate(this.scene.line.weight_bytes[i]);
      return known(share) ? rampColour(share) : this.colours.line;
    }
    return this.fills.get(this.scene.category[i]);
  }

  alpha(i, state) {
    if (state.hidden.has(this.scene.category[i])) return 0.1;
    return state.site !== null && this.scene.run.sites[this.scene.line.site[i]].site !== state.site ? 0.16 : 1;
  }

  // launches on a lane are parted by a pixel; the ledger has no gap but idle
  box(x0, x1, y, height, parted = true) {
    const left = Math.max(Math.floor(x0), this.gutter);
    const right = Math.min(Math.max(Math.floor(x1), left + 1), this.width);
    if (right > left) this.context.fillRect(left, y, right - left - (parted && right - left > 4 ? 1 : 0), height);
    return [left, right];
  }

  ruler(view) {
    const { context: c } = this;
    const scale = view.end - view.begin > 2e6 ? [1e6, "ms"] : view.end - view.begin > 2e3 ? [1e3, "µs"] : [1, "ns"];
    const ticks = niceTicks(view.begin / scale[0], view.end / scale[0], (this.width - this.gutter) / 90);
    const digits = Math.max(0, -Math.floor(Math.log10((ticks[1] ?? 1) - (ticks[0] ?? 0) || 1) + 1e-9));
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "left";
    for (const tick of ticks) {
      const x = Math.round(this.x(tick * scale[0], view)) + 0.5;
      c.strokeStyle = this.colours.line;
      c.beginPath();
      c.moveTo(x, 4);
      c.lineTo(x, this.scene.tracks.at(-1).y - 6);
      c.stroke();
      c.fillStyle = this.colours.faint;
      if (x + 30 < this.width) c.fillText(`${fixed(tick, digits)} ${scale[1]}`, x + 4, 11);
    }
  }

  layers(track, { view }) {
    const { context: c } = this;
    c.font = "10px system-ui, sans-serif";
    c.textAlign = "center";
    for (const [place, { layer, begin, end }] of this.scene.layers.entries()) {
      if (end < view.begin || begin > view.end) continue;
      c.fillStyle = place % 2 ? this.colours.raised : this.colours.line;
      const [left, right] = this.box(this.x(begin, view), this.x(end, view), track.y, track.height);
      const text = right - left > 46 ? `blk.${layer}` : `${layer}`;
      c.fillStyle = this.colours.soft;
      if (right - left > 16) c.fillText(text, (left + right) / 2, track.y + track.height / 2 + 0.5);
    }
    c.textAlign = "left";
  }

  lane(track, state) {
    const { context: c, scene } = this;
    let drawn = -1; // launches that share a pixel with the one before are not seen
    for (const i of scene.within(track.items, state.view)) {
      const reach = this.x(scene.end[i], state.view);
      if (Math.floor(reach) <= drawn) continue;
      drawn = Math.floor(reach);
      const fill = this.fill(i, state);
      c.globalAlpha = this.alpha(i, state);
      c.fillStyle = fill;
      const [left, right] = this.box(this.x(scene.line.start_ns[i], state.view), reach, track.y, track.height);
      if (right - left > 30) this.label(i, fill, left, right, track);
      c.globalAlpha = 1;
    }
  }

  label(i, fill, left, right, track) {
    const { context: c, scene } = this;
    c.font = "11px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
    c.textAlign = "left";
    c.fillStyle = luminance(fill) > 0.5 ? "#10151b" : "#ffffff";
    const name = scene.run.sites[scene.line.site[i]].site;
    const room = Math.floor((right - left - 9) / 6.7);
    const text = name.length <= room ? name : room > 2 ? `${name.slice(0, room - 1)}…` : "";
    c.fillText(text, left + 4, track.y + track.height / 2 + 0.5);
  }

  copies(track, { view }) {
    this.context.fillStyle = this.fills.get("copies");
    for (const [start, length] of this.scene.line.copies_ns) {
      if (start + length >= view.begin && start <= view.end) this.box(this.x(start, view), this.x(start + length, view), track.y, track.height);
    }
  }

  ledger(track, state, view = state.view) {
    const { context: c, scene } = this;
    let drawn = -1;
    for (const i of scene.within(scene.owned, view)) {
      const reach = this.x(scene.end[i], view);
      if (Math.floor(reach) <= drawn) continue;
      drawn = Math.floor(reach);
      c.globalAlpha = this.alpha(i, state);
      c.fillStyle = this.fill(i, state);
      this.box(this.x(scene.end[i] - scene.line.exclusive_ns[i], view), reach, track.y, track.height, false);
    }
    c.globalAlpha = 1;
    for (const [start, length] of scene.line.idle_ns) {
      if (start + length < view.begin || start > view.end) continue;
      this.idle(this.x(start, view), this.x(start + length, view), track);
    }
  }

  idle(x0, x1, track) {
    const { context: c } = this;
    if (x1 - x0 < 1.5) {
      // a gap narrower than a pixel tints it by its share, or a step of many gaps would look idle throughout
      if (x0 < this.gutter) return;
      c.globalAlpha = Math.min(x1 - x0, 1);
      c.fillStyle = this.colours.card;
      c.fillRect(Math.floor(x0), track.y, 1, track.height);
      c.globalAlpha = 1;
      return;
    }
    c.fillStyle = this.colours.card;
    const [left, right] = this.box(x0, x1, track.y, track.height, false);
    c.save();
    c.beginPath();
    c.rect(left, track.y, right - left, track.height);
    c.clip();
    c.strokeStyle = this.colours.below;
    c.beginPath();
    for (let x = left - track.height; x < right; x += 5) {
      c.moveTo(x, track.y + track.height);
      c.lineTo(x + track.height, track.y);
    }
    c.stroke();
    c.restore();
  }

  // each pixel column as high as the most launches in flight in it
  depth(track, { view }) {
    const { context: c, scene } = this;
    const unit = track.height / scene.deepest;
    c.fillStyle = this.colours["line-strong"];
    let column = this.gutter;
    let most = 0;
    const first = Math.max(lowerBound(scene.depthTimes, view.begin) - 1, 0);
    let depth = scene.depth[first];
    const fill = (from, to, high) => c.fillRect(from, track.y + track.height - high * unit, to - from, high * unit);
    for (let i = first; i < scene.depth.length; i++) {
      const x = clamp(Math.floor(this.x(scene.depthTimes[i], view)), this.gutter, this.width);
      if (x > column) {
        fill(column, column + 1, Math.max(most, depth));
        fill(column + 1, x, depth);
        [column, most] = [x, depth];
      }
      depth = scene.depth[i];
      most = Math.max(most, depth);
      if (scene.depthTimes[i] > view.end) break;
    }
  }

  rates(track, state) {
    const { context: c, scene } = this;
    const top = scene.topRate;
    const y = (gbps) => track.y + track.height - Math.min(gbps / top, 1) * track.height;
    for (const i of scene.within(track.items, state.view)) {
      const gbps = scene.rate(i);
      const [x0, x1] = [this.x(scene.line.start_ns[i], state.view), this.x(scene.end[i], state.view)];
      c.globalAlpha = this.alpha(i, state);
      c.fillStyle = this.fill(i, state);
      const [left, right] = this.box(x0, x1, y(gbps), track.y + track.height - y(gbps));
      const limit = scene.classRate(scene.line.weight_bytes[i]);
      if (known(limit)) {
        c.fillStyle = this.colours.clear;
        c.fillRect(left, y(limit) - 1, right - left, 1.5);
      }
      c.globalAlpha = 1;
    }
    c.fillStyle = this.colours.faint;
    c.fillRect(this.gutter, track.y + track.height, this.width - this.gutter, 1);
  }

  overview(track, state) {
    const { context: c, scene } = this;
    const whole = { begin: 0, end: scene.span };
    this.ledger(track, { ...state, view: whole }, whole);
    const [left, right] = [this.x(state.view.begin, whole), Math.max(this.x(state.view.end, whole), this.x(state.view.begin, whole) + 2)];
    c.globalAlpha = 0.72;
    c.fillStyle = this.colours.card;
    c.fillRect(this.gutter, track.y, left - this.gutter, track.height);
    c.fillRect(right, track.y, this.width - right, track.height);
    c.globalAlpha = 1;
    c.strokeStyle = this.colours.ink;
    c.lineWidth = 1.5;
    c.strokeRect(left + 0.75, track.y - 1.5, Math.max(right - left - 1.5, 2), track.height + 3);
    c.lineWidth = 1;
  }

  gutterLabels() {
    const { context: c, scene } = this;
    if (!this.gutter) return;
    c.fillStyle = this.colours.card;
    c.fillRect(0, 0, this.gutter - 4, scene.height);
    c.font = "11px system-ui, sans-serif";
    c.fillStyle = this.colours.soft;
    c.textAlign = "right";
    for (const track of scene.tracks) {
      const text = track.kind === "depth" ? `≤ ${scene.deepest} in flight` : track.label;
      c.fillText(text, this.gutter - 10, track.y + track.height / 2 + 0.5, this.gutter - 12);
      if (track.kind !== "rates") continue;
      c.fillStyle = this.colours.faint;
      c.fillText(fixed(scene.topRate, 0), this.gutter - 10, track.y + 5);
      c.fillText("0", this.gutter - 10, track.y + track.height - 3);
      c.fillStyle = this.colours.soft;
    }
    c.textAlign = "left";
  }

  selection(state) {
    for (const [i, width] of [[state.hovered, 1.5], [state.selected, 2.5]]) {
      if (i < 0) continue;
      const { context: c, scene } = this;
      const track = scene.laneOf(i);
      const [left, right] = [this.x(scene.line.start_ns[i], state.view), this.x(scene.end[i], state.view)];
      if (right < this.gutter || left > this.width) continue;
      const from = Math.max(left, this.gutter);
      c.strokeStyle = this.colours.ink;
      c.lineWidth = width;
      c.strokeRect(from - 1, track.y - 1, Math.max(Math.min(right, this.width) - from, 2) + 2, track.height + 2);
      c.lineWidth = 1;
    }
  }
}
