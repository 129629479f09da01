// Bytes as the API shows them: {text} or {base64}, null for null.
import { button, data, el, setAttr, setData, setText, show } from "./dom.js";
import { hex, pretty, size } from "./text.js";

// What is shown of a payload at most. All of it can be downloaded or copied.
const mostChars = 32 * 1024, mostBytes = 16 * 1024;

export function decode(view) {
  if (!view) return null;
  if (typeof view.text === "string") return new TextEncoder().encode(view.text);
  const binary = atob(view.base64 ?? "");
  return Uint8Array.from(binary, (c) => c.charCodeAt(0));
}

// short shows a key or a header's value on one line.
export function short(view) {
  if (!view) return el("em", null, "null");
  if (typeof view.text === "string") return view.text === "" ? el("em", null, "empty") : data(view.text);
  const bytes = decode(view);
  if (bytes.length === 0) return el("em", null, "empty");
  const codes = Array.from(bytes.subarray(0, 256), (b) => b.toString(16).padStart(2, "0")).join(" ");
  return el("span", null, el("em", null, `${size(bytes.length)}, not text: `), el("span", { class: "data" }, codes + (bytes.length > 256 ? " …" : "")));
}

// Payload shows bytes as text, as indented JSON or as a dump.
export class Payload {
  constructor(title, fileName) {
    this.fileName = fileName;
    this.about = el("p", { class: "muted" });
    this.text = el("pre", { class: "payload", tabindex: "0", "aria-label": title });
    this.modes = new Map([["text", "Text"], ["json", "JSON"], ["hex", "Hex"]].map(([mode, label]) =>
      [mode, button(label, () => { this.mode = mode; this.draw(); }, { "aria-pressed": "false", data: { mode } })]));
    this.download = button("Download", () => this.save(), { id: "payload-download" });
    this.copy = button("Copy", () => this.toClipboard(), { id: "payload-copy" });
    this.bar = el("div", { class: "bar" }, el("div", { class: "group", role: "group", "aria-label": "Shown as" }, ...this.modes.values()), this.download, this.copy);
    this.node = el("section", { class: "card" }, el("h2", null, title), this.about, this.bar, this.text);
  }

  // set shows a payload. It is drawn again only if it is another one.
  set(view) {
    const key = JSON.stringify(view ?? null);
    if (key === this.key) return;
    this.key = key;
    this.view = view;
    this.bytes = decode(view);
    this.isText = typeof view?.text === "string";
    this.json = this.isText ? pretty(view.text, mostChars) : null;
    this.mode = this.json !== null ? "json" : this.isText ? "text" : "hex";
    this.draw();
  }

  draw() {
    const any = this.bytes !== null && this.bytes.length > 0;
    show(this.bar, any);
    show(this.text, any);
    if (!any) {
      setText(this.about, this.bytes === null ? "Null: there is no payload (on Kafka a tombstone)." : "Empty: 0 bytes.");
      return;
    }
    for (const [mode, b] of this.modes) {
      setAttr(b, "aria-pressed", String(mode === this.mode));
      show(b, mode === "hex" || (mode === "text" ? this.isText : this.json !== null));
    }
    let out, cut;
    if (this.mode === "hex") {
      out = hex(this.bytes.subarray(0, mostBytes));
      cut = this.bytes.length > mostBytes ? size(mostBytes) : "";
    } else {
      out = this.mode === "json" ? this.json : this.view.text;
      cut = out.length > mostChars ? size(mostChars) : "";
      if (cut) out = out.slice(0, mostChars).replace(/[\ud800-\udbff]$/, "");
    }
    setData(this.text, out, true);
    const whole = size(this.bytes.length) + (this.bytes.length >= 1024 ? ` (${this.bytes.length.toLocaleString("en")} bytes)` : "");
    setText(this.about, cut ? `${whole}, cut: the first ${cut} are shown. Download or copy gives all of it.` : whole);
    setText(this.download, "Download" + (cut ? " all" : ""));
    setText(this.copy, "Copy" + (cut ? " all" : ""));
    show(this.copy, this.isText);
  }

  save() {
    const url = URL.createObjectURL(new Blob([this.bytes], { type: "application/octet-stream" }));
    el("a", { href: url, download: this.fileName }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  }

  async toClipboard() {
    const done = await copyText(this.view.text);
    setText(this.copy, done ? "Copied" : "Not copied: the browser refused");
    setTimeout(() => this.draw(), 2000);
  }
}

// copyText works on plain http too, where there is no clipboard for scripts.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { class: "hidden", readonly: true, "aria-hidden": "true" });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    let done = false;
    try {
      done = document.execCommand("copy");
    } catch { /* it is said that it was not */ }
    area.remove();
    focused?.focus({ preventScroll: true });
    return done;
  }
}
