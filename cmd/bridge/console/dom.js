// Making elements and keeping them up to date. Nothing here takes markup: text goes
// into text nodes, so that what a message holds cannot become part of the page.
import { count, moment, pieces, until, visible } from "./text.js";

export const byId = (id) => document.getElementById(id);

// el makes an element: on is its listeners, data its data-, class and the rest are
// attributes (true is an empty one, null and false are none).
export function el(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, f] of Object.entries(value)) node.addEventListener(event, f);
    else if (name === "data") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

export const button = (label, click, props) => el("button", { type: "button", ...props, on: { click } }, label);
export const link = (href, label, props) => el("a", { href, ...props }, label);

// What has not changed is left alone, and the text node stays the same one: who has
// selected it keeps the selection.
export function setText(node, text) {
  if (node.textContent === text) return node;
  if (text !== "" && node.childNodes.length === 1 && node.firstChild.nodeType === Node.TEXT_NODE) node.firstChild.data = text;
  else node.textContent = text;
  return node;
}
export function setAttr(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}
export function show(node, yes) {
  if (node.hidden === yes) node.hidden = !yes;
}

const shown = new WeakMap();

// setData shows text that comes from a message, with what is unseen escaped.
export function setData(node, text, inLines = false) {
  if (shown.get(node) === text) return node;
  shown.set(node, text);
  node.classList.add("data");
  node.replaceChildren(...pieces(text, inLines).map(([s, escaped]) => (escaped ? el("span", { class: "esc" }, s) : s)));
  return node;
}
export const data = (text, tag = "span") => setData(el(tag), text);

// setCell is setData for a cell that may be cut: the whole is its title.
export function setCell(node, text) {
  setData(node, text);
  setAttr(node, "title", visible(text));
}

// The clock of the queue, as far as this page knows it.
let ahead = 0;
export const serverNow = () => Date.now() + ahead;
export function setServerNow(ms) {
  if (!Number.isNaN(ms)) ahead = ms - Date.now();
}

// timeOf is a moment as an element; with counting it says how far off it is, and
// goes on saying so, with noPast until it is now.
export function timeOf() {
  return el("time");
}
export function setTime(node, iso, { counting = false, fine = false, noPast = false } = {}) {
  const at = iso ? Date.parse(iso) : NaN;
  if (Number.isNaN(at)) {
    node.removeAttribute("datetime");
    node.removeAttribute("title");
    delete node.dataset.at;
    setText(node, "–");
    return node;
  }
  setAttr(node, "datetime", iso);
  if (counting) {
    node.dataset.at = at;
    node.noPast = noPast;
    setText(node, left(node));
    setAttr(node, "title", `${moment(at, true)} (${iso})`);
  } else {
    setText(node, moment(at, fine));
    setAttr(node, "title", iso);
  }
  return node;
}

function left(node) {
  const at = Number(node.dataset.at), now = serverNow();
  return until(node.noPast ? Math.max(at, now) : at, now);
}

// tick moves every countdown on.
export function tick() {
  for (const node of document.querySelectorAll("time[data-at]")) setText(node, left(node));
}

// held says that a row must not go: the person is in it, or has selected from it.
function held(row) {
  if (row.contains(document.activeElement)) return true;
  const opener = document.querySelector("dialog[open]")?.opener;
  if (opener && row.contains(opener)) return true;
  const selection = getSelection();
  return !selection.isCollapsed && selection.containsNode(row, true);
}

const rowsOf = new WeakMap(); // by their key

// reconcile makes the rows of parent those of items, and moves as little as it can.
// A row that is held stays where it is, marked as gone, until it is let go of.
export function reconcile(parent, items, key, make, update) {
  let rows = rowsOf.get(parent);
  if (!rows) rowsOf.set(parent, (rows = new Map()));
  const wanted = new Set(items.map(key));
  const gone = new Set();
  for (const [k, row] of rows) {
    if (wanted.has(k)) continue;
    if (held(row)) {
      gone.add(row);
      markGone(row, true);
    } else {
      rows.delete(k);
      row.remove();
    }
  }
  const focused = document.activeElement;
  let cursor = parent.firstChild;
  for (const item of items) {
    while (gone.has(cursor)) cursor = cursor.nextSibling;
    const k = key(item);
    let row = rows.get(k);
    if (!row) rows.set(k, (row = make(item)));
    markGone(row, false);
    update(row, item);
    if (row === cursor) cursor = cursor.nextSibling;
    else parent.insertBefore(row, cursor);
  }
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

function markGone(row, gone) {
  row.classList.toggle("gone", gone);
  for (const b of row.querySelectorAll("button")) setAttr(b, "aria-disabled", gone ? "true" : null);
}

// walkRows lets the arrow keys go from row to row, from any control in one to the
// same in the next.
export function walkRows(body) {
  body.addEventListener("keydown", (e) => {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[e.key];
    const row = e.target.closest("tr");
    const next = step && row?.[step];
    if (!next || e.altKey || e.ctrlKey || e.metaKey || e.shiftKey) return;
    const at = [...row.querySelectorAll("a, button")].indexOf(e.target);
    const controls = [...next.querySelectorAll("a, button")];
    (controls[at] ?? controls[0])?.focus();
    e.preventDefault();
  });
}

// table makes a table whose cells carry their column's name, for narrow screens.
// A column is [name, class, name in a cell]; groups are [name, columns], over them.
export function table(caption, columns, groups) {
  const body = el("tbody");
  walkRows(body);
  const node = el("table", null,
    el("caption", { class: "hidden" }, caption),
    el("thead", null, groups && el("tr", { class: "groups" }, ...groups.map(([name, n]) => (name ? el("th", { scope: "colgroup", colspan: n }, name) : el("td", { colspan: n })))), el("tr", null, ...columns.map(([name, cls]) => el("th", { scope: "col", class: cls ?? null }, name || el("span", { class: "hidden" }, "Actions"))))),
    body);
  const row = (...cells) => el("tr", null, ...cells.map((c, i) => el("td", { class: columns[i][1] ?? null, data: { label: columns[i][2] ?? columns[i][0] } }, ...[c].flat())));
  return { node: el("div", { class: "scroll" }, node), body, row };
}

// command is an example to run, on a line of its own that breaks between words only.
export const command = (text) => el("pre", { class: "command" }, el("code", null, ...text.split(/( )/).map((word) => (word === " " ? word : el("span", null, word)))));

export function setBadge(node, n) {
  show(node, n > 0);
  setText(node, count(n));
}
