// What a message and a dead letter have in common: their fields, key and headers.
import { short } from "./bytes.js";
import { data, el, show } from "./dom.js";
import { plural } from "./text.js";

export class Details {
  // rows are [name, content, key]; a row with a key can be hidden.
  constructor(rows) {
    this.rows = new Map();
    this.list = el("dl", { class: "fields" });
    this.key = el("span");
    for (const [name, content, key] of [...rows, ["Key", this.key]]) {
      const pair = el("div", null, el("dt", null, name), el("dd", null, ...[content].flat()));
      if (key) this.rows.set(key, pair);
      this.list.append(pair);
    }
    this.node = el("div", null, this.list);
    this.headerRows = el("tbody");
    this.headerTable = el("table", { class: "headers" }, el("caption", { class: "hidden" }, "Headers"),
      el("thead", null, el("tr", null, el("th", { scope: "col" }, "Name"), el("th", { scope: "col" }, "Value"))), this.headerRows);
    this.headerTitle = el("h2", null, "Headers");
    this.none = el("p", { class: "muted" }, "None.");
    this.headers = el("section", { class: "card" }, this.headerTitle, el("div", { class: "scroll" }, this.headerTable), this.none);
  }

  showRow(key, yes) {
    show(this.rows.get(key), Boolean(yes));
  }

  // drawContent shows key and headers, and leaves them alone where they are the same.
  drawContent({ key, headers }) {
    const now = JSON.stringify([key, headers]);
    if (now === this.drawn) return;
    this.drawn = now;
    this.key.replaceChildren(short(key));
    const all = headers ?? [];
    this.headerTitle.textContent = all.length ? plural(all.length, "header") : "Headers";
    show(this.headerTable, all.length > 0);
    show(this.none, all.length === 0);
    this.headerRows.replaceChildren(...all.map((h) => el("tr", null, el("th", { scope: "row" }, data(h.name)), el("td", null, short(h.value)))));
  }
}
