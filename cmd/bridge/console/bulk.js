// Replaying or purging all dead letters that a filter picks: they are counted first,
// then the person is asked, then each is done by itself, and can be stopped.
import * as api from "./api.js";
import { letterCount } from "./actions.js";
import { close, open } from "./dialog.js";
import { button, data, el, setText } from "./dom.js";
import { say } from "./notice.js";
import { count } from "./text.js";

const atOnce = 4;

const verbs = {
  replay: {
    title: "Replay dead letters", doing: "Replaying", done: "Replayed",
    label: (n) => `Replay ${letterCount(n)}`,
    warn: "They become pending again and are delivered at once, without any attempts counted. What is still invalid, or has an id that is pending again, stays dead.",
  },
  purge: {
    title: "Purge dead letters", doing: "Purging", done: "Purged",
    label: (n) => `Purge ${letterCount(n)} for good`,
    warn: "These messages, with their payloads and headers, are removed for good. This cannot be undone.",
  },
};

// all works on every letter that the filter picks; verb is "replay" or "purge".
export async function all(verb, filter) {
  const v = verbs[verb];
  const counting = new AbortController();
  const status = el("p", { role: "status" }, "Counting …");
  const chosen = el("dl", null,
    el("dt", null, "Reason"), el("dd", null, filter.reason || "any"),
    el("dt", null, "Target"), el("dd", null, filter.target ? data(filter.target) : "any"));
  const yes = button(v.label(0), () => close(true), { class: verb === "purge" ? "danger" : "primary", id: "dialog-yes", hidden: true });
  const answer = open(v.title, [status, chosen, el("p", null, v.warn)], [button("Keep them", () => close(false), { autofocus: true }), yes]);
  answer.then(() => counting.abort());

  let letters = [];
  try {
    letters = await collect(filter, counting.signal, (n) => setText(status, `Counting … ${count(n)}`));
    setText(status, letters.length === 0 ? "No dead letter matches any more." : `${letterCount(letters.length)} will be ${v.done.toLowerCase()}:`);
    setText(yes, v.label(letters.length));
    yes.hidden = letters.length === 0;
  } catch (err) {
    if (!counting.signal.aborted) setText(status, "They could not be counted: " + err.message);
  }
  if ((await answer) !== true) return false;
  await run(verb, letters, false);
  return true;
}

async function collect(filter, signal, progress) {
  const found = new Map();
  for (let after = ""; ;) {
    const page = await api.letters({ ...filter, limit: 500, after }, signal);
    for (const { id, died_at } of page.items) found.set(id, { id, died_at });
    progress(found.size);
    if (!page.next) return [...found.values()];
    after = page.next;
  }
}

async function run(verb, letters, force) {
  const v = verbs[verb];
  const stop = new AbortController();
  const bar = el("progress", { max: letters.length, value: "0", "aria-label": v.doing });
  const status = el("p", { role: "status" }, `${v.doing} ${letterCount(letters.length)} …`);
  const closed = open(v.title, [status, bar], [button("Stop", () => close(null), { autofocus: true })]);
  closed.then(() => stop.abort());

  let done = 0, next = 0, lost = null;
  const pending = [], failed = [];
  const worker = async () => {
    while (next < letters.length && !stop.signal.aborted && !lost) {
      const letter = letters[next++];
      try {
        await (verb === "replay" ? api.replay(letter, force, stop.signal) : api.purge(letter, stop.signal));
        done++;
      } catch (err) {
        if (stop.signal.aborted) return;
        if (err.lost || err.status === 401) lost = err;
        else if (verb === "replay" && err.status === 409) pending.push(letter);
        else failed.push([letter.id, err.message]);
      }
      bar.value = done + pending.length + failed.length;
    }
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
  const stopped = stop.signal.aborted;
  close(true);
  await closed;

  const left = letters.length - done - pending.length - failed.length;
  const said = [`${v.done} ${letterCount(done)}.`];
  if (lost) said.push(` The bridge went away (${lost.message}): ${count(left)} were not tried, or not answered.`);
  else if (stopped) said.push(` Stopped: ${count(left)} were not tried, or not answered.`);
  if (pending.length > 0) said.push(` ${letterCount(pending.length)} stayed: the id is pending again. `,
    button(`Replay ${count(pending.length)} with force`, () => confirmForce(pending)));
  if (failed.length > 0) said.push(` ${letterCount(failed.length)} stayed: `, data(failed[0][0]), " (", data(failed[0][1]), ")", failed.length > 1 ? `, and ${count(failed.length - 1)} more.` : ".");
  say(lost || stopped || pending.length || failed.length ? "bad" : "good", ...said);
  document.dispatchEvent(new Event("changed"));
}

async function confirmForce(letters) {
  const answer = await open("Replace the pending messages?", [
    el("p", null, `${letterCount(letters.length)} take the place of what is pending under the same id, and are delivered now. What is pending is lost.`),
  ], [
    button("Keep them", () => close(false), { autofocus: true }),
    button(`Replay ${count(letters.length)} with force`, () => close(true), { class: "danger", id: "dialog-yes" }),
  ]);
  if (answer === true) await run("replay", letters, true);
}
