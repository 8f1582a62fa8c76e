// What a timeline shows, without drawing it: launches, tracks, layers, and the arithmetic of the view. Times in ns.
const LANE = 24;
const GAP = 3;
const RULER = 24;
const MIN_VIEW = 400;
const MAX_LANES = 24;

class Scene {
  constructor(run) {
    const line = run.timeline;
    Object.assign(this, { run, line, span: Math.max(line.span_ns, 1), count: line.start_ns.length });
    this.category = line.site.map((site) => run.sites[site].category);
    this.end = line.start_ns.map((start, i) => start + line.duration_ns[i]);
    this.classByBytes = run.class_curve;
    this.layers = this.findLayers();
    this.tracks = this.layOut();
    this.depth = this.findDepth();
    // the widest launch before each one bounds how far back a search has to look
    this.latest = [];
    this.end.forEach((end, i) => this.latest.push(Math.max(end, this.latest[i - 1] ?? 0)));
this.topRate = line.start_ns.reduce((most, _, i) => (this.rate(i) > most ? this.rate(i) : most), run.census.device.peak_gbps ?? 0) || 1;
  }

  // bytes / duration in GB/s, NaN where a launch streams no known weights
  rate(i) {
    const count = this.line.weight_bytes[i];
    return count !== null && this.line.duration_ns[i] > 0 ? count / this.line.duration_ns[i] : NaN;
  }

  exclusiveRate(i) {
    const count = this.line.weight_bytes[i];
    return count !== null && this.line.exclusive_ns[i] > 0 ? count / this.line.exclusive_ns[i] : NaN;
  }

  classRate(count) {
    const curve = this.classByBytes;
    if (!curve || !known(count)) return NaN;
    return "bw_gbps" in curve ? count / (curve.t0_us * 1e3 + count / curve.bw_gbps) : (curve.lo_gbps + curve.hi_gbps) / 2;
  }

  // a layer lasts from its first launch to the first of the next one; launches outside layers end the last
  findLayers() {
    const found = [];
    this.line.layer.forEach((layer, i) => {
      if (layer < 0 || found.some((one) => one.layer === layer)) return;
      if (found.length) found.at(-1).end = this.line.start_ns[i];
      found.push({ layer, begin: this.line.start_ns[i], end: this.end[i] });
    });
    if (found.length) {
      const last = found.at(-1);
      this.line.layer.forEach((layer, i) => { if (layer === last.layer) last.end = Math.max(last.end, this.end[i]); });
    }
    return found;
  }

  layOut() {
    const tracks = [];
    let y = RULER;
    const add = (kind, label, height, more = {}) => {
      tracks.push({ kind, label, y, height, ...more });
      y += height + GAP;
    };
    if (this.layers.length) add("layers", "layer", 15);
    this.line.streams.forEach(({ stream, lanes }, place) => {
      const kept = Math.min(lanes, MAX_LANES);
      for (let lane = 0; lane < kept; lane++) add("lane", lane ? "" : `stream ${stream}`, LANE, { stream: place, lane, last: lane === kept - 1 });
    });
    if (this.line.copies_ns.length) add("copies", "copies", 12);
    add("ledger", "ledger", 18);
    add("depth", "in flight", 24);
    if (this.line.weight_bytes.some((count) => count !== null)) add("rates", "GB/s", 52);
    y += 4;
    add("overview", "step", 26);
    this.height = y;
    return tracks;
  }

  // steps of (time, launches in flight)
  findDepth() {
    const events = [];
    this.line.start_ns.forEach((start, i) => { if (this.end[i] > start) events.push([start, 1], [this.end[i], -1]); });
    events.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    const steps = [];
    let depth = 0;
    for (const [time, change] of events) {
      depth += change;
      if (steps.length && steps.at(-1)[0] === time) steps.at(-1)[1] = depth;
      else steps.push([time, depth]);
    }
    this.deepest = steps.reduce((most, step) => Math.max(most, step[1]), 1);
    return steps;
  }

  // launches [first, last) that can touch the view
  visible({ begin, end }) {
    const before = (values, limit) => {
      let low = 0;
      let high = values.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (values[middle] < limit) low = middle + 1;
        else high = middle;
      }
      return low;
    };
    return [before(this.latest, begin), before(this.line.start_ns, end)];
  }

  laneOf(i) {
    return this.tracks.find((track) => track.kind === "lane" && track.stream === this.line.stream[i] && track.lane === Math.min(this.line.lane[i], MAX_LANES - 1));
  }

  // the launch drawn at a time on a track, -1 for none; `slack` ns to either side count as a hit
  launchAt(track, time, slack) {
    let nearest = -1;
    let distance = slack;
    const [first, last] = this.visible({ begin: time - slack, end: time + slack + 1 });
    for (let i = first; i < last; i++) {
      if (track.kind === "lane" && this.laneOf(i) !== track) continue;
      if (track.kind === "rates" && !known(this.rate(i))) continue;
      const own = track.kind === "ledger" || track.kind === "overview";
      const begin = own ? this.end[i] - this.line.exclusive_ns[i] : this.line.start_ns[i];
      if (own && !this.line.exclusive_ns[i]) continue;
      const off = Math.max(begin - time, time - this.end[i], 0);
      if (off < distance || (off === 0 && distance === 0)) [nearest, distance] = [i, off];
      if (off === 0) return i;
    }
    return nearest;
  }

  bounded(begin, width) {
    const size = clamp(width, Math.min(MIN_VIEW, this.span), this.span);
    const start = clamp(begin, 0, this.span - size);
    return { begin: start, end: start + size };
  }

  zoomed({ begin, end }, factor, at) {
    const width = clamp((end - begin) * factor, Math.min(MIN_VIEW, this.span), this.span);
    return this.bounded(at - ((at - begin) / (end - begin)) * width, width);
  }

  panned({ begin, end }, by) {
    return this.bounded(begin + by, end - begin);
  }

  around(begin, end, share = 0.5) {
    const room = (end - begin) * share;
    return this.bounded(begin - room, end - begin + 2 * room);
  }

  // the view moved by as little as shows the launch
  including(view, i) {
    const [begin, end] = [this.line.start_ns[i], this.end[i]];
    if (begin >= view.begin && end <= view.end) return view;
    return this.bounded((begin + end - (view.end - view.begin)) / 2, view.end - view.begin);
  }
}
