// Requests to the server. A word of a command is a string, a number, or `{b64}`.

export const session = { user: null, csrf: null };

/** An error that the server replied to a command, or to a request. */
export class ServerError extends Error {
  constructor(message, status = 200) {
    super(message);
    this.status = status;
  }
}

/** Called when the session has ended. */
let onEnd = () => {};
export function whenSessionEnds(callback) { onEnd = callback; }

// Integers beyond the exact range of a double keep their digits.
function parse(text) {
  if (!/\d{16,}/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, context) => typeof value === "number" && !Number.isSafeInteger(value)
    && /^-?\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value);
}

async function request(method, path, { body, signal, headers } = {}) {
  const init = { method, signal, credentials: "same-origin", cache: "no-store", headers: { ...headers } };
  if (method === "POST") init.headers["X-Evenkeel-CSRF"] = session.csrf ?? "none";
  if (body !== undefined) {
    init.headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(body, (_, value) => typeof value === "bigint" ? value.toString() : value);
  }
  const reply = await fetch(path, init);
  const text = await reply.text();
  let value = null;
  try { value = text ? parse(text) : null; } catch { /* the status says it */ }
  if (!reply.ok) {
    if (reply.status === 401 && session.csrf && path !== "/api/login") {
      session.user = session.csrf = null;
      onEnd();
    }
    throw new ServerError(value?.error ?? `The server replied with status ${reply.status}`, reply.status);
  }
  return value;
}

function begin(reply) {
  session.user = reply.user;
  session.csrf = reply.csrf;
  return reply;
}

export async function currentSession() {
  return begin(await request("GET", "/api/session", { headers: { "X-Evenkeel-CSRF": "new" } }));
}

export async function logIn(user, password) {
  return begin(await request("POST", "/api/login", { body: { user, password } }));
}

export async function logOut() {
  await request("POST", "/api/logout");
  session.user = session.csrf = null;
}

const inDatabase = (path, db) => db ? `${path}?db=${db}` : path;

/** Runs a command, and returns its reply with its time in microseconds. */
export async function commandWithTime(words, { db = 0, signal } = {}) {
  const reply = await request("POST", inDatabase("/api/command", db), { body: words, signal });
  if (reply.error !== undefined) throw new ServerError(reply.error);
  return reply;
}

export async function command(words, options) {
  return (await commandWithTime(words, options)).result;
}

/** Runs commands, and returns their replies; an error stands for the reply of its command. */
export async function pipeline(list, { db = 0, signal } = {}) {
  if (!list.length) return [];
  const replies = await request("POST", inDatabase("/api/pipeline", db), { body: list, signal });
  return replies.map((reply) => reply.error !== undefined ? new ServerError(reply.error) : reply.result);
}

export const defaults = () => request("GET", "/api/defaults");
export const series = (from, to, points, signal) =>
  request("GET", `/api/series?from=${from}&to=${to}&points=${points}`, { signal });
export const events = (from, to, signal) => request("GET", `/api/events?from=${from}&to=${to}`, { signal });
export const slots = (db) => request("GET", `/api/slots?db=${db}`);
export const capture = () => request("GET", "/api/doctor");
export const startCapture = (seconds) => request("POST", `/api/doctor?seconds=${seconds}`);
export const findings = (from, to, signal) => request("GET", `/api/findings?from=${from}&to=${to}`, { signal });
