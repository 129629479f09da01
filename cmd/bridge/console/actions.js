// What a person can do to one message or letter: each asks first where something is
// lost, says what became of it, and returns whether anything changed.
import * as api from "./api.js";
import { ask } from "./dialog.js";
import { data, el, link } from "./dom.js";
import { say } from "./notice.js";
import { plural, span } from "./text.js";

export const messageHref = (id) => "#/message/" + encodeURIComponent(id);
export const letterHref = (id) => "#/dead/" + encodeURIComponent(id);
export const stateName = (state) => String(state).replaceAll("_", " ");

const trouble = (err) => (err.lost ? `The bridge did not carry it out, or did not say so (${err.message}). It is safe to try again.` : err.message);

export async function cancelMessage(m) {
  const sure = await ask("Cancel this message?", [
    el("p", null, "It will not be delivered. This cannot be undone."),
    el("dl", null, el("dt", null, "Id"), el("dd", null, data(m.id)), el("dt", null, "Target"), el("dd", null, data(m.target ?? "–"))),
  ], "Cancel message");
  if (!sure) return false;
  try {
    await api.cancel(m.id);
    say("good", "Cancelled ", data(m.id), ".");
  } catch (err) {
    if (err.status === 409) say("bad", "Too late to cancel ", data(m.id), `: it is ${stateName(err.body.state ?? "no longer pending")}.`);
    else if (err.status === 404) say("bad", "Nothing is known of ", data(m.id), " any more.");
    else say("bad", "Not cancelled: ", data(trouble(err)));
    return !err.lost;
  }
  return true;
}

export async function replayLetter(letter) {
  try {
    await replayOne(letter);
  } catch (err) {
    if (err.status === 404) say("bad", "Not replayed: ", data(letter.id), " is gone, or has died again since it was shown.");
    else if (err.status === 422) say("bad", "Not replayed: ", data(letter.id), " is still invalid: ", data(err.message));
    else say("bad", "Not replayed: ", data(trouble(err)));
    return !err.lost;
  }
  return true;
}

async function replayOne(letter) {
  const id = letter.id;
  let answer;
  try {
    answer = await api.replay(letter);
  } catch (err) {
    if (err.status !== 409) throw err;
    const sure = await ask("Replace the pending message?", [
      el("p", null, "A message of this id is pending or in flight: ", data(err.message)),
      el("p", null, "With force the dead letter takes its place, and is delivered now. The message that is pending is lost."),
      el("dl", null, el("dt", null, "Id"), el("dd", null, data(id))),
    ], "Replay with force");
    if (!sure) {
      say("", "Not replayed: ", data(id), " is pending.");
      return;
    }
    answer = await api.replay(letter, true);
  }
  const as = answer?.id ?? id;
  say("good", "Replayed ", data(id), ": it is pending again, as ", link(messageHref(as), data(as)), ".");
}

export async function purgeLetter(letter) {
  const sure = await ask("Purge this dead letter?", [
    el("p", null, "The message, with its payload and headers, is removed for good. This cannot be undone."),
    el("dl", null,
      el("dt", null, "Id"), el("dd", null, data(letter.id)),
      el("dt", null, "Target"), el("dd", null, data(letter.target ?? "–")),
      el("dt", null, "Reason"), el("dd", null, letter.reason),
      el("dt", null, "Dead for"), el("dd", null, span(Date.now() - Date.parse(letter.died_at)))),
  ], "Purge for good");
  if (!sure) return false;
  try {
    await api.purge(letter);
    say("good", "Purged ", data(letter.id), ".");
  } catch (err) {
    if (err.status === 404) say("bad", "Not purged: ", data(letter.id), " is gone, or has died again since it was shown.");
    else say("bad", "Not purged: ", data(trouble(err)));
    return !err.lost;
  }
  return true;
}

export const letterCount = (n) => plural(n, "dead letter");
