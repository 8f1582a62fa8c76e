// What a timeline shows, without drawing it: launches, tracks, layers, and the arithmetic of the view. Times in ns.
const LANE = 24;
const GAP = 3;
const RULER = 24;
const MIN_VIEW = 400;
const MAX_LANES = 24;

// the first place of an ascending list that holds no less than `limit`
function lowerBound(values, limit) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

class Scene {
  constructor(run) {
    const line = run.timeline;
    Object.assign(this, { run, line, span: Math.max(line.span_ns, 1), count: line.start_ns.length });
    this.category = line.site.map((site) => run.sites[site].category);
    this.end = line.start_ns.map((start, i) => start + line.duration_ns[i]);
    this.classByBytes = run.class_curve;
    this.rates = line.weight_bytes.map((count, i) => (count !== null && line.duration_ns[i] > 0 ? count / line.duration_ns[i] : NaN));
    this.layers = this.findLayers();
    this.tracks = this.layOut();
    this.shareOut();
    this.findDepth();
    // the widest launch before each one bounds how far back a search has to look
    this.latest = [];
    this.end.forEach((end, i) => this.latest.push(Math.max(end, this.latest[i - 1] ?? 0)));
this.topRate = line.start_ns.reduce((most, _, i) => (this.rate(i) > most ? this.rate(i) : most), run.census.device.peak_gbps ?? 0) || 1;
  }

  // bytes / duration in GB/s, NaN where a launch streams no known weights
  rate(i) {
    return this.rates[i];
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

  // every launch to its lane; lanes beyond the last that is shown fall on that one
  shareOut() {
    const lanes = this.tracks.filter((track) => track.kind === "lane");
    const at = new Map(lanes.map((track) => [`${track.stream} ${track.lane}`, track]));
    this.laneTrack = this.line.lane.map((lane, i) => at.get(`${this.line.stream[i]} ${Math.min(lane, MAX_LANES - 1)}`));
    lanes.forEach((track) => { track.items = []; });
    this.laneTrack.forEach((track, i) => track.items.push(i));
    const streaming = this.tracks.find((track) => track.kind === "rates");
    if (streaming) streaming.items = [...this.rates.keys()].filter((i) => known(this.rates[i]));
    this.tracks.forEach((track) => { if (track.kind === "ledger") track.items = [...this.rates.keys()].filter((i) => this.line.exclusive_ns[i]); });
    this.owned = this.tracks.find((track) => track.kind === "ledger").items;
  }

  // launches among `items` that can touch the view
  *within(items, view) {
    const [first, last] = this.visible(view);
    for (let place = lowerBound(items, first); place < items.length && items[place] < last; place++) yield items[place];
  }

  // how many launches are in flight from each of `depthTimes` on
  findDepth() {
    const begins = [...this.line.start_ns];
    const ends = [...this.end].sort((a, b) => a - b);
    this.depthTimes = [];
    this.depth = [];
    let [begun, ended] = [0, 0];
    while (ended < ends.length) {
      const time = Math.min(begins[begun] ?? Infinity, ends[ended]);
      while (begins[begun] === time) begun++;
      while (ends[ended] === time) ended++;
      this.depthTimes.push(time);
      this.depth.push(begun - ended);
    }
    this.deepest = this.depth.reduce((most, depth) => Math.max(most, depth), 1);
  }

  // launches [first, last) that can touch the view
  visible({ begin, end }) {
    return [lowerBound(this.latest, begin), lowerBound(this.line.start_ns, end)];
  }

  laneOf(i) {
    return this.laneTrack[i];
  }

  // the launch drawn at a time on a track, -1 for none; `slack` ns to either side count as a hit
  launchAt(track, time, slack) {
    let nearest = -1;
    let distance = slack;
    const own = track.kind === "ledger";
    for (const i of this.within(track.items, { begin: time - slack, end: time + slack + 1 })) {
      const begin = own ? this.end[i] - this.line.exclusive_ns[i] : this.line.start_ns[i];
      const off = Math.max(begin - time, time - this.end[i], 0);
      if (off === 0) return i;
      if (off < distance) [nearest, distance] = [i, off];
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
