// The command line: history, completion, hints from COMMAND DOCS, and replies in the form of redis-cli.

import * as api from "./api.js";
import { confirm, h, replace, viewHead } from "./dom.js";
import { fromBytes, joined, parseMap, quoted, seconds, shown } from "./format.js";
import { problem } from "./state.js";

const ENTRIES_MAX = 300;
const LINES_MAX = 2000;
const HISTORY_MAX = 500;

const DANGERS = [
  [/^flushall$/i, /^/, "removes all keys of all databases"],
  [/^flushdb$/i, /^/, "removes all keys of the database"],
  [/^shutdown$/i, /^/, "ends the server"],
  [/^debug$/i, /^/, "is meant for tests, and can stop or change the server"],
  [/^keys$/i, /^\*$/, "sends all names at once; the view Keys shows them in pages"],
  [/^swapdb$/i, /^/, "exchanges two databases under their clients"],
];

// Their replies are text of several lines.
const TEXTS = /^(info|lolwut|client (list|info)|cluster (info|nodes)|memory doctor|latency (doctor|graph))$/i;
const SIMPLE = /^(OK|PONG|QUEUED|Background (saving|append only file).*|NOAUTH.*)$/;

// Kept while the page is open, and not beyond: commands can have secrets.
const past = [];
let docs = null, docsPending = null;
let database = 0;

const encoder = new TextEncoder();

/** Splits a line into words by the rules of redis-cli. Returns null for unbalanced quotes. */
export function split(line) {
  const words = [];
  let at = 0;
  for (;;) {
    while (/\s/.test(line[at] ?? "x")) at++;
    if (at >= line.length) return words;
    const parts = [];
    let quote = null;
    for (;;) {
      const letter = line[at];
      if (letter === undefined) {
        if (quote) return null;
        break;
      }
      if (quote === "\"" && letter === "\\" && /^x[0-9a-fA-F]{2}/.test(line.slice(at + 1, at + 4))) {
        parts.push(Uint8Array.of(parseInt(line.slice(at + 2, at + 4), 16)));
        at += 4;
      } else if (quote === "\"" && letter === "\\" && at + 1 < line.length) {
        const next = line[at + 1];
        parts.push(encoder.encode({ n: "\n", r: "\r", t: "\t", b: "\b", a: "\x07" }[next] ?? next));
        at += 2;
      } else if (quote === "'" && letter === "\\" && line[at + 1] === "'") {
        parts.push(encoder.encode("'"));
        at += 2;
      } else if (quote && letter === quote) {
        at++;
        if (at < line.length && !/\s/.test(line[at])) return null;
        break;
      } else if (!quote && /\s/.test(letter)) {
        break;
      } else if (!quote && (letter === "\"" || letter === "'")) {
        quote = letter;
        at++;
      } else {
        const point = String.fromCodePoint(line.codePointAt(at));
        parts.push(encoder.encode(point));
        at += point.length;
      }
    }
    words.push(fromBytes(joined(parts)));
  }
}

/** Shows a reply as redis-cli does. */
export function replyText(value, isText, indent = "") {
  if (value === null) return "(nil)";
  if (typeof value === "number" || typeof value === "bigint") return `(integer) ${value}`;
  if (typeof value === "string") {
    return isText ? value.replace(/\r\n/g, "\n").replace(/\n$/, "") : SIMPLE.test(value) && !indent ? value : quoted(value);
  }
  if (Array.isArray(value)) {
    if (!value.length) return "(empty array)";
    const width = String(value.length).length;
    return value.map((one, at) => {
      const number = `${String(at + 1).padStart(width)}) `;
      return (at ? indent : "") + number + replyText(one, false, indent + " ".repeat(number.length));
    }).join("\n");
  }
  return value.error !== undefined ? `(error) ${shown(value.error)}` : quoted(value);
}

// --- Hints -------------------------------------------------------------------------------------------------

async function loadDocs() {
  docsPending ??= api.command(["COMMAND", "DOCS"]).then((reply) => {
    docs = new Map();
    for (let at = 0; at + 1 < reply.length; at += 2) add(reply[at], reply[at + 1]);
  }).catch(() => { docsPending = null; });
  return docsPending;
}

function add(name, list) {
  const doc = parseMap(list);
  docs.set(name.replace("|", " ").toUpperCase(), { summary: doc.summary, syntax: (doc.arguments ?? []).map(argument).join(" "),
    group: doc.group, since: doc.since });
  for (const [sub, of] of Object.entries(parseMap(doc.subcommands))) add(sub, of);
}

/** Returns an argument of COMMAND DOCS in the form of a manual page. */
function argument(list) {
  const one = parseMap(list), flags = one.flags ?? [];
  const children = (one.arguments ?? []).map(argument);
  const name = one.display_text ?? one.name;
  let text;
  if (one.type === "oneof") text = children.join(" | ");
  else if (one.type === "block") text = children.join(" ");
  else text = one.type === "pure-token" ? "" : String(name);
  if (one.token !== undefined) text = [one.token === "" ? "\"\"" : one.token, text].filter(Boolean).join(" ");
  const isOptional = flags.includes("optional"), isMultiple = flags.includes("multiple");
  if (one.type === "oneof" && !isOptional) text = `<${text}>`;
  if (isMultiple) text = `${text} [${text} \u2026]`;
  return isOptional ? `[${text}]` : text;
}

/** Returns the command that a line begins with: its name in the documents, and the number of its words. */
function commandOf(words) {
  const [first, second] = words.map((word) => String(word).toUpperCase());
  if (second !== undefined && docs?.has(`${first} ${second}`)) return [`${first} ${second}`, 2];
  return docs?.has(first) ? [first, 1] : [null, 0];
}

function completions(text) {
  if (!docs || !text.trim()) return [];
  const wanted = text.toUpperCase().replace(/\s+/g, " ").trimStart();
  return [...docs.keys()].filter((name) => name.startsWith(wanted) && name !== wanted.trim()).sort();
}

// --- View --------------------------------------------------------------------------------------------------

export function terminal(main) {
  const log = h("div", { class: "log", role: "log", "aria-label": "Replies", tabindex: "0" });
  const hint = h("div", { class: "hint", id: "hint" });
  const prompt = h("span", { class: "mono muted", "aria-hidden": "true" });
  const input = h("input", { id: "line", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    "aria-label": "Command", "aria-describedby": "hint", placeholder: "PING" });
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); submit(); } }, prompt, input,
    h("button", { class: "primary" }, "Run"));
  main.append(viewHead("Command line",
    "Words are separated by blanks; \"quotes\" take escapes such as \\x00 and \\n. Tab completes, the arrow keys recall."),
  h("section", { class: "panel terminal" }, log, hint, form));
  let recalled = past.length, choice = null, busy = null;

  const showPrompt = () => { prompt.textContent = `${database ? `db${database}` : ""}>`; };

  function print(...parts) {
    log.append(...parts);
    while (log.childElementCount > ENTRIES_MAX) log.firstElementChild.remove();
    log.scrollTop = log.scrollHeight;
  }

  async function submit() {
    const line = input.value.trim();
    if (!line) return;
    if (busy) return;
    if (past.at(-1) !== line) past.push(line);
    if (past.length > HISTORY_MAX) past.shift();
    recalled = past.length;
    input.value = "";
    showHint();
    if (/^clear$/i.test(line)) { replace(log); return; }
    const echo = h("pre", { class: "prompt-line" }, `${prompt.textContent} `, h("b", {}, line));
    print(echo);
    const words = split(line);
    if (!words) { print(h("pre", { class: "bad-text" }, "Invalid argument(s): the quotes are not balanced")); return; }
    const danger = DANGERS.find(([name, more]) => name.test(String(words[0])) && more.test(String(words[1] ?? "")));
    if (danger && !await confirm("Run this command?", [h("p", { class: "mono" }, line),
      h("p", {}, `${String(words[0]).toUpperCase()} ${danger[2]}.`)], "Run")) {
      print(h("pre", { class: "muted" }, "(not run)"));
      input.focus();
      return;
    }
    busy = new AbortController();
    const waiting = setTimeout(() => print(cancel), 700);
    const cancel = h("pre", {}, h("button", { type: "button", class: "small", onclick: () => busy?.abort() }, "Stop waiting"));
    try {
      if (/^select$/i.test(String(words[0])) && words.length === 2) {
        await api.command(words);
        database = Number(words[1]);
        print(h("pre", {}, "OK"));
      } else {
        const reply = await api.commandWithTime(words, { db: database, signal: busy.signal });
        const name = words.slice(0, 2).map(String).join(" ");
        const isText = TEXTS.test(name) || TEXTS.test(String(words[0]));
        print(h("pre", {}, shortened(replyText(reply.result, isText))),
          reply.us > 500000 ? h("pre", { class: "muted" }, `(${seconds(reply.us / 1e6)})`) : "");
      }
    } catch (error) {
      if (error.name === "AbortError") print(h("pre", { class: "muted" }, "(given up)"));
      else if (!(error instanceof api.ServerError) || error.status !== 200) print(problem(error));
      else print(h("pre", { class: "bad-text" }, `(error) ${shown(error.message)}`));
    }
    clearTimeout(waiting);
    cancel.remove();
    busy = null;
    showPrompt();
  }

  function showHint() {
    const words = split(input.value) ?? [];
    const [name, used] = commandOf(words);
    if (name && (used === 2 || words.length > 1 || /\s$/.test(input.value) || !completions(input.value).length)) {
      const doc = docs.get(name);
      replace(hint, h("b", {}, name), " ", doc.syntax, doc.summary ? h("div", {}, doc.summary) : null);
      return;
    }
    const found = completions(input.value);
    const more = found.length > 12 ? ` \u2026 (${found.length})` : "";
    replace(hint, found.length ? found.slice(0, 12).join("   ") + more : name ? docs.get(name).summary : "\u00a0");
  }

  input.addEventListener("input", () => { choice = null; showHint(); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const next = recalled + (event.key === "ArrowUp" ? -1 : 1);
      if (next < 0 || next > past.length) return;
      event.preventDefault();
      recalled = next;
      input.value = past[recalled] ?? "";
      showHint();
    } else if (event.key === "Tab" && !event.shiftKey) {
      choice ??= { found: completions(input.value), at: -1 };
      // After the last completion, Tab goes on to the next control.
      if (choice.at + 1 >= choice.found.length) { choice = null; return; }
      event.preventDefault();
      choice.at++;
      input.value = `${choice.found[choice.at]} `;
      showHint();
    } else if (event.key === "l" && event.ctrlKey) {
      event.preventDefault();
      replace(log);
    }
  });
  showPrompt();
  showHint();
  loadDocs().then(showHint);
  input.focus({ preventScroll: true });
  return () => busy?.abort();
}

function shortened(text) {
  const lines = text.split("\n");
  return lines.length <= LINES_MAX ? text
    : `${lines.slice(0, LINES_MAX).join("\n")}\n\u2026 ${lines.length - LINES_MAX} more lines are not shown`;
}
