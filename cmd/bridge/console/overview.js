// Every lane, every source, the dead by reason: how the queue is, and how this
// process does.
import { command, el, link, setText, setTime, show, table, timeOf, reconcile } from "./dom.js";
import { count, moment, rate, span, visible } from "./text.js";

const results = ["scheduled", "replaced", "duplicate", "cancelled", "too_late", "rejected"];

export class Overview {
  title = "Overview";

  constructor(app) {
    this.app = app;
    this.lanes = table("Lanes", [["Sink"], ["State"], ["Pending", "num"], ["In flight", "num"], ["Overdue", "num"], ["Due in > 1 h", "num"], ["Next due", "num"],
      ["Delivered/s", "num", "Delivered/s here"], ["Failed/s", "num", "Failed/s here"], ["Lateness p50", "num", "Lateness p50 here"], ["p99", "num", "Lateness p99 here"]],
    [["", 2], ["The whole queue", 5], ["This process, of late", 4]]);
    this.sources = table("Sources", [["Source", "wide"], ["Taken in/s", "num"], ...results.map((r) => [r.replace("_", " ").replace(/^./, (c) => c.toUpperCase()), "num"])]);
    this.dead = table("Dead letters by reason", [["Reason"], ["Dead letters", "num"], ["Why", "wide"]]);
    this.empty = el("div", { class: "empty", hidden: true },
      el("p", null, "Nothing is waiting. Schedule a message, and watch it here until it is delivered:"),
      command("bridge schedule --target nats://orders.timeout --delay 30s 'hello'"),
      el("p", null, "or publish one to a source of the bridge with the headers ", el("code", null, "Bridge-Target"), " and ", el("code", null, "Bridge-Delay"), "."));
    this.noDead = el("p", { class: "muted" }, "None. What cannot be delivered is kept here, with the reason.");
    this.noSources = el("p", { class: "muted" }, "This process takes nothing in (BRIDGE_ROLES).");
    this.troubles = el("ul", { class: "troubles", role: "status" });
    this.about = el("p", { class: "muted" });
    this.node = el("div", { "aria-busy": "true" },
      el("h1", null, "Overview"),
      this.troubles,
      this.empty,
      el("section", { class: "card" }, el("h2", null, "Lanes"), this.lanes.node, this.about),
      el("section", { class: "card" }, el("h2", null, "Sources of this process"), this.sources.node, this.noSources),
      el("section", { class: "card" }, el("h2", null, "Dead letters"), this.dead.node, this.noDead));
  }

  show() {}

  async refresh() {
    const { stats, series } = this.app;
    const lanes = Object.entries(stats.lanes ?? {});
    const dead = Object.entries(stats.dead ?? {}).filter(([, n]) => n > 0);
    const served = stats.process?.lanes ?? {};
    const held = stats.process?.ingest_held;
    show(this.empty, lanes.every(([, l]) => l.pending + l.in_flight === 0) && dead.length === 0 && !held);
    reconcile(this.lanes.body, lanes, ([name]) => name, ([name]) => this.laneRow(name), (row, [name, l]) => this.drawLane(row, l, served[name], series, name));

    const troubles = lanes.map(([name, l]) => [name, ...laneState(l, served[name])]).filter(([, , , , trouble]) => trouble);
    if (held) troubles.unshift(["sources", "", "warn", `nothing is taken in until there is room: ${visible(held)}. The sources keep what comes, and delivery goes on.`]);
    reconcile(this.troubles, troubles, ([name]) => name, () => el("li"), (item, [name, , kind, why]) => {
      item.className = kind;
      setText(item, `${name}: ${why}`);
    });

    const sources = Object.entries(stats.process?.ingested ?? {});
    show(this.sources.node, sources.length > 0);
    show(this.noSources, sources.length === 0);
    reconcile(this.sources.body, sources, ([name]) => name, ([name]) => this.sourceRow(name), (row, [name, counts]) => {
      setText(row.rate, rate(series?.ingested(name)));
      results.forEach((r, i) => setText(row.counts[i], count(counts[r] ?? 0)));
    });

    show(this.dead.node, dead.length > 0);
    show(this.noDead, dead.length === 0);
    reconcile(this.dead.body, dead, ([reason]) => reason, ([reason]) => this.deadRow(reason), (row, [, n]) => setText(row.count, count(n)));

    const p = stats.process;
    setText(this.about, p ? `This process is the one that answered: version ${visible(p.version)}, started ${moment(Date.parse(p.started_at))}. Its rates are of the last 10 s, its lateness (how long after the due time half and 99% were confirmed, at most) of the last minute. Other processes have their own.` : "");
    this.node.removeAttribute("aria-busy");
  }

  laneRow(name) {
    const cell = () => el("span");
    const f = { state: el("span", { class: "pill" }), pending: link("#/upcoming?sink=" + encodeURIComponent(name), "0"), flight: cell(), overdue: cell(), far: cell(),
      next: timeOf(), rate: cell(), failed: cell(), spark: spark(), p50: cell(), p99: cell() };
    const row = this.lanes.row(el("strong", null, name), f.state, f.pending, f.flight, f.overdue, f.far, f.next, [f.spark, f.rate], f.failed, f.p50, f.p99);
    row.f = f;
    return row;
  }

  drawLane(row, l, served, series, name) {
    const f = row.f;
    const [state, kind, why] = laneState(l, served);
    setText(f.state, state);
    f.state.className = "pill " + kind;
    f.state.title = why;
    setText(f.pending, count(l.pending));
    setText(f.flight, count(l.in_flight));
    setText(f.overdue, l.overdue > 0 ? `${count(l.overdue)} (${span(l.overdue_seconds * 1000)})` : "0");
    f.overdue.className = l.overdue > 0 && kind !== "good" ? "text-" + (kind || "warn") : "";
    setText(f.far, count(l.far));
    // What comes due between two answers is delivered, not late.
    setTime(f.next, l.next_due, { counting: true, noPast: l.overdue === 0 });
    setText(f.rate, served ? rate(series?.delivered(name)) : "–");
    const failed = served ? series?.failed(name) : null;
    setText(f.failed, rate(failed));
    f.failed.className = failed ? "text-bad" : "";
    drawSpark(f.spark, served ? series?.history(name, sparkSeconds) ?? [] : []);
    setText(f.p50, lateness(series?.lateness(name, 0.5)));
    setText(f.p99, lateness(series?.lateness(name, 0.99)));
  }

  sourceRow(name) {
    const cells = results.map(() => el("span")), speed = el("span");
    const row = this.sources.row(el("strong", null, visible(name)), speed, ...cells);
    row.rate = speed;
    row.counts = cells;
    return row;
  }

  deadRow(reason) {
    const n = link("#/dead?reason=" + encodeURIComponent(reason), "0");
    const row = this.dead.row(el("strong", null, reason), n, whys[reason] ?? "");
    row.count = n;
    return row;
  }
}

export const whys = {
  rejected: "Refused when it came in.",
  permanent: "The broker will never take it.",
  attempts: "Failed as often as BRIDGE_MAX_ATTEMPTS allows.",
  expired: "Not delivered within Bridge-Expires-After.",
  abandoned: "Its lease ran out BRIDGE_MAX_LOST_LEASES times: processes crashed over it.",
  corrupt: "Its record in Redis cannot be read.",
};

// laneState says how a lane is: a word, its colour, what is behind it, and whether
// somebody should do something about it.
function laneState(l, served) {
  if (served?.circuit_open) return ["Circuit open", "bad", 'the broker cannot be reached. What is due waits, and goes on without help when it is back. "bridge doctor" says what is wrong.', true];
  if (l.overdue > 0 && !served) return ["Not served here", "warn", "messages are due, and this process does not publish to this sink. If no other process does, set its broker (BRIDGE_NATS_URL, BRIDGE_KAFKA_BROKERS).", true];
  if (l.overdue > 0 && l.overdue_seconds > 5) return ["Late", "warn", 'messages are due and wait, though no broker is known to be away: more is due than is delivered, or no process is there that delivers. "bridge doctor" looks at both.', true];
  if (!served) return ["Not served here", "", "This process does not publish to this sink.", false];
  return ["Flowing", "good", "Nothing is late.", false];
}

function lateness(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds === Infinity ? "> 10 m" : "≤ " + span(seconds * 1000);
}

// A line of the deliveries of the last two minutes. It only repeats the number
// beside it, so that who does not see it misses nothing.
const sparkSeconds = 120;
const svg = "http://www.w3.org/2000/svg";
function spark() {
  const node = document.createElementNS(svg, "svg");
  node.setAttribute("class", "spark");
  node.setAttribute("viewBox", "0 0 100 24");
  node.setAttribute("preserveAspectRatio", "none");
  node.setAttribute("aria-hidden", "true");
  node.append(document.createElementNS(svg, "polyline"));
  return node;
}

function drawSpark(node, points) {
  if (points.length < 3) points = []; // no line yet
  const most = Math.max(1, ...points.map(([, n]) => n));
  node.firstChild.setAttribute("points", points.map(([t, n]) => `${(100 + (100 * t) / sparkSeconds).toFixed(1)},${(22.5 - (21 * n) / most).toFixed(1)}`).join(" "));
}
