// One dead letter in full.
import * as api from "./api.js";
import { messageHref, purgeLetter, replayLetter } from "./actions.js";
import { Payload, copyText } from "./bytes.js";
import { button, byId, data, el, link, setData, setText, setTime, show, timeOf } from "./dom.js";
import { Details } from "./details.js";
import { fileName } from "./message.js";
import { whys } from "./overview.js";
import { plural, zone } from "./text.js";

const large = 64 * 1024;

export class Letter {
  title = "Dead letter";

  constructor(app) {
    this.app = app;
    this.id = el("h1", { class: "name" });
    this.reason = el("span", { class: "pill bad" });
    this.why = el("span", { class: "muted" });
    const act = (work) => async () => {
      await work(this.letter);
      this.fetched = null;
      void app.refresh();
    };
    this.replay = button("Replay", act(replayLetter), { class: "primary", id: "replay" });
    this.purge = button("Purge", act(purgeLetter), { class: "danger", id: "purge" });
    this.copy = button("Copy id", async () => {
      setText(this.copy, (await copyText(this.params.id)) ? "Copied" : "Not copied");
      setTimeout(() => setText(this.copy, "Copy id"), 2000);
    });
    this.same = link("#", "", { class: "button" });
    const f = (this.f = { error: el("span"), died: timeOf(), target: el("span"), due: timeOf(), scheduled: timeOf(), expires: el("span"), source: el("span"), tries: el("span") });
    this.details = new Details([
      ["Error", f.error], ["Died", f.died], ["Target", f.target, "target"], ["Due", f.due, "due"], ["Scheduled at", f.scheduled, "scheduled"],
      ["Expires", f.expires, "expires"], ["Source", f.source, "source"], ["Attempts", f.tries],
    ]);
    this.payload = new Payload("Payload", "payload.bin");
    this.known = el("div", null,
      el("p", { class: "state" }, this.reason, this.why),
      el("div", { class: "bar" }, this.replay, this.purge, this.copy, this.same));
    this.body = el("div", null, el("section", { class: "card" }, this.details.node, el("p", { class: "muted" }, `Times are in ${zone()}.`)),
      this.details.headers, this.payload.node);
    this.unknown = el("div", { class: "empty", hidden: true });
    this.node = el("div", { "aria-busy": "true" }, el("p", { class: "over" }, "Dead letter"), this.id, this.known, this.unknown, this.body);
    show(this.known, false);
    show(this.body, false);
  }

  show(params) {
    this.params = params;
    this.letter = this.fetched = null;
    setData(this.id, params.id);
    this.payload.fileName = fileName(params.id);
  }

  async refresh() {
    const params = this.params;
    // A letter rarely changes, and a large one need not travel every two seconds.
    if (this.fetched === "large" && Date.now() - this.fetchedAt < 30000) return;
    let letter;
    try {
      letter = await api.letter(params.id);
    } catch (err) {
      if (err.lost || err.status === 401) throw err;
      if (params === this.params) this.drawUnknown(err);
      return;
    }
    if (params !== this.params) return;
    this.draw(letter);
  }

  draw(l) {
    this.letter = l;
    const f = this.f;
    show(this.unknown, false);
    show(this.known, true);
    show(this.body, true);
    setText(this.reason, l.reason);
    setText(this.why, whys[l.reason] ?? "");
    setData(f.error, l.error || "–");
    setTime(f.died, l.died_at, { fine: true });
    this.details.showRow("target", l.target);
    setData(f.target, l.target ?? "");
    this.details.showRow("due", l.due);
    setTime(f.due, l.due, { fine: true });
    this.details.showRow("scheduled", l.scheduled_at);
    setTime(f.scheduled, l.scheduled_at, { fine: true });
    this.details.showRow("expires", l.expires_after);
    setText(f.expires, l.expires_after ? `${l.expires_after} after it is due` : "");
    this.details.showRow("source", l.source);
    setData(f.source, l.source ?? "");
    setText(f.tries, `${l.attempts} failed${l.lost_leases ? `, ${plural(l.lost_leases, "lost lease")}` : ""}`);
    show(this.same, Boolean(l.target));
    if (l.target) {
      setText(this.same, "All of this target");
      this.same.href = "#/dead?" + new URLSearchParams({ target: l.target });
    }
    this.details.drawContent(l);
    this.payload.set(l.payload);
    this.fetched = (this.payload.bytes?.length ?? 0) > large ? "large" : "small";
    this.fetchedAt = Date.now();
    this.node.removeAttribute("aria-busy");
  }

  drawUnknown(err) {
    const key = err.status + err.message;
    if (this.known.contains(document.activeElement)) byId("main").focus({ preventScroll: true });
    show(this.known, false);
    show(this.body, false);
    show(this.unknown, true);
    this.node.removeAttribute("aria-busy");
    if (this.fetched === key) return;
    this.fetched = key;
    this.letter = null;
    const id = this.params.id;
    this.unknown.replaceChildren(...(err.status === 404
      ? [el("p", null, "There is no dead letter of this id: it was replayed or purged, or never was."),
        el("p", null, link("#/dead", "To the dead letters"), " or ", link(messageHref(id), "to what is known of the id"), ".")]
      : [el("p", null, "It cannot be looked up: ", data(err.message))]));
  }
}
