// Going through a list by cursors. The API knows the next page; the one before is
// known to who has come from it.
import { el, link, setAttr, setText, show } from "./dom.js";
import { plural } from "./text.js";

const before = new Map(); // the link to a page -> the link to the one before it

export class Pager {
  static limit = 50;

  // href makes the link to the page behind a cursor.
  constructor(app, href) {
    this.href = href;
    this.first = link("#", "First page", { class: "button" });
    this.previous = link("#", "Previous page", { class: "button" });
    this.next = link("#", "Next page", { class: "button", on: { click: () => before.set(this.next.getAttribute("href"), this.at) } });
    this.here = el("span", { class: "muted" });
    this.node = el("nav", { class: "pager", "aria-label": "Pages" }, this.first, this.previous, this.next, this.here);
  }

  draw(params, next, rows = 0) {
    this.at = this.href({ after: params.after });
    const back = before.get(this.at);
    show(this.first, Boolean(params.after));
    setAttr(this.first, "href", this.href({}));
    show(this.previous, Boolean(back));
    if (back) setAttr(this.previous, "href", back);
    show(this.next, Boolean(next));
    if (next) setAttr(this.next, "href", this.href({ after: next }));
    let page = 1;
    for (let p = back; p; p = before.get(p)) page++;
    setText(this.here, rows === 0 ? "" : !back && (params.after || !next) ? plural(rows, "row") : `Page ${page}, ${plural(rows, "row")}${next ? "" : ", the last page"}`);
    show(this.node, Boolean(params.after || next || rows));
  }
}
