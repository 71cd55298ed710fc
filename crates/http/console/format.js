// Numbers with their units, times, and bytes as text.

export const DASH = "\u2013";

const isNumber = (value) => typeof value === "bigint" || (typeof value === "number" && Number.isFinite(value));

export function count(value) {
  return isNumber(value) ? value.toLocaleString("en") : DASH;
}

/** A count in four figures at most: 1,234; 12.3 k; 4.56 M. */
export function brief(value) {
  if (!isNumber(value)) return DASH;
  const number = Number(value);
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    const divisor = unit === "k" ? 1e3 : size;
    if (Math.abs(number) >= size) return `${digits(number / divisor)}\u00a0${unit}`;
  }
  return Number.isInteger(number) || Math.abs(number) >= 100 ? Math.round(number).toLocaleString("en") : digits(number);
}

function digits(number) {
  const size = Math.abs(number);
  if (size === 0) return "0";
  return number.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

export function bytes(value) {
  if (!isNumber(value)) return DASH;
  let number = Number(value);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(number) < 1000 || unit === "TiB") {
      return `${unit === "B" ? Math.round(number) : digits(number)}\u00a0${unit}`;
    }
    number /= 1024;
  }
  return DASH;
}

/** A duration given in microseconds. */
export function us(value) {
  if (!isNumber(value)) return DASH;
  const number = Number(value);
  if (number < 1000) return `${number < 10 && !Number.isInteger(number) ? digits(number) : Math.round(number)}\u00a0\u00b5s`;
  if (number < 1e6) return `${digits(number / 1e3)}\u00a0ms`;
  return seconds(number / 1e6);
}

export function seconds(value) {
  if (!isNumber(value)) return DASH;
  const number = Number(value);
  if (number < 0) return DASH;
  if (number < 60) return `${Number.isInteger(number) ? number : digits(number)}\u00a0s`;
  const whole = Math.round(number);
  const days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24, minutes = Math.floor(whole / 60) % 60;
  if (days) return `${days}\u00a0d ${hours}\u00a0h`;
  if (hours) return `${hours}\u00a0h ${minutes}\u00a0min`;
  return `${minutes}\u00a0min ${whole % 60}\u00a0s`;
}

export function percent(value) {
  if (!isNumber(value)) return DASH;
  return `${value >= 10 || value === 0 ? Math.round(value) : value.toFixed(1)}\u00a0%`;
}

export function plural(number, noun) {
  return `${count(number)} ${number === 1 ? noun : noun.endsWith("y") ? `${noun.slice(0, -1)}ies` : `${noun}s`}`;
}

const two = (number) => String(number).padStart(2, "0");

export function clock(ms, withTenths = false) {
  const at = new Date(ms);
  const text = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return withTenths ? `${text}.${String(at.getMilliseconds()).padStart(3, "0")}` : text;
}

export function moment(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(ms)}`;
}

// --- Bytes -------------------------------------------------------------------------------------------------

// A string from the server is text, or `{b64}` if its bytes are no UTF-8. Both may be sent as they came.

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export function toBytes(value) {
  if (typeof value === "object" && value !== null) {
    return Uint8Array.from(atob(value.b64), (letter) => letter.charCodeAt(0));
  }
  return encoder.encode(String(value));
}

export function fromBytes(array) {
  try {
    return decoder.decode(array);
  } catch {
    let text = "";
    for (let at = 0; at < array.length; at += 8192) text += String.fromCharCode(...array.subarray(at, at + 8192));
    return { b64: btoa(text) };
  }
}

const hex = (byte) => `\\x${byte.toString(16).padStart(2, "0")}`;

// Control characters, and invisible characters that could make a text look like another.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\\]/gu;

/** Shows bytes as text with escapes, as redis-cli does but without quotes. */
export function shown(value) {
  if (value === null || value === undefined) return "(nil)";
  if (typeof value === "object" && "b64" in value) {
    return Array.from(toBytes(value), (byte) => byte === 0x5c ? "\\\\"
      : byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : named(byte) ?? hex(byte)).join("");
  }
  return String(value).replace(HIDDEN, (letter) => letter === "\\" ? "\\\\"
    : named(letter.charCodeAt(0)) ?? Array.from(encoder.encode(letter), hex).join(""));
}

function named(byte) {
  return { 7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 13: "\\r" }[byte];
}

/** Shows bytes in double quotes. */
export function quoted(value) {
  return `"${shown(value).replaceAll("\"", "\\\"")}"`;
}

/** Reads text with escapes; the opposite of `shown`. */
export function unescape(text) {
  if (!text.includes("\\")) return text;
  const parts = [];
  const escape = /\\(?:x([0-9a-fA-F]{2})|(.))/gsu;
  let from = 0;
  for (const found of text.matchAll(escape)) {
    parts.push(encoder.encode(text.slice(from, found.index)));
    const letter = { n: "\n", r: "\r", t: "\t", b: "\b", a: "\x07" }[found[2]] ?? found[2];
    parts.push(found[1] ? Uint8Array.of(parseInt(found[1], 16)) : encoder.encode(letter));
    from = found.index + found[0].length;
  }
  parts.push(encoder.encode(text.slice(from)));
  return fromBytes(joined(parts));
}

export function joined(parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) { all.set(part, at); at += part.length; }
  return all;
}

export const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** Shows bytes in lines of sixteen, with their offsets. */
export function hexDump(value, offset = 0) {
  const array = toBytes(value), lines = [];
  for (let at = 0; at < array.length; at += 16) {
    const part = array.subarray(at, at + 16);
    const codes = Array.from(part, (byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const text = Array.from(part, (byte) => byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".").join("");
    lines.push(`${(offset + at).toString(16).padStart(8, "0")}  ${codes}  ${text}`);
  }
  return lines.join("\n");
}

// --- Texts of the server -----------------------------------------------------------------------------------

/** Reads the lines `name:value` of INFO. */
export function parseInfo(text) {
  const fields = {};
  for (const line of String(text).split(/\r?\n/)) {
    const colon = line.indexOf(":");
    if (colon > 0 && !line.startsWith("#")) fields[line.slice(0, colon)] = line.slice(colon + 1);
  }
  return fields;
}

/** Reads `name=value` pairs between separators. */
export function parsePairs(text, separator) {
  const pairs = {};
  for (const part of text.split(separator)) {
    const at = part.indexOf("=");
    if (at > 0) pairs[part.slice(0, at)] = part.slice(at + 1);
  }
  return pairs;
}

/** Reads a map of RESP2: names and values in turn. */
export function parseMap(list) {
  const map = {};
  for (let at = 0; at + 1 < (list?.length ?? 0); at += 2) map[String(list[at])] = list[at + 1];
  return map;
}
