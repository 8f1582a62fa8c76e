// GB/s of every matrix of every layer as a grid of cells; the darker the slower. Arrow keys walk the cells.
const MODES = { gbps: "GB/s", share: "% of class" };

const HEAT_VALUES = { gbps: (cell) => cell.gbps, share: (cell) => (known(cell.class_gbps) ? (100 * cell.gbps) / cell.class_gbps : NaN) };

// one colour scale for all runs of the page
function heatRange(mode) {
  const found = REPORT.runs.flatMap(({ heat }) => (heat ? [...heat.cells.map(HEAT_VALUES[mode]), ...(mode === "gbps" ? heat.layer_gbps : [])] : [])).filter(known);
  const most = found.reduce((high, value) => Math.max(high, value), mode === "share" ? 100 : 0);
  return [found.reduce((low, value) => Math.min(low, value), most), most];
}

function startHeat(host, run, timeline) {
  const heat = run.heat;
  if (!heat) {
    host.append(el("p", { class: "lack", text: "No launch in a layer has known weight bytes, so there is no rate by layer." }));
    return;
  }
  const cells = new Map(heat.cells.map((cell) => [`${cell.role} ${cell.layer}`, cell]));
  const classed = heat.cells.some((cell) => known(cell.class_gbps));
  let mode = "gbps";
  const foot = el("div", { class: "heat-foot" });
  const scale = el("span", { class: "scale" });
  const read = el("span", { class: "read", "aria-live": "polite", text: "Point at a cell, or focus the grid and use the arrow keys; Enter shows the layer in the timeline." });
  const body = el("tbody");
  const label = (layer) => (heat.layers.length <= 40 || layer % 2 === 0 ? String(layer) : "");
  const grid = el("table", { class: "heat", role: "grid", "aria-label": `GB/s by layer of ${run.label}`, style: { "min-width": `${128 + 16 * heat.layers.length}px` } },
    el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "layer", style: { "text-align": "left" } }), heat.layers.map((layer) => el("th", { scope: "col", text: label(layer) })))), body);
  const words = (cell) =>
    `blk.${cell.layer}.${cell.site}: ${rate(cell.gbps)} GB/s (${rate(cell.gbps_duration)} by duration), ${bytes(cell.bytes)} in ${fixed(cell.us, 2)} µs` +
    (known(cell.class_gbps) ? `, ${fixed(HEAT_VALUES.share(cell), 0)} % of its class of ${rate(cell.class_gbps)} GB/s` : "") +
    (cell.impossible ? ", impossible rate" : cell.overlapped ? ", above the peak by overlap" : "");

  function paint() {
    const whole = mode === "gbps" ? heat.layer_gbps.filter(known) : [];
    const [low, high] = heatRange(mode);
    const colour = (value) => (known(value) ? rampColour((value - low) / (high - low || 1)) : null);
    const rows = heat.roles.map((role) => el("tr", {}, el("th", { scope: "row", text: role }), heat.layers.map((layer) => {
      const cell = cells.get(`${role} ${layer}`);
      if (!cell) return el("td", { role: "gridcell", class: "none", "aria-label": `blk.${layer} has no ${role}` });
      return el("td", { role: "gridcell", tabindex: "-1", "data-layer": layer, "aria-label": words(cell), title: words(cell), style: { "--c": colour(HEAT_VALUES[mode](cell)) } });
    })));
    if (whole.length) {
      rows.push(el("tr", { class: "total" }, el("th", { scope: "row", text: "whole layer" }), heat.layers.map((layer, place) => {
        const gbps = heat.layer_gbps[place];
        const text = known(gbps) ? `blk.${layer}: ${rate(gbps)} GB/s, bytes of the layer over the time until the next begins` : `blk.${layer} has no next layer to end at`;
        return el("td", { role: "gridcell", tabindex: "-1", "data-layer": layer, "aria-label": text, title: text, class: known(gbps) ? "" : "none", style: { "--c": colour(gbps) } });
      })));
    }
    body.replaceChildren(...rows);
    body.querySelector("td[tabindex]")?.setAttribute("tabindex", "0");
    scale.replaceChildren(`${fixed(low, 0)}`, el("i", { style: { "--ramp": `linear-gradient(90deg, ${RAMP.join(", ")})` }, "aria-hidden": "true" }), `${fixed(high, 0)} ${MODES[mode]}`);
  }

  const tell = (event) => {
    const cell = event.target.closest("td[aria-label]");
    if (cell) read.textContent = cell.getAttribute("aria-label");
  };
  body.addEventListener("pointerover", tell);
  body.addEventListener("focusin", tell);
  const show = (cell) => { if (cell?.dataset.layer && timeline) timeline.showLayer(Number(cell.dataset.layer)); };
  body.addEventListener("click", (event) => show(event.target.closest("td")));
  body.addEventListener("keydown", (event) => {
    const cell = event.target.closest("td");
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
    if (event.key === "Enter") show(cell);
    if (!cell || (!down && !right)) return;
    event.preventDefault();
    let [row, column] = [cell.parentElement.rowIndex - 1, cell.cellIndex];
    do {
      [row, column] = [row + down, column + right];
    } while (body.rows[row]?.cells[column] && !body.rows[row].cells[column].hasAttribute("tabindex"));
    const next = body.rows[row]?.cells[column];
    if (!next?.hasAttribute("tabindex")) return;
    cell.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });

  const buttons = Object.entries(MODES).map(([name, text]) => el("button", {
    type: "button", "aria-pressed": String(name === mode), "data-mode": name,
    on: { click: () => { mode = name; buttons.forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.mode === name))); paint(); } },
  }, text));
  foot.append(scale, read);
  host.append(classed ? el("div", { class: "toolbar" }, el("div", { class: "segments", role: "group", "aria-label": "Cell value" }, buttons)) : "", el("div", { class: "scroll" }, grid), foot);
  paint();
}
