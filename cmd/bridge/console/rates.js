// What a process counts since its start, as rates and lateness of the last while.
// Behind a balancer each answer may come from another process, so that every
// process has a series of its own.
const keep = 150, rateWindow = 10, lateWindow = 60; // seconds
const series = new Map();

// add takes the "process" of an answer, and returns the series that it belongs to.
export function add(process, now = performance.now() / 1000) {
  if (!process) return null;
  const key = process.started_at + " " + process.version;
  let s = series.get(key);
  if (!s) {
    s = new Series();
    series.set(key, s);
  }
  s.add(process, now);
  for (const [k, other] of series) if (now - other.last.now > keep) series.delete(k);
  return s;
}

class Series {
  samples = [];

  add(process, now) {
    this.samples.push({ process, now });
    while (now - this.samples[0].now > keep) this.samples.shift();
  }

  get last() {
    return this.samples[this.samples.length - 1];
  }

  // back returns the sample that is about so many seconds old, the oldest if none is.
  back(seconds) {
    const from = this.last.now - seconds;
    return this.samples.findLast((s) => s.now <= from) ?? this.samples[0];
  }

  // perSecond is how fast something grows, null as long as that is not known.
  perSecond(of) {
    const last = this.last, first = this.back(rateWindow);
    const seconds = last.now - first.now;
    return seconds < 0.5 ? null : Math.max(0, of(last.process) - of(first.process)) / seconds;
  }

  delivered = (lane) => this.perSecond((p) => p.lanes?.[lane]?.published?.ok ?? 0);
  ingested = (source) => this.perSecond((p) => Object.values(p.ingested?.[source] ?? {}).reduce((n, m) => n + m, 0));
  failed = (lane) => this.perSecond((p) => Object.entries(p.lanes?.[lane]?.published ?? {}).reduce((n, [result, m]) => (result === "ok" ? n : n + m), 0));

  // history is the lane's delivered a second, between any two samples of so many
  // seconds: pairs of the time before now, and the rate.
  history(lane, seconds) {
    const out = [];
    for (let i = 1; i < this.samples.length; i++) {
      if (this.samples[i].now < this.last.now - seconds) continue;
      const a = this.samples[i - 1], b = this.samples[i];
      const n = (b.process.lanes?.[lane]?.published?.ok ?? 0) - (a.process.lanes?.[lane]?.published?.ok ?? 0);
      out.push([b.now - this.last.now, Math.max(0, n) / Math.max(0.2, b.now - a.now)]);
    }
    return out;
  }

  // lateness returns how late the given part of the last minute's deliveries was at
  // most, as the bound of its bucket in seconds: Infinity above the last one, null
  // where nothing was delivered.
  lateness(lane, part) {
    const now = this.last.process.lanes?.[lane]?.lateness;
    const then = this.back(lateWindow).process.lanes?.[lane]?.lateness;
    if (!now || !then) return null;
    const total = now.count - then.count;
    if (total <= 0) return null;
    for (let i = 0; i < now.buckets.length; i++) {
      const [bound, n] = now.buckets[i];
      if (n - (then.buckets[i]?.[1] ?? 0) >= part * total) return bound;
    }
    return Infinity;
  }
}
