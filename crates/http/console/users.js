// Users of the ACL with their rules, their edits, and refused commands and logins from ACL LOG.

import * as api from "./api.js";
import { ask, confirm, h, panel, replace, say, table, viewHead } from "./dom.js";
import { count, moment, parseMap, parsePairs, plural, shown, unescape } from "./format.js";
import { edits, loading, problem, whenEditsChange } from "./state.js";

const LOG_MAX = 128;

// Rules that the form has fields for, and the rule that every user has.
const OWN_FIELDS = ["on", "off", "nopass", "sanitize-payload"];

export function users(main) {
  const state = { rows: null };
  const list = h("div", {}, loading()), log = h("div", { class: "below" }, loading());
  main.append(viewHead("ACL users", "ACL SETUSER and ACL DELUSER change the running server; ACL SAVE writes the users to their file.",
    h("button", { type: "button", onclick: load }, "Reload")), list, log);

  async function load() {
    try {
      const [lines, entries] = await api.pipeline([["ACL", "LIST"], ["ACL", "LOG", LOG_MAX]]);
      state.rows = lines instanceof Error ? null : lines.map(rowOf);
      if (state.rows) draw();
      else replace(list, problem(lines));
      replace(log, entries instanceof Error ? problem(entries) : logPanel(entries));
    } catch (error) {
      state.rows = null;
      replace(list, problem(error));
      replace(log);
    }
  }

  function draw() {
    const rows = state.rows;
    if (!rows) return;
    const columns = [
      { name: "User", head: true, cls: "mono", cell: (row) => row.name, sort: (row) => row.name },
      { name: "State", cell: (row) => h("span", { class: row.on ? "pill ok" : "pill" }, row.on ? "on" : "off") },
      { name: "Passwords", num: true, cell: (row) => row.nopass ? h("span", { class: "pill warn" }, "none needed") : count(row.passwords) },
      { name: "Keys", cls: "mono wrap", cell: (row) => row.keys || null },
      { name: "Channels", cls: "mono wrap", cell: (row) => row.channels || null },
      { name: "Commands", cls: "mono wrap", cell: (row) => row.commands || null },
      ...(edits.on ? [{ name: "Actions", cls: "actions", cell: (row) => [
        h("button", { type: "button", class: "small", "aria-label": `Edit ${row.name}`, onclick: () => edit(row) }, "Edit"), " ",
        h("button", { type: "button", class: "small danger", "aria-label": `Delete ${row.name}`, disabled: row.name === "default",
          onclick: () => remove(row) }, "Delete")] }] : []),
    ];
    const tools = edits.on ? [h("button", { type: "button", class: "small", onclick: create }, "New user"),
      h("button", { type: "button", class: "small", onclick: save }, "Write to the file")] : null;
    replace(list, panel(plural(rows.length, "user"), tools, table(columns, rows, { label: "Users" })));
  }

  async function change(words, said) {
    if (!edits.on) throw new Error("Edits are not allowed.");
    const reply = await api.command(words);
    say(said);
    return reply;
  }

  async function create() {
    const done = await ask("New user", [{ name: "name", label: "Name" }, ...fieldsOf({ on: true, rules: "" })], "Create",
      async (values) => {
        const name = unescape(values.name);
        if (!values.name) throw new Error("A user has a name.");
        if (state.rows.some((row) => row.name === values.name)) throw new Error("There is a user of this name already.");
        await change(["ACL", "SETUSER", name, ...rulesOf(values, {})], "The user was created.");
      });
    if (done) load();
  }

  async function edit(row) {
    const done = await ask(`User ${row.name}`, fieldsOf(row), "Set", (values) =>
      change(["ACL", "SETUSER", unescape(row.name), ...rulesOf(values, row)], "The user was changed."));
    if (done) load();
  }

  async function remove(row) {
    const text = [h("p", { class: "mono" }, row.name),
      h("p", {}, "ACL DELUSER removes the user and closes its connections.")];
    if (!await confirm("Delete this user?", text, "Delete")) return;
    try {
      await change(["ACL", "DELUSER", unescape(row.name)], "The user was deleted.");
      load();
    } catch (error) {
      list.prepend(problem(error));
    }
  }

  async function save() {
    try {
      await change(["ACL", "SAVE"], "The file was written.");
    } catch (error) {
      list.prepend(problem(error));
    }
  }

  const stop = whenEditsChange(draw);
  load();
  return stop;
}

/** Reads a line of ACL LIST. The hashes of passwords are counted, and go no further. */
function rowOf(line) {
  const [, name, ...words] = shown(line).split(" ");
  const rest = words.filter((word) => !word.startsWith("#") && !OWN_FIELDS.includes(word));
  return { name, on: words.includes("on"), nopass: words.includes("nopass"), rules: rest.join(" "),
    passwords: words.filter((word) => word.startsWith("#")).length,
    keys: rest.filter((word) => /^[~%]/.test(word)).join(" "),
    channels: rest.filter((word) => word.startsWith("&")).join(" "),
    commands: rest.filter((word) => !/^[~%&]/.test(word)).join(" ") };
}

/** Returns the fields of the form; a password is typed in anew, and is never shown. */
function fieldsOf(user) {
  const present = user.passwords ? `; the user has ${plural(user.passwords, "password")}` : "";
  return [{ name: "on", type: "check", label: "May log in", value: user.on },
    { name: "nopass", type: "check", label: "Needs no password: any will do", value: user.nopass },
    { name: "password", type: "password", label: `Further password${present}; empty: none` },
    { name: "only", type: "check", label: "Remove all other passwords", value: false },
    { name: "rules", type: "area", label: "Keys, channels and commands, such as ~app:* &news +@read", value: user.rules }];
}

/** Returns the rules of ACL SETUSER that lead from `user` to the values of the form. */
function rulesOf({ on, nopass, password, only, rules }, user) {
  if (nopass && password) throw new Error("A user that needs no password has none.");
  const passwords = nopass ? user.nopass ? [] : ["nopass"]
    : [...(only || user.nopass ? ["resetpass"] : []), ...(password ? [`>${password}`] : [])];
  const typed = rules.split(/\s+/).filter(Boolean).map(unescape);
  if (typed.some((rule) => typeof rule === "string" && /^[><#!]|^(no|reset)pass$/.test(rule))) {
    throw new Error("Passwords have fields of their own.");
  }
  return [on ? "on" : "off", ...passwords, "resetkeys", "resetchannels", "-@all", "clearselectors", ...typed];
}

function logPanel(entries) {
  const now = Date.now();
  const rows = entries.map((entry) => {
    const fields = parseMap(entry), client = parsePairs(String(fields["client-info"] ?? ""), " ");
    return { ...fields, address: client.addr, at: Number(fields["timestamp-last-updated"] ?? now - 1000 * fields["age-seconds"]) };
  });
  const columns = [
    { name: "Last", cls: "mono time", cell: (row) => moment(row.at), sort: (row) => row.at },
    { name: "Times", num: true, cell: (row) => count(Number(row.count)), sort: (row) => Number(row.count) },
    { name: "User", cls: "mono wrap", head: true, cell: (row) => shown(row.username), sort: (row) => row.username },
    { name: "Refused for", cell: (row) => row.reason, sort: (row) => row.reason },
    { name: "Object", cls: "mono wrap", cell: (row) => shown(row.object) },
    { name: "Context", cell: (row) => row.context },
    { name: "Address", cls: "mono", cell: (row) => row.address },
  ];
  return panel("Refused commands and logins", null, rows.length
    ? table(columns, rows, { label: "ACL log", cls: "tall" }) : h("div", { class: "empty" }, "Nothing was refused."));
}
