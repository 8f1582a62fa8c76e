// Every weight matrix against the class of its own size: bars, and rate over size with the class as a curve.
function weightRows(run) {
  const rows = rowsOf(run.rows.site).filter((row) => known(row.bytes) && known(row.gbps));
  return rows.sort((a, b) => (b.recoverable_ms ?? 0) - (a.recoverable_ms ?? 0) || b.ms_per_step - a.ms_per_step);
}

const inkOf = (row) => inked(row.straggler ? REPORT.palette.below : REPORT.palette.bar);

function rateBars(run, rows) {
  const peak = run.census.device.peak_gbps;
  const band = (row) => {
    if (!known(row.class_gbps)) return null;
    const curve = run.class_curve;
    return "lo_gbps" in curve ? [curve.lo_gbps, curve.hi_gbps] : [row.class_gbps * 0.97, row.class_gbps * 1.03];
  };
  const reach = Math.max(...rows.map((row) => Math.max(row.gbps, band(row)?.[1] ?? 0)));
  const left = (gbps) => `${(100 * gbps) / reach}%`;
  const classInk = { "--c": inked(REPORT.palette.band).style["--c"] };
  const groups = rows.map((row) => {
    const limits = band(row);
    const ink = inkOf(row);
    const marks = [el("div", { class: `bar ${ink.class}`, style: { ...ink.style, left: "0", width: left(row.gbps) } })];
    if (limits) {
      if (row.gbps < limits[0]) marks.push(el("div", { class: "lost", style: { ...ink.style, left: left(row.gbps), width: left(limits[0] - row.gbps) } }));
      marks.push(el("div", { class: "band", style: { ...classInk, left: left(limits[0]), width: left(limits[1] - limits[0]) } }), el("div", { class: "middle", style: { ...classInk, left: left(row.class_gbps) } }));
    }
    const share = known(row.class_gbps) ? `${fixed((100 * row.gbps) / row.class_gbps, 0)} % of class` : "";
    const lost = row.recoverable_ms ? el("b", { text: `${fixed(row.recoverable_ms, 3)} ms` }) : "";
    return el("div", { class: "group", title: `${row.site}: ${rate(row.gbps)} GB/s against a class of ${rate(row.class_gbps)} GB/s` },
      el("div", { class: "label" }, row.site, el("small", { text: ` ×${row.launches}` })), el("div", { class: "track" }, marks),
      el("div", { class: "value" }, el("b", { text: `${rate(row.gbps)} GB/s` }), share ? ` · ${share}` : "", lost ? " · " : "", lost));
  });
  const key = [
    [inked(REPORT.palette.below), "below the class"], [inked(REPORT.palette.bar), "in the class or above"], [inked(REPORT.palette.band), "class of that size; ms: to recover per step"],
  ].map(([ink, text]) => el("span", {}, el("i", { class: `swatch ${ink.class}`, style: ink.style }), text));
  return el("div", {},
    el("div", { class: "bars" }, groups),
    el("div", { class: "key" }, key, peak ? el("span", { text: `DRAM peak ${fixed(peak, 0)} GB/s` }) : null));
}

// names beside their dots where there is room; a name that has none is left to the dot's title
function scatterTags(dots, area) {
  const taken = dots.map(({ cx, cy }) => [cx - 6, cx + 6, cy - 6, cy + 6]);
  const tags = [];
  for (const { name, cx, cy } of dots) {
    const width = name.length * 6.4;
    const left = clamp(cx - width / 2, area.x0 + 2, area.x1 - width);
    const spots = [[left, cy + 17], [left, cy - 10], [cx + 9, cy + 4], [cx - 9 - width, cy + 4], [left, cy + 29], [left, cy - 22]];
    const box = ([tx, ty]) => [tx, tx + width, ty - 9, ty + 3];
    const spot = spots.find((one) => {
      const [a, b, c, d] = box(one);
      return a >= area.x0 && b <= area.x1 + 1 && c >= area.y1 && d <= area.y0 && !taken.some(([e, f, g, h]) => a < f && b > e && c < h && d > g);
    });
    if (!spot) continue;
    taken.push(box(spot));
    tags.push(svg("text", { class: "tag", x: spot[0], y: spot[1], text: name }));
  }
  return tags;
}

function rateScatter(host, run, rows) {
  const width = host.clientWidth || 420;
  const height = 300;
  const [x0, x1, y0, y1] = [48, width - 12, height - 40, 12];
  const sizes = rows.map((row) => row.bytes);
  const [low, high] = [Math.min(...sizes) / 1.6, Math.max(...sizes) * 1.6];
  const peak = run.census.device.peak_gbps ?? 0;
  const top = Math.max(peak, ...rows.map((row) => Math.max(row.gbps, row.class_gbps ?? 0))) * 1.06;
  const x = logarithmic(low, high, x0, x1);
  const y = linear(0, top, y0, y1);
  const parts = [];
  for (const tick of niceTicks(0, top, 5)) {
    parts.push(svg("line", { class: "grid", x1: x0, x2: x1, y1: y(tick), y2: y(tick) }), svg("text", { x: x0 - 6, y: y(tick) + 4, "text-anchor": "end", text: fixed(tick, 0) }));
  }
  for (let power = Math.ceil(Math.log10(low)); 10 ** power <= high; power++) {
    parts.push(svg("line", { class: "grid", x1: x(10 ** power), x2: x(10 ** power), y1: y0, y2: y1 }), svg("text", { x: x(10 ** power), y: y0 + 16, "text-anchor": "middle", text: bytes(10 ** power).replace(/\.0+ /, " ") }));
  }
  parts.push(svg("text", { x: (x0 + x1) / 2, y: height - 6, "text-anchor": "middle", text: "bytes of one launch" }), svg("text", { x: x0 + 5, y: y1 + 10, text: "GB/s" }));
  if (peak) parts.push(svg("line", { class: "peak", x1: x0, x2: x1, y1: y(peak), y2: y(peak) }), svg("text", { x: x1, y: y(peak) - 4, "text-anchor": "end", text: `DRAM peak ${fixed(peak, 0)}` }));
  const curve = run.class_curve;
  if (curve) {
    const scene = (count) => ("bw_gbps" in curve ? count / (curve.t0_us * 1e3 + count / curve.bw_gbps) : (curve.lo_gbps + curve.hi_gbps) / 2);
    const points = Array.from({ length: 61 }, (_, i) => low * (high / low) ** (i / 60)).map((count) => `${x(count).toFixed(1)},${y(scene(count)).toFixed(1)}`);
    parts.push(svg("polyline", { class: "curve", points: points.join(" "), style: inked(REPORT.palette.band).style }));
  }
  for (const row of rows) {
    const [cx, cy] = [x(row.bytes), y(row.gbps)];
    const ink = inkOf(row).style;
    if (row.straggler) parts.push(svg("line", { class: "stem", x1: cx, x2: cx, y1: cy, y2: y(row.class_gbps), style: ink }));
    parts.push(svg("circle", { class: "dot", cx, cy, r: 5, style: ink }, svg("title", { text: `${row.site}: ${bytes(row.bytes)}, ${rate(row.gbps)} GB/s, class ${rate(row.class_gbps)} GB/s` })));
  }
  parts.push(...scatterTags(rows.map((row) => ({ name: row.site, cx: x(row.bytes), cy: y(row.gbps) })), { x0, x1, y0, y1 }));
  host.replaceChildren(svg("svg", { class: "scatter", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Effective GB/s over bytes of a launch, with the class as a curve" }, parts));
}

function startRates(host, run) {
  const rows = weightRows(run);
  if (!rows.length) {
    host.append(el("p", { class: "lack", text: run.stragglers_lack || "No site has known weight bytes." }));
    return;
  }
  const most = 30;
  const shown = rows.slice(0, most);
  const plot = el("div");
  host.append(el("div", { class: "rates" }, rateBars(run, shown), plot));
  if (rows.length > most) host.append(el("p", { class: "remark", text: `The ${most} with most to recover of ${rows.length}; the census has them all.` }));
  if (run.stragglers_lack) host.append(el("p", { class: "remark", text: run.stragglers_lack }));
  if (run.census.class) host.append(el("p", { class: "remark", text: `Class: ${classText(run)}. A matrix is asked for the rate of its own size, because a launch has a fixed cost whatever it moves.` }));
  let width = 0;
  new ResizeObserver(() => {
    if (plot.clientWidth === width) return;
    width = plot.clientWidth;
    rateScatter(plot, run, shown);
  }).observe(plot);
}

function classText(run) {
  const { source } = run.census.class;
  const curve = run.class_curve;
  if ("bw_gbps" in curve) return `${fixed(curve.t0_us, 2)} µs + bytes / ${fixed(curve.bw_gbps, 0)} GB/s (${source})`;
  return `${rate(curve.lo_gbps)}–${rate(curve.hi_gbps)} GB/s (${source})`;
}
