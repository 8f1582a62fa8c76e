// The census of a run by site, kernel or layer, each row with the kernels behind it.
const GROUPS = ["site", "kernel", "layer"];

// columns of a document as one object a row
function rowsOf(part) {
  const keys = Object.keys(part.columns);
  return part.columns.site.map((_, place) => Object.fromEntries(keys.map((key) => [key, part.columns[key][place]])));
}

function classHigh(run, row) {
  const curve = run.class_curve;
  if (!curve || !known(row.class_gbps)) return NaN;
  return "hi_gbps" in curve ? curve.hi_gbps : row.class_gbps * 1.03;
}

function rateFlags(run, row) {
  const flag = (name, text, title) => el("span", { class: `flag ${name}`, title, text });
  const flags = [];
  if (row.straggler) flags.push(flag("below", "below", "under the class of its size"));
  if (row.impossible) flags.push(flag("impossible", "impossible", "faster than the DRAM peak by duration: work was dropped, or the matrix stayed in cache"));
  if (row.overlapped) flags.push(flag("overlapped", "overlap", "the exclusive rate passes the peak because the launch streamed inside its predecessor's time"));
  else if (!row.impossible && row.gbps > classHigh(run, row)) flags.push(flag("above", "above", "above the class: overlap hides launch cost, or the matrix is in cache"));
  if (!known(row.bytes) && known(row.kv_bytes)) flags.push(flag("kv", "kv", "bytes and rates are those of the KV cache, not of weights"));
  return flags;
}

function censusColumns(run) {
  // a site that reads the KV cache alone has the rates of that
  const moved = (row) => row.bytes ?? row.kv_bytes;
  const over = (row, us) => (known(moved(row)) && us > 0 ? moved(row) / us / 1e3 : null);
  const ofPeak = (row) => (known(row.bytes) ? row.pct_of_peak : run.census.device.peak_gbps ? (100 * over(row, row.exclusive_us)) / run.census.device.peak_gbps || null : null);
  const column = (key, label, unit, show, title, value = (row) => row[key]) => ({ key, label, unit, title, value, show: (row) => show(value(row)) });
  return [
    { key: "site", label: "site", text: true, value: (row) => row.site, show: (row) => row.site, badges: (row) => rateFlags(run, row), title: "role / quant where bytes are known, else the kernel" },
    { key: "category", label: "category", text: true, value: (row) => row.category, show: (row) => row.category, cell: (row) => el("span", {}, swatch(row.category), ` ${row.category}`) },
    column("launches", "launches", "per step", (v) => fixed(v, 0)),
    column("bytes", "bytes", "MB / launch", (v) => (known(v) ? fixed(v / 1e6, v < 1e5 ? 3 : 1) : UNKNOWN), "weight bytes as stored; KV bytes where the site reads the cache alone", (row) => moved(row) ?? null),
    column("exclusive_us", "exclusive", "µs / launch", microseconds, "time the launch added to the step"),
    column("duration_us", "duration", "µs / launch", microseconds, "end − start, overlap included"),
    ...(run.stages ? [column("wait_us", "waiting", "µs / stage", microseconds, "mean over blocks at the dependency in front of a stage")] : []),
    column("gbps", "rate", "GB/s", rate, "bytes / exclusive time", (row) => over(row, row.exclusive_us)),
    column("gbps_duration", "by duration", "GB/s", rate, "bytes / duration", (row) => over(row, row.duration_us)),
    column("pct_of_peak", "of peak", "%", (v) => fixed(v, 0), "of the device's DRAM peak", ofPeak),
    column("class_gbps", "class", "GB/s", rate, "rate the device streams a matrix of this size at"),
    column("ms_per_step", "time", "ms / step", (v) => fixed(v, 3), "exclusive time of all launches of a step, median"),
    column("pct_of_span", "of span", "%", (v) => fixed(v, 1)),
    column("spread_pct", "spread", "%", (v) => fixed(v, 1), "(75th − 25th percentile) / median over steps"),
    column("recoverable_ms", "recoverable", "ms / step", (v) => fixed(v, 3), "what class rate would give back"),
  ];
}

// a kernel that timed its stages is divided into them, and each is a row of its own
const launchWord = (run) => (run.stages ? ["launch or stage", "launches and stages"] : ["launch", "launches"]);

function kernelList(run, variants) {
  const total = variants.reduce((sum, [, number]) => sum + number, 0);
  return el("ul", { class: "kernels" }, variants.map(([place, number]) => {
    const variant = run.variants[place];
    const size = (sizes) => (sizes.some((one) => one < 0) ? "unknown" : sizes.join(" × "));
    return el("li", {}, el("code", { text: variant.kernel }),
      el("div", { class: "shape", text: `${fixed(number, 0)} of ${plural(total, ...launchWord(run))} · grid ${size(variant.grid)} · block ${size(variant.block)} threads` }));
  }));
}

function variantsOf(run, group, row) {
  const name = group === "layer" ? row.site.replace(/^blk\.\d+\./, "") : row.site;
  if (group === "kernel") {
    const shape = ([x, y, z]) => (z !== 1 ? `${x}×${y}×${z}` : y !== 1 ? `${x}×${y}` : `${x}`);
    const counts = new Map();
    for (const [, place, number] of run.site_variants) {
      const variant = run.variants[place];
      if (`${variant.label} [${shape(variant.grid)}]` === name) counts.set(place, (counts.get(place) ?? 0) + number);
    }
    return [...counts];
  }
  return run.site_variants.filter(([site]) => run.sites[site].site === name && run.sites[site].category === row.category).map(([, place, number]) => [place, number]);
}

function startCensus(host, run, timeline) {
  const rows = Object.fromEntries(GROUPS.map((group) => [group, rowsOf(run.rows[group])]));
  const columns = censusColumns(run);
  let group = "site";
  const more = (row) => {
    const layer = /^blk\.(\d+)\./.exec(row.site);
    const place = run.sites.findIndex((site) => site.site === row.site);
    const actions = [];
    if (group === "site" && place >= 0) actions.push(el("button", { type: "button", class: "button", on: { click: () => timeline.showSite(row.site) } }, "Show in the timeline"));
    if (group === "layer" && layer) actions.push(el("button", { type: "button", class: "button", on: { click: () => timeline.showLayer(Number(layer[1])) } }, "Show the layer in the timeline"));
    const variants = variantsOf(run, group, row);
    return [
      group === "layer" ? el("p", { class: "shape", text: "Kernels of this site in all layers:" }) : null,
      kernelList(run, variants), ...actions,
    ].filter(Boolean);
  };
  const kernelWords = (row) => variantsOf(run, group, row).map(([place]) => run.variants[place].kernel).join(" ");
  const words = new Map();
  const buttons = GROUPS.map((name) => el("button", { type: "button", "aria-pressed": String(name === group), "data-group": name, on: { click: () => choose(name) } }, `by ${name}`));
  const omitted = el("p", { class: "remark" });
  const table = new DataTable(host, {
    columns, rows: rows.site, caption: "Census", sort: { key: "ms_per_step", down: true },
    search: (row) => {
      if (!words.has(row)) words.set(row, `${row.site} ${row.category} ${kernelWords(row)}`);
      return words.get(row);
    },
    flag: { label: "below the class", test: (row) => row.straggler }, more,
    extra: [el("div", { class: "segments", role: "group", "aria-label": "Group launches" }, buttons)],
    footer: (shown) => footer(shown),
  });
  function footer(shown) {
    const sum = (key) => shown.reduce((total, row) => total + (row[key] ?? 0), 0);
    const totals = { launches: fixed(sum("launches"), 0), ms_per_step: fixed(sum("ms_per_step"), 3), pct_of_span: fixed(sum("pct_of_span"), 1), recoverable_ms: fixed(sum("recoverable_ms"), 3) };
    return el("tr", {}, columns.map((column, place) => el("td", { text: place ? totals[column.key] ?? "" : "sum of the rows shown" })));
  }
  function choose(name) {
    group = name;
    words.clear();
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.group === name)));
    const missing = run.rows[name].omitted;
    omitted.textContent = missing ? `${plural(missing, "row")} of the least time are left out here; attrib census --by ${name} --csv writes them all.` : "";
    table.setRows(rows[name]);
  }
  host.append(omitted);
  if (run.stages) host.append(el("p", { class: "remark", text: `${run.stages}.` }));
}
