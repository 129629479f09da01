// The prompt for the token, in place of the view.
import { el, setText } from "./dom.js";

export class SignIn {
  // tried says that a token was sent and refused; submit takes a token and returns
  // what is wrong with it, empty when it was taken.
  constructor(tried, submit) {
    this.input = el("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "token-error" });
    this.error = el("p", { id: "token-error", class: "error", role: "alert" });
    this.node = el("section", { class: "signin card" },
      el("h1", null, "Sign in"),
      el("p", null, "This bridge asks for its token: the value of ", el("code", null, "BRIDGE_API_TOKEN"), ". It is kept in this tab until you sign out or close it."),
      el("form", { on: { submit: (e) => this.send(e, submit) } },
        el("label", { for: "token" }, "Token"), this.input,
        el("button", { type: "submit", class: "primary" }, "Sign in")),
      this.error);
    if (tried) setText(this.error, "The bridge no longer takes the token of this tab.");
  }

  async send(e, submit) {
    e.preventDefault();
    const token = this.input.value.trim();
    if (!/^[\x21-\x7e]+$/.test(token)) {
      setText(this.error, "A token has letters, digits and signs, and no blanks.");
      return;
    }
    const wrong = await submit(token);
    if (wrong) {
      setText(this.error, wrong);
      this.input.select();
    }
  }

  focus() {
    this.input.focus();
  }
}
