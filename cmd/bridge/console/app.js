// The page as a whole: which view is shown, how it is kept fresh, and what is said
// when it cannot be.
import * as api from "./api.js";
import { byId, el, serverNow, setAttr, setBadge, setServerNow, setText, show, tick } from "./dom.js";
import { clear as clearNotice } from "./notice.js";
import * as rates from "./rates.js";
import { clock } from "./text.js";
import { DeadList } from "./dead.js";
import { Letter } from "./letter.js";
import { Message } from "./message.js";
import { Overview } from "./overview.js";
import { SignIn } from "./signin.js";
import { Upcoming } from "./upcoming.js";

const interval = 2000, slowest = 15000;
const main = byId("main");

// go moves to a view. A change of what is only looked at in another way replaces.
const app = {
  stats: null,
  series: null,
  go(hash, replace = false) {
    if (replace) history.replaceState(null, "", hash);
    else if (location.hash !== hash) history.pushState(null, "", hash);
    route();
  },
  refresh,
};

const views = { overview: Overview, upcoming: Upcoming, message: Message, dead: DeadList, letter: Letter };

// parse reads a hash: #/view, #/view?name=value, #/message/<id>, #/dead/<id>.
function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [name, id] = path.split(/\/(.*)/s);
  const params = Object.fromEntries(new URLSearchParams(query ?? ""));
  if (id) {
    const kind = { message: "message", dead: "letter" }[name];
    try {
      if (kind) return { kind, params: { ...params, id: decodeURIComponent(id) } };
    } catch { /* half an escape: no id of ours */ }
  }
  return { kind: ["upcoming", "dead"].includes(name) ? name : "overview", params };
}

let view = null, kind = "", shownKey = "", signIn = null;

function route() {
  const to = parse(location.hash);
  const key = JSON.stringify(to);
  if (key === shownKey) return;
  const first = shownKey === "";
  shownKey = key;
  clearNotice();
  const place = { letter: "dead", message: "upcoming" }[to.kind] ?? to.kind;
  for (const a of document.querySelectorAll("nav a")) setAttr(a, "aria-current", a.dataset.view === place ? "page" : null);
  if (kind === to.kind && !view.once) {
    view.show(to.params);
  } else {
    kind = to.kind;
    view = new views[kind](app);
    view.show(to.params);
    main.replaceChildren(view.node);
    if (!first) {
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
  }
  document.title = `${view.title} · Delaybridge`;
  void refresh();
}

addEventListener("popstate", route);
addEventListener("hashchange", route);

// --- keeping it fresh

let paused = false, lastData = 0, timer = 0, running = null, again = false;

// refresh asks for everything that is shown. Calls while it is at it make it do it
// once more, since what they are about may have been asked for too early.
function refresh() {
  if (running) {
    again = true;
    return running;
  }
  clearTimeout(timer);
  running = (async () => {
    let wait;
    do {
      again = false;
      wait = await once();
    } while (again);
    running = null;
    if (!paused && !signIn && !document.hidden) timer = setTimeout(refresh, wait);
  })();
  return running;
}

async function once() {
  if (signIn) return interval;
  const began = performance.now();
  try {
    const stats = await api.stats();
    app.stats = stats;
    app.series = rates.add(stats.process);
    setServerNow(Date.parse(stats.now));
    setBadge(byId("dead-count"), Object.values(stats.dead ?? {}).reduce((a, b) => a + b, 0));
    await view.refresh();
    lastData = Date.now();
    setText(byId("banner"), "");
  } catch (err) {
    if (!(err instanceof api.Failure)) {
      console.error(err);
      setText(byId("banner"), `This page cannot show what the bridge answers (${err.message}). Reload it: the bridge may be another version by now.`);
    } else if (err.status !== 401) lost(err);
    fresh();
    return interval;
  }
  fresh();
  // Who looks on must not become a load: a slow answer is asked for less often.
  return Math.min(slowest, Math.max(interval, 5 * (performance.now() - began)));
}

function lost(err) {
  const what = err.status === 0 ? `Connection lost: ${err.message}.` : `The bridge answers with an error: ${err.message} (${err.status}).`;
  const since = lastData ? `What is shown is of ${clock(lastData)}.` : "There is nothing to show yet.";
  setText(byId("banner"), `${what} ${since} ${paused ? "Refresh tries again." : "It is tried again every few seconds."}`);
}

function fresh() {
  const at = lastData ? `Data of ${clock(lastData)}` : "No data yet";
  setText(byId("fresh"), paused ? `Paused. ${at}` : at);
}

byId("refresh").addEventListener("click", () => refresh());
byId("pause").addEventListener("click", () => {
  paused = !paused;
  setAttr(byId("pause"), "aria-pressed", String(paused));
  setText(byId("pause"), paused ? "Resume" : "Pause");
  document.documentElement.classList.toggle("paused", paused);
  fresh();
  if (paused) clearTimeout(timer);
  else void refresh();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused) void refresh();
});
document.addEventListener("changed", () => refresh());
setInterval(() => { if (!document.hidden) tick(); }, 500);

// --- signing in and out

api.onRefused(() => {
  if (signIn) return;
  const tried = api.signedIn();
  api.setToken("");
  show(byId("sign-out"), false);
  signIn = new SignIn(tried, async (token) => {
    api.setToken(token);
    try {
      await api.stats();
    } catch (err) {
      if (err.status === 401) {
        api.setToken("");
        return "The bridge does not take this token.";
      }
      if (err.status === 0) {
        api.setToken("");
        return `The bridge could not be asked: ${err.message}.`;
      }
    }
    signIn.node.remove();
    signIn = null;
    main.hidden = false;
    show(byId("sign-out"), true);
    main.focus();
    await refresh();
    return "";
  });
  setText(byId("banner"), "");
  main.hidden = true;
  main.after(signIn.node);
  signIn.focus();
});
show(byId("sign-out"), api.signedIn());
byId("sign-out").addEventListener("click", () => {
  api.setToken("");
  location.reload(); // nothing of what was shown stays in the page
});

// --- the rest of the frame

byId("skip").addEventListener("click", (e) => {
  e.preventDefault(); // the hash is the view's
  main.focus();
});
byId("find").addEventListener("submit", (e) => {
  e.preventDefault();
  const id = byId("find-id").value.trim();
  if (id) app.go("#/message/" + encodeURIComponent(id));
});

const theme = byId("theme");
theme.value = document.documentElement.dataset.theme ?? "";
theme.addEventListener("change", () => {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
  try {
    if (theme.value) localStorage.setItem("bridge.theme", theme.value);
    else localStorage.removeItem("bridge.theme");
  } catch { /* for this visit only */ }
});

fresh();
route();
