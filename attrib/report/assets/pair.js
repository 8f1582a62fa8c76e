// A comparison: the gap as a waterfall, both anatomies on one scale, and the sites of both sides.
const unclear = (delta) => (delta.delta_ms && !delta.beyond_spread ? "~" : "");

function deltaCell(ms, mark) {
  return el("span", { class: mark ? "" : ms > 0 ? "slower" : ms < 0 ? "faster" : "" }, signed(ms, 3), mark ? ` ${mark}` : "");
}

function startWaterfall(host, pair) {
  const levels = [pair.span_a_ms];
  pair.parts.forEach((part) => levels.push(levels.at(-1) + part.delta_ms));
  const whiskers = pair.parts.flatMap((part, i) => [levels[i + 1] - (part.spread_ms ?? 0) / 2, levels[i + 1] + (part.spread_ms ?? 0) / 2]);
  const [least, most] = [Math.min(...levels, ...whiskers), Math.max(...levels, ...whiskers)];
  const room = Math.max(most - least, 0.02 * most) * 0.14;
  const low = Math.max(least - room, 0);
  const at = (ms) => (100 * (ms - low)) / (most + room * 0.4 - low);
  const row = (name, from, to, ink, value, spread = 0, join = true) => {
    const [left, right] = [Math.min(from, to), Math.max(from, to)];
    const marks = [el("div", { class: `bar ${ink.class}`, style: { ...ink.style, left: `${at(left)}%`, width: `${at(right) - at(left)}%` } })];
    if (spread > 0) marks.push(el("div", { class: "whisker", style: { left: `${at(to - spread / 2)}%`, width: `${at(to + spread / 2) - at(to - spread / 2)}%` } }));
    if (join) marks.push(el("div", { class: "join", style: { left: `${at(to)}%` } }));
    return el("div", { class: "group" }, el("div", { class: "label" }, name), el("div", { class: "track" }, marks), el("div", { class: "value" }, value));
  };
  const grey = { class: "fill", style: { "--c": "var(--line-strong)" } };
  const end = (name, ms, join) => row(el("span", {}, el("span", { class: "side", text: name }), " step"), low, ms, grey, el("b", { text: `${fixed(ms, 3)} ms` }), 0, join);
  const parts = pair.parts.map((part, i) => {
    const ink = inked(part.delta_ms > 0 ? REPORT.palette.below : REPORT.palette.bar);
    const share = known(part.pct_of_gap) && part.delta_ms ? ` (${fixed(part.pct_of_gap, 0)} %)` : "";
    return row(part.part, levels[i], levels[i + 1], ink, el("span", { title: `spread ${fixed(part.spread_ms, 3)} ms` }, el("b", {}, signed(part.delta_ms, 3)), ` ms${share} ${unclear(part)}`), part.spread_ms);
  });
  const key = [[REPORT.palette.below, "B takes longer"], [REPORT.palette.bar, "B takes less"]].map(([ink, text]) => el("span", {}, el("i", { class: `swatch ${inked(ink).class}`, style: inked(ink).style }), text));
  host.append(el("div", { class: "bars waterfall" }, end("A", pair.span_a_ms, true), parts, end("B", pair.span_b_ms, false)),
    el("div", { class: "key" }, key, el("span", { text: low > 0 ? `The axis begins at ${fixed(low, 2)} ms; the parts add up to the gap to ${pair.gap.closure_ns} ns.` : `The parts add up to the gap to ${pair.gap.closure_ns} ns.` })));
}

function startPairAnatomy(host, pair) {
  const longest = Math.max(pair.span_a_ms, pair.span_b_ms) || 1;
  for (const [name, key, total] of [["A", "a_ms", pair.span_a_ms], ["B", "b_ms", pair.span_b_ms]]) {
    host.append(el("div", { class: "stack-row" }, el("span", { class: "side", text: name }),
      stack(pair.categories.map((row) => [row.category, row[key]]), total || 1, longest), el("span", { class: "total", text: `${fixed(total, 3)} ms` })));
  }
  const change = (a, b) => (a === b ? fixed(a, 0) : `${fixed(a, 0)} → ${fixed(b, 0)}`);
  const head = [["category", ""], ["A", "ms / step"], ["B", "ms / step"], ["B − A", "ms / step"], ["spread", "ms"], ["of the gap", "%"], ["launches", "per step"], ["under 2 µs", "per step"]];
  const rows = pair.categories.map((row) => el("tr", { "data-category": row.category }, el("td", {}, swatch(row.category), ` ${row.category}`), el("td", { text: fixed(row.a_ms, 3) }), el("td", { text: fixed(row.b_ms, 3) }),
    el("td", {}, deltaCell(row.delta_ms, unclear(row))), el("td", { text: fixed(row.spread_ms, 3) }), el("td", { text: fixed(row.pct_of_gap, 1) }),
    el("td", { text: row.category === "idle" ? "" : change(row.launches_a, row.launches_b) }), el("td", { text: row.category === "idle" ? "" : change(row.launches_under_2us_a, row.launches_under_2us_b) })));
  const { gap, a, b } = pair;
  const total = el("tr", {}, ["span", fixed(pair.span_a_ms, 3), fixed(pair.span_b_ms, 3)].map((text) => el("td", { text })), el("td", {}, deltaCell(gap.delta_ms, unclear(gap))),
    [fixed(gap.spread_ms, 3), "100.0", change(a.steps.launches, b.steps.launches), ""].map((text) => el("td", { text })));
  host.append(el("div", { class: "scroll split" }, el("table", {}, el("caption", { class: "visually-hidden", text: "Anatomy of both steps" }),
    el("thead", {}, el("tr", {}, head.map(([label, unit]) => el("th", { scope: "col" }, label, unit ? el("span", { class: "unit", text: unit }) : null)))), el("tbody", {}, rows), el("tfoot", {}, total))));
}

function startPairSites(host, pair) {
  const column = (key, label, unit, show, title) => ({ key, label, unit, title, value: (row) => row[key], show: (row) => show(row[key]) });
  const only = (row) => (row.joined_by.startsWith("only") ? [el("span", { class: "flag only", text: row.joined_by })] : row.joined_by === "role" ? [el("span", { class: "flag only", title: "joined by role and bytes, not by name", text: "by role" })] : []);
  new DataTable(host, {
    caption: "Sites of both sides", rows: pair.sites, sort: { key: "delta_ms", down: true },
    search: (row) => `${row.site} ${row.category} ${row.joined_by} ${row.sites_a.join(" ")} ${row.sites_b.join(" ")}`,
    flag: { label: "beyond their spread", test: (row) => row.beyond_spread },
    more: (row) => [["A", row.sites_a], ["B", row.sites_b]].map(([name, sites]) => el("p", {}, el("span", { class: "side", text: name }), " ", el("code", { text: sites.join(" + ") || "no such site" }))),
    columns: [
      { key: "site", label: "site", text: true, value: (row) => row.site, show: (row) => row.site, badges: only },
      { key: "category", label: "category", text: true, value: (row) => row.category, show: (row) => row.category, cell: (row) => el("span", {}, swatch(row.category), ` ${row.category}`) },
      column("launches_a", "launches A", "per step", (v) => fixed(v, 0)), column("launches_b", "launches B", "per step", (v) => fixed(v, 0)),
      column("gbps_a", "rate A", "GB/s", rate), column("gbps_b", "rate B", "GB/s", rate),
      column("exclusive_us_a", "exclusive A", "µs / launch", microseconds), column("exclusive_us_b", "exclusive B", "µs / launch", microseconds),
      column("ms_a", "time A", "ms / step", (v) => fixed(v, 3)), column("ms_b", "time B", "ms / step", (v) => fixed(v, 3)),
      { ...column("delta_ms", "B − A", "ms / step", (v) => signed(v, 3), "sorted by size, whichever side is slower"), rank: Math.abs, cell: (row) => deltaCell(row.delta_ms, unclear(row)) },
      column("spread_ms", "spread", "ms", (v) => fixed(v, 3), "75th − 25th percentile of the differences between single steps"),
      column("pct_of_gap", "of the gap", "%", (v) => fixed(v, 1)),
    ],
  });
}

function linkTimelines(timelines, host) {
  if (timelines.length < 2) return;
  const link = (linked) => timelines.forEach((one) => { one.followers = linked ? timelines.filter((other) => other !== one) : []; });
  link(true);
  host.querySelector(".toolbar").insertBefore(
    el("label", { class: "check" }, el("input", { type: "checkbox", checked: "", on: { change: (event) => link(event.target.checked) } }), "move both together"), host.querySelector(".toolbar .gap"));
}
