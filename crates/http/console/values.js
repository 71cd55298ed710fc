// The value of a key, a page at a time, and its edits.

import * as api from "./api.js";
import { ask, confirm, h, replace, say, table } from "./dom.js";
import { bytes, count, hexDump, moment, quoted, same, shown, toBytes, unescape } from "./format.js";
import { edits, loading, problem, whenEditsChange } from "./state.js";
import { ttlText } from "./keys.js";

const PAGE = 100;
const TEXT_PAGE = 16 << 10;
// Large elements come in smaller pages.
const PAGE_BYTES_MAX = 1 << 20;
const CELL_MAX = 2000;

// A field of a form is text with escapes, so that it can hold any bytes.
const ESCAPES = "\\xNN, \\n and \\\\ are escapes";

export class ValueView {
  constructor(host) {
    this.host = host;
    this.element = h("section", { class: "panel", id: "value", "aria-live": "off" });
    this.stop = whenEditsChange(() => this.key !== undefined && this.draw());
    this.clear();
  }

  destroy() {
    this.stop();
    this.controller?.abort();
  }

  clear() {
    this.controller?.abort();
    this.key = undefined;
    replace(this.element, h("header", {}, h("h2", {}, "Value")),
      h("div", { class: "empty" }, "Choose a key to see its value."));
  }

  run(words) {
    return api.command(words, { db: this.host.db(), signal: this.controller.signal });
  }

  async show(key) {
    this.controller?.abort();
    this.controller = new AbortController();
    Object.assign(this, { key, page: null, isHex: false, filter: "", trail: [] });
    replace(this.element, h("header", {}, h("h2", { class: "key-name" }, shown(key))), loading());
    await this.load();
  }

  /** Reads the facts about the key, and a page of its value: the first, or the present page. */
  async load(isFirst = true) {
    const { signal } = this.controller, key = this.key;
    try {
      const replies = await api.pipeline([["TYPE", key], ["PTTL", key], ["OBJECT", "ENCODING", key],
        ["MEMORY", "USAGE", key], ["STRLEN", key], ["LLEN", key], ["SCARD", key], ["ZCARD", key], ["HLEN", key],
        ["XLEN", key]], { db: this.host.db(), signal });
      const [type, ttl, encoding, memory, ...lengths] = replies.map((one) => one instanceof Error ? null : one);
      if (replies[0] instanceof Error) throw replies[0];
      const at = ["string", "list", "set", "zset", "hash", "stream"].indexOf(type);
      this.facts = { type, ttl, encoding, memory, length: lengths[at] ?? null };
      if (isFirst) this.trail = [];
      await this.turn(isFirst ? this.start() : this.position);
    } catch (error) {
      this.fail(error);
    }
  }

  /** Returns the elements of a page. */
  pageSize() {
    const { memory, length } = this.facts;
    const mean = memory && length ? memory / length : 0;
    return Math.max(1, Math.min(PAGE, Math.floor(PAGE_BYTES_MAX / mean)));
  }

  fail(error) {
    const said = problem(error);
    if (said) replace(this.element, h("header", {}, h("h2", { class: "key-name" }, shown(this.key))),
      h("div", { class: "body" }, said));
  }

  start() {
    return { set: "0", hash: "0", stream: "-" }[this.facts.type] ?? 0;
  }

  /** Reads the page of this position. */
  async turn(position) {
    try {
      this.position = position;
      this.page = await this.read(position);
      this.draw();
    } catch (error) {
      this.fail(error);
    }
  }

  /** Returns the rows of a page, and the position of the next page. */
  async read(position) {
    const { key } = this, size = this.pageSize(), match = this.filter ? ["MATCH", unescape(this.filter)] : [];
    switch (this.facts.type) {
      case "string": {
        const text = await this.run(["GETRANGE", key, position, position + TEXT_PAGE - 1]);
        const next = position + TEXT_PAGE;
        return { text, next: next < this.facts.length ? next : null };
      }
      case "list": {
        const items = await this.run(["LRANGE", key, position, position + size - 1]);
        const next = position + items.length;
        return { rows: items.map((item, at) => [position + at, item]), next: next < this.facts.length ? next : null };
      }
      case "zset": {
        const items = await this.run(["ZRANGE", key, position, position + size - 1, "WITHSCORES"]);
        const next = position + items.length / 2;
        return { rows: pairs(items), next: next < this.facts.length ? next : null };
      }
      case "set": {
        const [cursor, members] = await this.run(["SSCAN", key, position, ...match, "COUNT", size]);
        return { rows: members.map((member) => [member]), next: cursor === "0" ? null : cursor };
      }
      case "hash": {
        const [cursor, items] = await this.run(["HSCAN", key, position, ...match, "COUNT", size]);
        return { rows: pairs(items), next: cursor === "0" ? null : cursor };
      }
      case "stream": {
        const entries = await this.run(["XRANGE", key, position, "+", "COUNT", size]);
        const next = entries.length === size ? `(${entries.at(-1)[0]}` : null;
        return { rows: entries, next };
      }
      case "array": {
        const entries = await this.run(["ARSCAN", key, position, "18446744073709551614", "LIMIT", size]);
        const rows = pairs(entries.flat());
        return { rows, next: rows.length === size ? String(BigInt(rows.at(-1)[0]) + 1n) : null };
      }
      default:
        return { rows: [], next: null };
    }
  }

  draw() {
    const { facts, key } = this;
    if (!this.page) return;
    if (facts.type === "none") {
      replace(this.element, h("header", {}, h("h2", { class: "key-name" }, shown(key))),
        h("div", { class: "empty" }, "There is no such key (any more)."));
      return;
    }
    const unit = facts.type === "string" ? "Length" : "Elements";
    const length = facts.length === null ? null : facts.type === "string" ? bytes(facts.length) : count(facts.length);
    const lines = [["Type", facts.type], ["Encoding", facts.encoding], [unit, length], ["TTL", ttlText(facts.ttl)],
      ["Memory", facts.memory === null ? null : bytes(facts.memory)]].filter(([, value]) => value !== null);
    replace(this.element,
      h("header", {}, h("h2", { class: "key-name" }, shown(key) || "(empty)"),
        h("div", { class: "tools push" }, h("button", { type: "button", class: "small", onclick: () => this.load() }, "Reload"),
          edits.on ? this.keyTools() : null)),
      h("div", { class: "body" }, h("dl", { class: "facts" }, lines.map(([name, value]) =>
        [h("dt", {}, name), h("dd", {}, value)]))),
      facts.type === "string" ? this.textView() : this.rowView());
  }

  // --- Views -----------------------------------------------------------------------------------------------

  pager() {
    const back = h("button", { type: "button", class: "small", disabled: !this.trail.length,
      onclick: () => this.turn(this.trail.pop()) }, "Previous");
    const next = h("button", { type: "button", class: "small", disabled: this.page.next === null,
      onclick: () => { this.trail.push(this.position); this.turn(this.page.next); } }, "Next");
    return h("div", { class: "pager" }, back, next, h("span", { class: "muted" }, `page ${this.trail.length + 1}`));
  }

  textView() {
    const { text } = this.page;
    const isBinary = typeof text === "object";
    const hex = h("button", { type: "button", class: "small", "aria-pressed": String(this.isHex),
      onclick: () => { this.isHex = !this.isHex; this.draw(); } }, "Hexadecimal");
    const json = !isBinary && this.page.next === null && this.position === 0 ? jsonOf(text) : null;
    const pretty = json === null ? null : h("button", { type: "button", class: "small",
      "aria-pressed": String(Boolean(this.isPretty)), onclick: () => { this.isPretty = !this.isPretty; this.draw(); } }, "JSON");
    const content = this.isHex ? hexDump(text, this.position) : this.isPretty && json !== null ? json
      : isBinary ? shown(text) : shownLines(text);
    const whole = this.position === 0 && this.page.next === null;
    return [h("div", { class: "pager" }, hex, pretty, edits.on ? h("button", { type: "button", class: "small",
      disabled: !whole, title: whole ? null : "A value of more than a page is not edited here",
      onclick: () => this.editText() }, "Edit") : null),
    h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Value" }, h("pre", { class: "pad" }, content)),
    this.trail.length || this.page.next !== null ? this.pager() : null];
  }

  rowView() {
    const { type } = this.facts, { rows } = this.page;
    const cell = (value) => h("span", { class: "mono" }, shortened(value));
    const actions = (buttons) => edits.on ? [{ name: "Actions", cls: "actions", cell: (row) =>
      buttons.map(([label, action, danger]) => h("button", { type: "button", class: `small ${danger ? "danger" : ""}`,
        onclick: () => action(row) }, label)).flatMap((button) => [button, " "]) }] : [];
    const columns = {
      list: [{ name: "Index", num: true, cell: ([at]) => count(at) }, { name: "Value", cls: "wrap", head: true,
        cell: ([, value]) => cell(value) }, ...actions([["Edit", (row) => this.editItem(row)]])],
      set: [{ name: "Member", cls: "wrap", head: true, cell: ([member]) => cell(member) },
        ...actions([["Remove", ([member]) => this.remove("SREM", member), true]])],
      zset: [{ name: "Score", num: true, cell: ([, score]) => score }, { name: "Member", cls: "wrap", head: true,
        cell: ([member]) => cell(member) }, ...actions([["Edit", (row) => this.editScore(row)],
        ["Remove", ([member]) => this.remove("ZREM", member), true]])],
      hash: [{ name: "Field", cls: "wrap", head: true, cell: ([field]) => cell(field) }, { name: "Value", cls: "wrap",
        cell: ([, value]) => cell(value) }, ...actions([["Edit", (row) => this.editField(row)],
        ["Remove", ([field]) => this.remove("HDEL", field), true]])],
      stream: [{ name: "ID", cls: "mono time", head: true, cell: ([id]) => id }, { name: "Time", cls: "time", cell: ([id]) =>
        moment(Number(String(id).split("-")[0])) }, { name: "Fields", cls: "wrap", cell: ([, fields]) =>
        h("span", { class: "mono" }, pairs(fields).map(([name, value]) => `${shortened(name)}: ${shortened(value)}`).join(", ")) }],
      array: [{ name: "Index", num: true, head: true, cell: ([at]) => String(at) }, { name: "Value", cls: "wrap",
        cell: ([, value]) => cell(value) }],
    }[type];
    if (!columns) return h("div", { class: "empty" }, `The console has no view of the type ${type}: use the command line.`);
    const add = edits.on && ["list", "set", "zset", "hash"].includes(type)
      ? h("button", { type: "button", class: "small", onclick: () => this.add() }, "Add") : null;
    const filter = type === "hash" || type === "set" ? h("form", { class: "tools", onsubmit: (event) => {
      event.preventDefault();
      this.filter = input.value;
      this.trail = [];
      this.turn(this.start());
    } }) : null;
    const input = h("input", { type: "search", "aria-label": "Filter by pattern", placeholder: "Pattern", value: this.filter ?? "" });
    filter?.append(input, h("button", { class: "small" }, "Filter"));
    return [filter || add ? h("div", { class: "pager" }, filter, add) : null,
      rows.length ? table(columns, rows, { label: "Elements", cls: "tall" })
        : h("div", { class: "empty" }, this.page.next === null ? "No elements." : "None on this page: go on with Next."),
      this.pager()];
  }

  // --- Edits -----------------------------------------------------------------------------------------------

  keyTools() {
    return [h("button", { type: "button", class: "small", onclick: () => this.editTtl() }, "TTL"),
      h("button", { type: "button", class: "small", onclick: () => this.rename() }, "Rename"),
      h("button", { type: "button", class: "small danger", onclick: () => this.unlink() }, "Delete")];
  }

  async change(words) {
    if (!edits.on) throw new Error("Edits are not allowed.");
    const reply = await this.run(words);
    say("The change was made.");
    return reply;
  }

  async changed() {
    await this.load(false);
    this.host.onchange(this.key);
  }

  async unlink() {
    const text = [h("p", { class: "mono" }, shown(this.key)), h("p", {}, `The ${this.facts.type} is removed with UNLINK.`)];
    if (!await confirm("Delete this key?", text, "Delete")) return;
    try {
      await this.change(["UNLINK", this.key]);
      const { key } = this;
      this.clear();
      this.host.ondelete(key);
    } catch (error) { this.fail(error); }
  }

  async rename() {
    const done = await ask("Rename the key", [{ name: "name", label: `New name (${ESCAPES})`, value: shown(this.key) }],
      "Rename", async ({ name }) => {
        const to = unescape(name);
        const renamed = await this.change(["RENAMENX", this.key, to]);
        if (!renamed) throw new Error("There is a key of this name already.");
        this.key = to;
      });
    if (done) { this.host.onrename(); await this.load(); }
  }

  async editTtl() {
    const present = this.facts.ttl > 0 ? String(Math.ceil(this.facts.ttl / 1000)) : "";
    const done = await ask("Time to live", [{ name: "ttl", label: "Seconds; empty: the key does not expire", type: "number",
      value: present }], "Set", ({ ttl }) => this.change(ttl.trim() === "" ? ["PERSIST", this.key]
      : ["EXPIRE", this.key, ttl.trim()]));
    if (done) await this.changed();
  }

  async editText() {
    const { text } = this.page;
    // Text without escapes is edited as it is.
    const isPlain = typeof text === "string" && !/[\u0000-\u0008\u000b-\u001f\u007f]/.test(text);
    const done = await ask("Edit the string", [{ name: "text", label: isPlain ? "Text" : `Bytes (${ESCAPES})`, type: "area",
      value: isPlain ? text : shown(text) }], "Set", async (values) => {
      const value = isPlain ? values.text : unescape(values.text);
      if (await this.change(["SET", this.key, value, "XX", "KEEPTTL"]) === null) throw new Error("The key is gone.");
    });
    if (done) await this.changed();
  }

  async editItem([at, value]) {
    const done = await ask(`Element ${at}`, [{ name: "value", label: `Value (${ESCAPES})`, type: "area", value: shown(value) }],
      "Set", async (values) => {
        const present = await this.run(["LINDEX", this.key, at]);
        if (!same(present, value)) throw new Error("The list has changed meanwhile: reload it.");
        await this.change(["LSET", this.key, at, unescape(values.value)]);
      });
    if (done) await this.changed();
  }

  async editField([field, value]) {
    const done = await ask("Field", [{ name: "value", label: `Value of ${shortened(field)} (${ESCAPES})`, type: "area",
      value: shown(value) }], "Set", (values) => this.change(["HSET", this.key, field, unescape(values.value)]));
    if (done) await this.changed();
  }

  async editScore([member, score]) {
    const done = await ask("Score", [{ name: "score", label: `Score of ${shortened(member)}`, value: score }], "Set",
      (values) => this.change(["ZADD", this.key, "XX", values.score, member]));
    if (done) await this.changed();
  }

  async remove(name, element) {
    if (!await confirm("Remove this element?", h("p", { class: "mono" }, shortened(element)), "Remove")) return;
    try {
      await this.change([name, this.key, element]);
      await this.changed();
    } catch (error) { this.fail(error); }
  }

  async add() {
    const { type } = this.facts;
    const value = { name: "value", label: `${type === "hash" ? "Value" : type === "list" ? "Value" : "Member"} (${ESCAPES})`,
      type: "area" };
    const fields = { list: [{ name: "end", label: "End", type: "select", options: ["right", "left"] }, value], set: [value],
      zset: [{ name: "score", label: "Score", value: "0" }, value],
      hash: [{ name: "field", label: `Field (${ESCAPES})` }, value] }[type];
    const done = await ask("Add an element", fields, "Add", (values) => {
      const word = unescape(values.value);
      return this.change({ list: () => [values.end === "left" ? "LPUSH" : "RPUSH", this.key, word],
        set: () => ["SADD", this.key, word], zset: () => ["ZADD", this.key, values.score, word],
        hash: () => ["HSET", this.key, unescape(values.field), word] }[type]());
    });
    if (done) await this.changed();
  }
}

/** Makes a key with its first element; resolves to its name, or null. */
export async function newKey(db) {
  let made = null;
  await ask("New key", [{ name: "name", label: `Name (${ESCAPES})` },
    { name: "type", label: "Type", type: "select", options: ["string", "hash", "list", "set", "zset"] },
    { name: "field", label: "Field of a hash, score of a zset" }, { name: "value", label: `Value (${ESCAPES})`, type: "area" }],
  "Create", async ({ name, type, field, value }) => {
    const [key, word] = [unescape(name), unescape(value)];
    if (await api.command(["EXISTS", key], { db })) throw new Error("There is a key of this name already.");
    await api.command({ string: ["SET", key, word, "NX"], hash: ["HSET", key, unescape(field), word],
      list: ["RPUSH", key, word], set: ["SADD", key, word], zset: ["ZADD", key, field || "0", word] }[type], { db });
    made = key;
  });
  return made;
}

function pairs(list) {
  const result = [];
  for (let at = 0; at + 1 < list.length; at += 2) result.push([list[at], list[at + 1]]);
  return result;
}

function shortened(value) {
  const text = shown(value);
  return text.length > CELL_MAX ? `${text.slice(0, CELL_MAX)}\u2026 (${bytes(toBytes(value).length)})` : text || quoted("");
}

/** Shows text of several lines: line ends and tabs as they are, other control characters as escapes. */
function shownLines(text) {
  return text.split("\n").map((line) => line.split("\t").map((part) => shown(part).replaceAll("\\\\", "\\")).join("\t")).join("\n");
}

function jsonOf(text) {
  if (!/^\s*[{[]/.test(text)) return null;
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return null; }
}
