// One message in full.
import * as api from "./api.js";
import { cancelMessage, letterHref, stateName } from "./actions.js";
import { Payload, copyText } from "./bytes.js";
import { button, byId, command, data, el, link, setAttr, setData, setText, setTime, show, timeOf } from "./dom.js";
import { Details } from "./details.js";
import { plural, zone } from "./text.js";

const explain = {
  pending: "It waits for its time, and can be cancelled.",
  in_flight: "A process is delivering it now: too late to cancel.",
  delivered: "The broker has confirmed it. Only this is kept, for as long as BRIDGE_DEDUP_WINDOW.",
  cancelled: "It was taken back and will not be delivered. Only this is kept, for as long as BRIDGE_DEDUP_WINDOW.",
  dead: "It was given up, and is kept as a dead letter.",
};
const colours = { pending: "info", in_flight: "info", delivered: "good", dead: "bad" };

export class Message {
  title = "Message";

  constructor(app) {
    this.app = app;
    this.id = el("h1", { class: "name" });
    this.state = el("span", { class: "pill" });
    this.why = el("span", { class: "muted" });
    this.cancel = button("Cancel message", async () => {
      if (this.cancel.getAttribute("aria-disabled")) return;
      await cancelMessage(this.message);
      void app.refresh();
    }, { id: "cancel" });
    this.letter = link("#", "Show the dead letter", { class: "button", hidden: true });
    this.copy = button("Copy id", async () => {
      setText(this.copy, (await copyText(this.params.id)) ? "Copied" : "Not copied");
      setTimeout(() => setText(this.copy, "Copy id"), 2000);
    });
    const f = (this.f = { target: el("span"), due: timeOf(), left: timeOf(), next: timeOf(), lease: timeOf(), scheduled: timeOf(), expires: el("span"), tries: el("span"), error: el("span") });
    this.details = new Details([
      ["Target", f.target], ["Due", [f.due, " ", el("span", { class: "muted" }, f.left)]], ["Next try", f.next, "next"], ["Lease ends", f.lease, "lease"],
      ["Scheduled at", f.scheduled], ["Expires", f.expires, "expires"], ["Attempts", f.tries], ["Last error", f.error, "error"],
    ]);
    this.payload = new Payload("Payload", "payload.bin");
    this.known = el("div", null,
      el("p", { class: "state" }, this.state, this.why),
      el("div", { class: "bar" }, this.cancel, this.letter, this.copy));
    this.body = el("div", null, el("section", { class: "card" }, this.details.node, el("p", { class: "muted" }, `Times are in ${zone()}.`)),
      this.details.headers, this.payload.node);
    this.unknown = el("div", { class: "empty", hidden: true });
    this.node = el("div", { "aria-busy": "true" }, el("p", { class: "over" }, "Message"), this.id, this.known, this.unknown, this.body);
    show(this.known, false);
    show(this.body, false);
  }

  show(params) {
    this.params = params;
    this.message = this.full = this.missing = null;
    setData(this.id, params.id);
    this.payload.fileName = fileName(params.id);
  }

  async refresh() {
    const params = this.params;
    let m;
    try {
      // The payload may be large, and only changes when the message is replaced.
      m = await api.message(params.id, false);
      const key = [m.state, m.due, m.scheduled_at, m.target, m.payload_bytes].join(" ");
      if (this.full?.key !== key) {
        const full = m.target ? await api.message(params.id, true) : m;
        if (params === this.params) {
          m = full;
          this.full = { key, message: full };
        }
      }
    } catch (err) {
      if (err.lost || err.status === 401) throw err;
      if (params === this.params) await this.drawUnknown(params, err);
      return;
    }
    if (params === this.params) this.draw(m, this.full.message);
  }

  draw(m, full) {
    this.message = m;
    this.missing = null;
    const f = this.f;
    show(this.unknown, false);
    show(this.known, true);
    show(this.body, Boolean(m.target));
    setText(this.state, stateName(m.state));
    this.state.className = "pill " + (colours[m.state] ?? "");
    setText(this.why, explain[m.state] ?? "");
    const can = m.state === "pending";
    setAttr(this.cancel, "aria-disabled", can ? null : "true");
    setAttr(this.cancel, "class", can ? "danger" : null);
    show(this.cancel, can || document.activeElement === this.cancel);
    show(this.letter, m.state === "dead");
    setAttr(this.letter, "href", letterHref(m.id));
    setData(f.target, m.target ?? "–");
    setTime(f.due, m.due, { fine: true });
    const waits = m.state === "pending" || m.state === "in_flight";
    show(f.left, waits);
    setTime(f.left, m.due, { counting: true });
    this.details.showRow("next", waits && m.next_try && m.next_try !== m.due);
    setTime(f.next, m.next_try, { counting: true });
    this.details.showRow("lease", Boolean(m.lease_end));
    setTime(f.lease, m.lease_end, { counting: true });
    setTime(f.scheduled, m.scheduled_at, { fine: true });
    this.details.showRow("expires", Boolean(m.expires_after));
    setText(f.expires, m.expires_after ? `${m.expires_after} after it is due` : "");
    setText(f.tries, `${m.attempts} failed${m.lost_leases ? `, ${plural(m.lost_leases, "lost lease")}` : ""}`);
    this.details.showRow("error", m.last_error);
    setData(f.error, m.last_error ?? "");
    if (m.target) {
      this.details.drawContent(full);
      this.payload.set(full.payload);
    }
    this.node.removeAttribute("aria-busy");
  }

  async drawUnknown(params, err) {
    if (this.known.contains(document.activeElement)) byId("main").focus({ preventScroll: true });
    show(this.known, false);
    show(this.body, false);
    show(this.unknown, true);
    this.node.removeAttribute("aria-busy");
    const key = err.status + err.message;
    if (this.missing === key) return;
    this.missing = key;
    this.full = null;
    if (err.status !== 404) {
      this.unknown.replaceChildren(el("p", null, "It cannot be looked up: ", data(err.message)));
      return;
    }
    this.unknown.replaceChildren(
      el("p", null, "Nothing is known of this id. It was never scheduled here, or was delivered or cancelled so long ago that it is forgotten (BRIDGE_DEDUP_WINDOW)."),
      el("p", null, "Ids are matched exactly, with upper and lower case. What is pending is listed under ", link("#/upcoming", "Upcoming"), "; to schedule one:"),
      command("bridge schedule --target nats://orders.timeout --delay 30s --id order-7 'hello'"));
    // Who has the place of a message in its source looks for a rejected one.
    const rejected = "rejected:" + params.id;
    try {
      await api.letter(rejected);
      if (params === this.params) this.unknown.prepend(el("p", null, "There is a dead letter ", link(letterHref(rejected), data(rejected)), "."));
    } catch (e) {
      if (e.status !== 404 && e.status !== 400 && e.status !== 422) throw e;
    }
  }
}

// fileName is a name that every file system takes.
export const fileName = (id) => (id.replace(/[^A-Za-z0-9._-]+/g, "_").replace(/^[._]+/, "").slice(0, 80) || "payload") + ".bin";
