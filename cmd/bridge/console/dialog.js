// The one dialog of the page. While it is open nothing behind it can be reached,
// Esc closes it, and the focus goes back to where it came from.
import { byId, button, el } from "./dom.js";

const dialog = byId("dialog");
let settle = null;

dialog.addEventListener("cancel", (e) => { // Esc
  e.preventDefault();
  close(null);
});
dialog.addEventListener("close", () => {
  if (!dialog.open) close(null); // the browser may close it without asking
});
dialog.addEventListener("click", (e) => {
  if (e.target === dialog) close(null); // on what is around it
});

export function close(result) {
  if (dialog.open) dialog.close();
  const resolve = settle, opener = dialog.opener;
  settle = dialog.opener = null;
  if (!resolve) return;
  dialog.replaceChildren();
  if (document.activeElement === document.body) (opener?.isConnected ? opener : byId("main")).focus({ preventScroll: true });
  resolve(result);
}

// open shows a dialog and returns a promise of what it is closed with, null if by Esc.
export function open(title, body, actions) {
  close(null);
  dialog.opener = document.activeElement;
  dialog.replaceChildren(el("h2", { id: "dialog-title" }, title), el("div", { class: "body" }, ...body), el("div", { class: "actions" }, ...actions));
  dialog.showModal();
  return new Promise((resolve) => { settle = resolve; });
}

// ask puts a question with one answer that does something, and one that does not.
// The latter has the focus: who presses Enter by habit has done nothing.
export async function ask(title, body, label, { danger = true, keep = "Keep it" } = {}) {
  const yes = await open(title, body, [
    button(keep, () => close(false), { autofocus: true }),
    button(label, () => close(true), { class: danger ? "danger" : "primary", id: "dialog-yes" }),
  ]);
  return yes === true;
}
