// Pending messages by their next try, a page at a time.
import * as api from "./api.js";
import { cancelMessage, messageHref } from "./actions.js";
import { button, command, el, link, reconcile, setAttr, setCell, setText, setTime, show, table, timeOf } from "./dom.js";
import { Pager } from "./pager.js";
import { count, plural, size, visible, zone } from "./text.js";

const sinks = ["kafka", "nats", "nats-core"];

export class Upcoming {
  title = "Upcoming";

  constructor(app) {
    this.app = app;
    this.sink = el("select", { id: "sink", on: { change: () => app.go(this.href({ sink: this.sink.value })) } },
      el("option", { value: "" }, "All sinks"), ...sinks.map((s) => el("option", { value: s }, s)));
    this.total = el("p", { class: "muted" });
    this.list = table("Pending messages by their next try", [["Next try"], ["Due", "num"], ["Id", "id"], ["Target", "target"], ["Payload", "num"], ["Attempts", "num"], ["", "act"]]);
    this.empty = el("div", { class: "empty", hidden: true });
    this.error = el("p", { class: "error", role: "alert" });
    this.pager = new Pager(app, (params) => this.href(params));
    this.node = el("div", { "aria-busy": "true" },
      el("h1", null, "Upcoming"),
      el("div", { class: "bar" }, el("label", { for: "sink" }, "Sink"), this.sink, this.total),
      this.error,
      el("section", { class: "card flush" }, this.list.node, this.empty),
      this.pager.node);
  }

  href({ sink = this.params.sink ?? "", after = "" }) {
    const q = new URLSearchParams(Object.entries({ sink, after }).filter(([, v]) => v));
    return "#/upcoming" + (q.size ? "?" + q : "");
  }

  show(params) {
    this.params = params;
    this.sink.value = sinks.includes(params.sink) ? params.sink : "";
  }

  async refresh() {
    const params = this.params;
    let page;
    try {
      page = await api.messages({ sink: params.sink, after: params.after, limit: Pager.limit });
    } catch (err) {
      if (err.lost || err.status === 401) throw err;
      if (params !== this.params) return;
      setText(this.error, "This page cannot be shown: " + visible(err.message));
      this.pager.draw(params, null);
      return;
    }
    if (params !== this.params) return;
    setText(this.error, "");
    const lanes = Object.entries(this.app.stats.lanes ?? {}).filter(([name]) => !params.sink || name === params.sink);
    const pending = lanes.reduce((n, [, l]) => n + l.pending, 0);
    setText(this.total, `${count(pending)} pending. Times are in ${zone()}.`);
    reconcile(this.list.body, page.items, (m) => m.id, (m) => this.row(m), (row, m) => this.draw(row, m));
    const none = page.items.length === 0;
    show(this.list.node, this.list.body.children.length > 0);
    show(this.empty, none && this.list.body.children.length === 0);
    if (none) this.drawEmpty(params);
    this.pager.draw(params, page.next, page.items.length);
    this.node.removeAttribute("aria-busy");
  }

  drawEmpty(params) {
    const key = JSON.stringify(params);
    if (this.emptyKey === key) return;
    this.emptyKey = key;
    if (params.after) this.empty.replaceChildren(el("p", null, "Nothing is pending from here on."), link(this.href({}), "To the first page"));
    else {
      const target = { kafka: "kafka://orders", "nats-core": "nats-core://orders.timeout" }[params.sink] ?? "nats://orders.timeout";
      this.empty.replaceChildren(
        el("p", null, params.sink ? `Nothing is pending for ${visible(params.sink)}. ` : "Nothing is pending. ", "Schedule a message, and it is listed here until it is delivered:"),
        command(`bridge schedule --target ${target} --delay 10m --id order-7 'hello'`),
        ...(params.sink ? [link(this.href({ sink: "" }), "Show all sinks")] : []));
    }
  }

  row(m) {
    const f = { at: timeOf(), left: timeOf(), id: link(messageHref(m.id), ""), target: el("span"), size: el("span"), tries: el("span"), error: el("span") };
    f.why = el("div", { class: "why", hidden: true }, el("span", { class: "hidden" }, "Last error: "), f.error);
    f.cancel = button("Cancel", async () => {
      if (f.cancel.getAttribute("aria-disabled")) return;
      await cancelMessage(row.m);
      void this.app.refresh();
    }, { class: "small", "aria-label": "Cancel " + visible(m.id) });
    const row = this.list.row(f.at, f.left, f.id, [f.target, f.why], f.size, f.tries, f.cancel);
    row.f = f;
    return row;
  }

  draw(row, m) {
    const f = row.f;
    row.m = m;
    setTime(f.at, m.next_try);
    setTime(f.left, m.next_try, { counting: true });
    setCell(f.id, m.id);
    setCell(f.target, m.target ?? "–");
    setText(f.size, size(m.payload_bytes));
    setText(f.tries, m.attempts + m.lost_leases === 0 ? "0" : `${m.attempts}${m.lost_leases ? ` + ${plural(m.lost_leases, "lost lease")}` : ""}`);
    setAttr(f.tries, "class", m.attempts > 0 ? "text-warn" : null);
    show(f.why, Boolean(m.last_error));
    setCell(f.error, m.last_error ?? "");
  }
}
