// How things are written: numbers, times, sizes, and text that comes from messages.

// What is not plainly visible, or would change how its neighbours look: control
// and format characters (bidi overrides, zero widths, tags), line and paragraph
// separators, blanks other than the plain one, what has no character at all.
const unseen = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{DI}]|(?! )\p{Zs}/u;
const unseenRuns = new RegExp(`(?:${unseen.source})+`, "gu");
// A text of several lines keeps its line breaks and tabs.
const unseenInLines = new RegExp(`(?:(?![\\n\\t])(?:${unseen.source}))+`, "gu");

function escapeAll(s) {
  let out = "";
  for (const c of s) {
    const n = c.codePointAt(0);
    out += n > 0xffff ? `\\u{${n.toString(16)}}` : `\\u${n.toString(16).padStart(4, "0")}`;
  }
  return out;
}

// pieces cuts text from a message into [text, escaped] pairs: what is escaped is
// written as \u001b, and can be told from the same characters in the message.
export function pieces(text, inLines = false) {
  const out = [];
  let at = 0;
  for (const m of text.matchAll(inLines ? unseenInLines : unseenRuns)) {
    if (m.index > at) out.push([text.slice(at, m.index), false]);
    out.push([escapeAll(m[0]), true]);
    at = m.index + m[0].length;
  }
  if (at < text.length) out.push([text.slice(at), false]);
  return out;
}

// visible is the same as one string, for labels and titles.
export const visible = (text) => pieces(text).map(([s]) => s).join("");

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const count = (n) => whole.format(n);
export const plural = (n, one, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;

// rate writes so many a second.
export function rate(n) {
  if (n === null || n === undefined) return "–";
  if (n === 0) return "0";
  return n < 0.1 ? "< 0.1" : n < 10 ? n.toFixed(1) : count(n);
}

export function size(bytes) {
  if (bytes < 1024) return plural(bytes, "byte");
  const kib = bytes / 1024;
  return kib < 1024 ? `${kib < 10 ? kib.toFixed(1) : count(kib)} KiB` : `${(kib / 1024).toFixed(kib < 10240 ? 1 : 0)} MiB`;
}

const pad = (n, width = 2) => String(n).padStart(width, "0");

// span writes a length of time in ms, in the two units that matter.
export function span(ms) {
  if (ms < 1000) return `${count(Math.max(0, ms))} ms`;
  const s = Math.floor(ms / 1000), m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  if (s < 10 && ms % 1000 >= 100) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  if (s < 60) return `${s} s`;
  if (m < 60) return `${m} m ${pad(s % 60)} s`;
  if (h < 24) return `${h} h ${pad(m % 60)} m`;
  return `${d} d ${pad(h % 24)} h`;
}

// until writes where a moment is from now on, to the second.
export function until(at, now) {
  const s = Math.round((at - now) / 1000);
  if (s === 0) return "now";
  return s > 0 ? `in ${span(s * 1000)}` : `${span(-s * 1000)} ago`;
}

// clock writes the time of day, moment the date with it, both in this place's zone.
export function clock(ms) {
  const d = new Date(ms);
  return `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
}

export function moment(ms, fine = false) {
  const d = new Date(ms);
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${clock(ms)}${fine ? "." + pad(d.getMilliseconds(), 3) : ""}`;
}

// zone names the zone that times are shown in.
export function zone() {
  const minutes = -new Date().getTimezoneOffset(), m = Math.abs(minutes);
  const offset = minutes === 0 ? "UTC" : `UTC${minutes < 0 ? "−" : "+"}${Math.floor(m / 60)}${m % 60 ? ":" + pad(m % 60) : ""}`;
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return !name || name === offset ? offset : `${name} (${offset})`;
}

// pretty indents JSON, at least as far as most characters go, and returns null for
// what is none, or has strings of more megabytes than a pattern can match. It works on
// the text and not on what it means: numbers keep their digits, and names that come
// twice stay.
export function pretty(text, most) {
  try {
    const v = JSON.parse(text);
    if (v === null || typeof v !== "object") return null;
  } catch {
    return null;
  }
  try {
    return indented(text, most);
  } catch {
    return null;
  }
}

function indented(text, most) {
  let out = "", depth = 0;
  const line = () => "\n" + "  ".repeat(Math.min(depth, 100));
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[^\s"{}[\],:]+|[{}[\],:]/g)) {
    if (out.length > most) break;
    if (token === "{" || token === "[") {
      depth++;
      out += token + line();
    } else if (token === "}" || token === "]") {
      depth--;
      const empty = /[{[]\s*$/.test(out.slice(-240));
      out = empty ? out.trimEnd() + token : out + line() + token;
    } else if (token === ",") {
      out += token + line();
    } else {
      out += token === ":" ? ": " : token;
    }
  }
  return out;
}

// hex writes bytes as a dump, 16 a line, with what is printable beside them.
export function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = bytes.subarray(at, at + 16);
    let codes = "", chars = "";
    row.forEach((b, i) => {
      codes += (i === 8 ? " " : "") + b.toString(16).padStart(2, "0") + " ";
      chars += b >= 0x20 && b < 0x7f ? String.fromCharCode(b) : ".";
    });
    lines.push(`${at.toString(16).padStart(8, "0")}  ${codes.padEnd(49)} ${chars}`);
  }
  return lines.join("\n");
}
