// The step as one bar of categories, and the table under it.
function stack(parts, total, longest) {
  // parts: [category, ms]
  const bar = parts.filter(([, ms]) => ms > 0).map(([category, ms]) => {
    const ink = inkedCategory(category);
    const share = (100 * ms) / total;
    const text = `${category}: ${fixed(ms, 3)} ms, ${fixed(share, 1)} %`;
    return el("div", { class: `part ${ink.class}`, style: { ...ink.style, "flex-grow": ms }, title: text },
      (100 * ms) / longest > 5 ? el("span", { text: `${fixed(share, 1)} %` }) : "");
  });
  return el("div", { class: "stack", role: "img", "aria-label": parts.map(([category, ms]) => `${category} ${fixed(ms, 3)} ms`).join(", "), style: { width: `${(100 * total) / longest}%` } }, bar);
}

function startAnatomy(host, run) {
  const { categories, steps, stages: staged } = run.anatomy;
  const columns = ["category", ["time", "ms / step"], ["of span", "%"], ["of kernel time", "%"], ["", ""], ["Σ durations", "ms / step"], ["launches", "per step"], ["under 2 µs", "per step"],
    ...(staged ? [["stages", "per step"], ["waiting", "ms / step"]] : [])];
  const head = columns.map((column) => {
    const [label, unit] = Array.isArray(column) ? column : [column, ""];
    return el("th", { scope: "col" }, label, unit ? el("span", { class: "unit", text: unit }) : null);
  });
  const rows = categories.map((row) => {
    const ink = inkedCategory(row.category);
    return el("tr", { "data-category": row.category },
      el("td", {}, swatch(row.category), ` ${row.category}`),
      el("td", { text: fixed(row.ms, 3) }), el("td", { text: fixed(row.pct_of_span, 2) }), el("td", { text: fixed(row.pct_of_kernel_time, 2) }),
      el("td", {}, el("span", { class: "meter" }, el("i", { class: ink.class, style: { ...ink.style, width: `${clamp(row.pct_of_span, 0, 100)}%` } }))),
      el("td", { text: fixed(row.duration_ms, 3) }),
      el("td", { text: row.launches ? fixed(row.launches, 0) : "" }), el("td", { text: row.launches ? fixed(row.launches_under_2us, 0) : "" }),
      ...(staged ? [el("td", { text: row.stages ? fixed(row.stages, 0) : "" }), el("td", { text: row.stages ? fixed(row.waiting_ms, 3) : "" })] : []));
  });
  const total = ["span", fixed(steps.span_ms, 3), "100.00", "", "", "", fixed(steps.launches, 0), fixed(steps.launches_under_2us, 0),
    ...(staged ? [fixed(staged.stages, 0), fixed(staged.waiting_ms, 3)] : [])];
  const sum = categories.reduce((ms, row) => ms + (row.ms ?? 0), 0);
  host.append(stack(categories.map((row) => [row.category, row.ms]), sum || 1, sum || 1),
    el("div", { class: "scroll split" }, el("table", {}, el("caption", { class: "visually-hidden", text: "Anatomy of the step" }), el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows),
      el("tfoot", {}, el("tr", {}, total.map((text) => el("td", { text })))))),
    el("p", { class: "remark", text: `Medians of ${plural(steps.count, "step")} (${steps.source}); the ledger closes to ${run.anatomy.ledger.closure_ns} ns. Launches under 2 µs are mostly launch cost. Σ durations counts overlapping launches twice, time does not.` }));
}
