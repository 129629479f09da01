// The API, as this page calls it. Paths are relative, so that it also works behind
// a proxy that puts a prefix before them.
const tokenKey = "bridge.token";
const patience = 20000;

// Failure is a call that did not succeed. Status is 0 where nothing answered.
export class Failure extends Error {
  constructor(status, message, body) {
    super(message);
    this.status = status;
    this.body = body ?? {};
  }
  // lost says that the trouble is not with what was asked.
  get lost() {
    return this.status === 0 || this.status >= 500;
  }
}

let token = "";
try {
  token = sessionStorage.getItem(tokenKey) ?? "";
} catch { /* no storage: it is asked for again after a reload */ }

export const signedIn = () => token !== "";

export function setToken(value) {
  token = value;
  try {
    if (value) sessionStorage.setItem(tokenKey, value);
    else sessionStorage.removeItem(tokenKey);
  } catch { /* kept in memory only */ }
}

let refused = () => {};
// onRefused sets what is done when the API wants a token, or another one.
export function onRefused(f) {
  refused = f;
}

// call asks the API and returns its answer, null for none. It throws a Failure,
// and an AbortError when signal ends it.
export async function call(method, path, query, signal) {
  const params = new URLSearchParams(Object.entries(query ?? {}).filter(([, v]) => v !== "" && v !== null && v !== undefined));
  const url = path + (params.size ? "?" + params : "");
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = "Bearer " + token;
  const limit = AbortSignal.timeout(patience);
  let response, text;
  try {
    response = await fetch(url, { method, headers, cache: "no-store", credentials: "same-origin", redirect: "error", signal: signal ? AbortSignal.any([signal, limit]) : limit });
    text = await response.text();
  } catch (err) {
    if (signal?.aborted) throw err;
    throw new Failure(0, limit.aborted ? `no answer within ${patience / 1000} s` : "no connection");
  }
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    if (response.ok) throw new Failure(502, "the answer is not from the bridge's API");
  }
  if (response.ok) return body;
  if (response.status === 401) refused();
  throw new Failure(response.status, typeof body?.error === "string" ? body.error : response.statusText || `status ${response.status}`, body);
}

// path names a message or a letter. Browsers take these two names for steps up the
// path, however they are escaped.
function path(kind, id) {
  if (id === "." || id === "..") throw new Failure(400, `a browser cannot ask for the id "${id}": use the command line`);
  return `v1/${kind}/${encodeURIComponent(id)}`;
}
const messagePath = (id) => path("messages", id);
const letterPath = (id) => path("dead", id);

export const stats = () => call("GET", "v1/stats");
export const messages = (query) => call("GET", "v1/messages", query);
export const message = async (id, payload) => call("GET", messagePath(id), { payload: payload ? "true" : "" });
export const cancel = async (id) => call("DELETE", messagePath(id));
export const letters = (query, signal) => call("GET", "v1/dead", query, signal);
export const letter = async (id) => call("GET", letterPath(id));
// A letter is named with the time that it died at: another that has taken its place
// since is not meant.
export const replay = async (letter, force, signal) => call("POST", letterPath(letter.id) + "/replay", { force: force ? "true" : "", died_at: letter.died_at }, signal);
export const purge = async (letter, signal) => call("DELETE", letterPath(letter.id), { died_at: letter.died_at }, signal);
