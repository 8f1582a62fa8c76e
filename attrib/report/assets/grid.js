// A table that sorts, filters, expands rows and copies itself as Markdown or CSV.
// column: {key, label, unit, title, text, value(row), show(row), cell(row), rank(value)}; `text` columns are left-aligned and
// sort by letters, others by value or by what `rank` makes of it.
const FIRST_ROWS = 300;
const NAME_LENGTH = 34;

class DataTable {
  constructor(host, { columns, rows, caption, sort, search, flag, more, extra = [], footer = null }) {
    Object.assign(this, { columns, caption, sort, search, flag, more, footer });
    this.filter = "";
    this.flagged = false;
    this.all = false;
    this.open = new Set();
    this.input = el("input", {
      type: "search", placeholder: "Filter by site, category, kernel", "aria-label": `Filter ${caption}`, spellcheck: "false",
      on: { input: () => { this.filter = this.input.value; this.paint(); } },
    });
    this.count = el("span", { class: "count", role: "status" });
    const copy = (format, label) => el("button", { type: "button", class: "button", "data-copy": format, on: { click: () => this.copy(format) } }, label);
    const flagBox = flag ? el("label", { class: "check" }, el("input", { type: "checkbox", on: { change: (event) => { this.flagged = event.target.checked; this.paint(); } } }), flag.label) : null;
    this.head = el("thead", {}, el("tr", {}, columns.map((column) => this.headCell(column))));
    this.body = el("tbody", { on: { keydown: (event) => this.step(event) } });
    this.foot = el("tfoot");
    host.append(
      el("div", { class: "toolbar" }, ...extra, this.input, flagBox, this.count, el("span", { class: "gap" }), copy("markdown", "Copy Markdown"), copy("csv", "Copy CSV")),
      el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": caption },
        el("table", {}, el("caption", { class: "visually-hidden", text: caption }), this.head, this.body, this.foot)),
    );
    this.setRows(rows);
  }

  headCell(column) {
    const button = el("button", { type: "button", title: column.title, on: { click: () => this.sortBy(column) } }, el("span", { class: "label", text: column.label }),
      column.unit ? el("span", { class: "unit", text: column.unit }) : null);
    return el("th", { scope: "col", class: column.text ? "text" : "", "aria-sort": "none", "data-key": column.key }, button);
  }

  setRows(rows) {
    this.rows = rows;
    this.all = false;
    this.open.clear();
    this.paint();
  }

  sortBy(column) {
    const same = this.sort.key === column.key;
    this.sort = { key: column.key, down: same ? !this.sort.down : !column.text };
    this.paint();
  }

  shown() {
    const terms = this.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const column = this.columns.find((one) => one.key === this.sort.key);
    const kept = this.rows.filter((row) => {
      if (this.flagged && !this.flag.test(row)) return false;
      const text = terms.length ? this.search(row).toLowerCase() : "";
      return terms.every((term) => text.includes(term));
    });
    const turn = this.sort.down ? -1 : 1;
    const rank = column.rank ?? ((value) => value);
    return kept
      .map((row) => [column.value(row), row])
      .sort(([a], [b]) => {
        const missing = Number(a === null || a === undefined) - Number(b === null || b === undefined);
        if (missing || a === null || a === undefined) return missing; // unknown last, whichever way
        return turn * (column.text ? String(a).localeCompare(String(b), "en", { numeric: true }) : rank(a) - rank(b));
      })
      .map(([, row]) => row);
  }

  paint() {
    const rows = this.shown();
    for (const th of this.head.querySelectorAll("th")) {
      th.setAttribute("aria-sort", th.dataset.key !== this.sort.key ? "none" : this.sort.down ? "descending" : "ascending");
    }
    this.count.textContent = rows.length === this.rows.length ? plural(rows.length, "row") : `${fixed(rows.length, 0)} of ${plural(this.rows.length, "row")}`;
    const visible = this.all ? rows : rows.slice(0, FIRST_ROWS);
    this.body.replaceChildren(...visible.flatMap((row) => this.rowElements(row)));
    if (!rows.length) this.body.append(this.wide("empty", "No row matches."));
    if (visible.length < rows.length) {
      const show = el("button", { type: "button", class: "button", on: { click: () => { this.all = true; this.paint(); } } }, `Show all ${fixed(rows.length, 0)} rows`);
      this.body.append(this.wide("empty", show));
    }
    this.foot.replaceChildren(...(this.footer ? [this.footer(rows)] : []));
  }

  wide(name, child) {
    return el("tr", {}, el("td", { class: name, colspan: this.columns.length }, child));
  }

  rowElements(row) {
    const open = this.open.has(row);
    const first = this.columns[0];
    const name = first.value(row);
    const button = this.more
      ? el("button", {
          type: "button", class: "name", title: name, "aria-expanded": String(open),
          on: { click: () => { this.toggle(row); } },
        }, el("span", { class: "words", text: shortened(name, NAME_LENGTH) }))
      : el("span", { class: "name flat", title: name }, el("span", { class: "words", text: shortened(name, NAME_LENGTH) }));
    const cells = this.columns.slice(1).map((column) => {
      const content = column.cell ? column.cell(row) : column.show(row);
      return el("td", { class: `${column.text ? "text" : ""}${content === UNKNOWN ? " dim" : ""}` }, content);
    });
    const main = el("tr", { "data-row": name }, el("td", {}, button, ...(first.badges ? first.badges(row) : [])), cells);
    if (!open) return [main];
    return [main, el("tr", { class: "more" }, el("td", { colspan: this.columns.length }, this.more(row)))];
  }

  toggle(row) {
    if (!this.open.delete(row)) this.open.add(row);
    const place = [...this.body.querySelectorAll("button.name")].indexOf(document.activeElement);
    this.paint();
    this.body.querySelectorAll("button.name")[place]?.focus();
  }

  // arrow keys walk the row buttons
  step(event) {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...this.body.querySelectorAll("button.name")];
    const place = buttons.indexOf(document.activeElement);
    if (!move || place < 0) return;
    event.preventDefault();
    buttons[clamp(place + move, 0, buttons.length - 1)].focus();
  }

  copy(format) {
    const rows = this.shown();
    copyText(format === "csv" ? this.csv(rows) : this.markdown(rows), `${plural(rows.length, "row")} as ${format === "csv" ? "CSV" : "Markdown"}`);
  }

  csv(rows) {
    const quote = (value) => {
      const text = value === null || value === undefined ? "" : String(value);
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const lines = [this.columns.map((column) => column.key), ...rows.map((row) => this.columns.map((column) => column.value(row)))];
    return lines.map((line) => line.map(quote).join(",")).join("\n") + "\n";
  }

  markdown(rows) {
    const escape = (text) => String(text).replaceAll("\\", "\\\\").replaceAll("|", "\\|").replaceAll("<", "&lt;").replaceAll("\n", " ");
    const line = (cells) => `| ${cells.join(" | ")} |`;
    return [
      line(this.columns.map((column) => escape(column.unit ? `${column.label} (${column.unit})` : column.label))),
      line(this.columns.map((column) => (column.text ? "---" : "---:"))),
      ...rows.map((row) => line(this.columns.map((column) => escape(column.show(row))))),
    ].join("\n") + "\n";
  }
}
