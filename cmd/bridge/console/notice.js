// What became of an action, said where it is seen and read out.
import { byId, button, el } from "./dom.js";

const box = byId("notice");

export function say(kind, ...content) {
  box.className = "notice " + kind;
  box.replaceChildren(el("p", null, ...content), button("Dismiss", () => clear()));
}

export function clear() {
  box.className = "notice";
  box.replaceChildren();
}
