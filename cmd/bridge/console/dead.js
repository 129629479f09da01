// Dead letters, the oldest first: filter, replay, purge.
import * as api from "./api.js";
import { letterHref, purgeLetter, replayLetter } from "./actions.js";
import * as bulk from "./bulk.js";
import { button, command, el, link, reconcile, setAttr, setCell, setText, setTime, show, table, timeOf } from "./dom.js";
import { whys } from "./overview.js";
import { Pager } from "./pager.js";
import { count, visible, zone } from "./text.js";

export class DeadList {
  title = "Dead letters";

  constructor(app) {
    this.app = app;
    this.reason = el("select", { id: "reason", on: { change: () => this.filter() } },
      el("option", { value: "" }, "Any reason"), ...Object.keys(whys).map((r) => el("option", { value: r }, r)));
    this.targets = el("datalist", { id: "targets" });
    this.target = el("input", { id: "target", type: "text", list: "targets", placeholder: "Any target, e.g. nats://orders.timeout", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
      on: { change: () => this.filter() } });
    this.clear = button("Clear filter", () => { app.go(this.href({ reason: "", target: "" })); this.reason.focus(); }, { hidden: true });
    this.replayAll = button("Replay all", () => this.bulk("replay"), { id: "replay-all" });
    this.purgeAll = button("Purge all", () => this.bulk("purge"), { id: "purge-all" });
    this.total = el("p", { class: "muted" });
    this.list = table("Dead letters", [["Died"], ["Reason"], ["Id", "id"], ["Target", "target"], ["Error", "error-text"], ["Attempts", "num"], ["", "act"]]);
    this.empty = el("div", { class: "empty", hidden: true });
    this.error = el("p", { class: "error", role: "alert" });
    this.pager = new Pager(app, (params) => this.href(params));
    this.node = el("div", { "aria-busy": "true" },
      el("h1", null, "Dead letters"),
      el("form", { class: "bar", role: "search", "aria-label": "Filter", on: { submit: (e) => { e.preventDefault(); this.filter(); } } },
        el("span", { class: "field" }, el("label", { for: "reason" }, "Reason"), this.reason),
        el("span", { class: "field grow" }, el("label", { for: "target" }, "Target"), this.target), this.targets, this.clear),
      el("div", { class: "bar" }, this.replayAll, this.purgeAll, this.total),
      this.error,
      el("section", { class: "card flush" }, this.list.node, this.empty),
      this.pager.node);
  }

  href({ reason = this.params.reason ?? "", target = this.params.target ?? "", after = "" }) {
    const q = new URLSearchParams(Object.entries({ reason, target, after }).filter(([, v]) => v));
    return "#/dead" + (q.size ? "?" + q : "");
  }

  filter() {
    this.app.go(this.href({ reason: this.reason.value, target: this.target.value.trim() }));
  }

  show(params) {
    this.params = params;
    this.reason.value = params.reason in whys ? params.reason : "";
    if (document.activeElement !== this.target || this.target.value.trim() !== (params.target ?? "")) this.target.value = params.target ?? "";
    this.emptyKey = null;
  }

  get filtered() {
    return Boolean(this.params.reason || this.params.target);
  }

  async refresh() {
    const params = this.params;
    let page;
    try {
      page = await api.letters({ reason: params.reason, target: params.target, after: params.after, limit: Pager.limit });
    } catch (err) {
      if (err.lost || err.status === 401) throw err;
      if (params !== this.params) return;
      setText(this.error, "This page cannot be shown: " + visible(err.message));
      show(this.clear, this.filtered);
      this.pager.draw(params, null);
      return;
    }
    if (params !== this.params) return;
    setText(this.error, "");
    const dead = Object.values(this.app.stats.dead ?? {}).reduce((a, b) => a + b, 0);
    setText(this.total, this.filtered ? `${count(dead)} in all. Times are in ${zone()}.` : dead ? `${count(dead)}, the oldest first. Times are in ${zone()}.` : "");
    reconcile(this.list.body, page.items, (l) => l.id, (l) => this.row(l), (row, l) => this.draw(row, l));
    const none = page.items.length === 0;
    show(this.list.node, this.list.body.children.length > 0);
    show(this.empty, none && this.list.body.children.length === 0);
    if (none) this.drawEmpty(params, dead);
    show(this.clear, this.filtered || document.activeElement === this.clear);
    const of = this.filtered ? "all that match" : "all";
    for (const [b, verb] of [[this.replayAll, "Replay"], [this.purgeAll, "Purge"]]) {
      setText(b, `${verb} ${of} …`);
      setAttr(b, "aria-disabled", none && !params.after ? "true" : null);
    }
    this.offer(page.items);
    this.pager.draw(params, page.next, page.items.length);
    this.node.removeAttribute("aria-busy");
  }

  // offer suggests the targets that were seen.
  offer(letters) {
    const known = new Set([...this.targets.children].map((o) => o.value));
    for (const l of letters) {
      if (!l.target || known.has(l.target) || known.size >= 50) continue;
      known.add(l.target);
      this.targets.append(el("option", { value: l.target }));
    }
  }

  drawEmpty(params, dead) {
    const key = JSON.stringify([params, dead > 0]);
    if (this.emptyKey === key) return;
    this.emptyKey = key;
    if (params.after) this.empty.replaceChildren(el("p", null, "There are no dead letters from here on."), link(this.href({}), "To the first page"));
    else if (this.filtered) this.empty.replaceChildren(el("p", null, dead ? "No dead letter matches the filter." : "There are no dead letters."), link("#/dead", "Clear filter"));
    else {
      this.empty.replaceChildren(
        el("p", null, "There are no dead letters. What cannot be delivered is kept here with its payload and the reason, to be looked at, replayed or purged."),
        el("p", null, "The same on the command line:"),
        command("bridge dead list"));
    }
  }

  async bulk(verb) {
    const b = verb === "replay" ? this.replayAll : this.purgeAll;
    if (b.getAttribute("aria-disabled")) return;
    if (await bulk.all(verb, { reason: this.params.reason, target: this.params.target })) void this.app.refresh();
  }

  row(l) {
    const f = { died: timeOf(), reason: el("span", { class: "pill" }), id: link(letterHref(l.id), ""), target: el("span"), error: el("span"), tries: el("span") };
    const act = (work) => async (e) => {
      if (e.currentTarget.getAttribute("aria-disabled")) return;
      await work(row.l);
      void this.app.refresh();
    };
    f.replay = button("Replay", act(replayLetter), { class: "small", "aria-label": "Replay " + visible(l.id) });
    f.purge = button("Purge", act(purgeLetter), { class: "small", "aria-label": "Purge " + visible(l.id) });
    const row = this.list.row(f.died, f.reason, f.id, f.target, f.error, f.tries, [f.replay, f.purge]);
    row.f = f;
    return row;
  }

  draw(row, l) {
    const f = row.f;
    row.l = l;
    setTime(f.died, l.died_at);
    setText(f.reason, l.reason);
    setAttr(f.reason, "title", whys[l.reason]);
    setCell(f.id, l.id);
    setCell(f.target, l.target || "–");
    setCell(f.error, l.error || "–");
    setText(f.tries, String(l.attempts + l.lost_leases));
  }
}
