/** Formats of numbers, times and texts. Pure. */

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;
const OVERRIDES = /[\u202a-\u202e\u2066-\u2069\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g;

/** Format a duration: "420 ms", "3.2 s", "42 s", "3 m 12 s", "2 h 5 m", "4 d 3 h"; "–" if it is not known. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, seconds);
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < MINUTE - 0.5) return `${Math.round(s)} s`;
  const whole = Math.round(s);
  if (whole < HOUR) return pair(whole, MINUTE, "m", 1, "s");
  if (whole < DAY) return pair(whole, HOUR, "h", MINUTE, "m");
  return pair(whole, DAY, "d", HOUR, "h");
}

function pair(whole, unit, name, smaller, smallerName) {
  const rest = Math.floor((whole % unit) / smaller);
  return `${Math.floor(whole / unit)} ${name}${rest ? ` ${rest} ${smallerName}` : ""}`;
}

/** Format an age: "now", "12 s ago", "5 min ago", "3 h ago", "2 d ago". */
export function age(seconds) {
  if (seconds < 2) return "now";
  if (seconds < MINUTE) return `${Math.floor(seconds)} s ago`;
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min ago`;
  if (seconds < 2 * DAY) return `${Math.floor(seconds / HOUR)} h ago`;
  return `${Math.floor(seconds / DAY)} d ago`;
}

/** Format a count: "950", "9,500", "12.3k", "4.5M". */
export function count(number) {
  if (number < 10_000) return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
  if (number < 999_950) return `${(number / 1000).toFixed(1)}k`;
  return `${(number / 1_000_000).toFixed(1)}M`;
}

/** Format dollars: "$1.25", below 10 cents with two digits that say something: "$0.0031", "$0.00004"; "–" if the price is not known. */
export function cost(usd) {
  if (usd === null || usd === undefined) return "–";
  if (usd === 0) return "$0";
  if (usd >= 0.1) return `$${usd.toFixed(2)}`;
  return usd < 1e-6 ? "$0" : `$${usd.toFixed(Math.min(6, 1 - Math.floor(Math.log10(usd)))).replace(/0+$/, "")}`;
}

/** Format all tokens of a usage; "–" if no model was called. */
export function tokens(usage) {
  if (!usage || !usage.model_calls) return usage && usage.input_tokens + usage.output_tokens ? count(usage.input_tokens + usage.output_tokens) : "–";
  return count(usage.input_tokens + usage.output_tokens);
}

/** Format the local time of day, to the millisecond. */
export function clock(seconds) {
  const at = new Date(seconds * 1000);
  const two = (n) => String(n).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** Format local date and time. */
export function moment(seconds) {
  return new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

/** Format a local time in a list: "14:05:12" today, "26 Nov, 14:05" on another day. */
export function shortMoment(seconds, now) {
  const at = new Date(seconds * 1000);
  if (at.toDateString() === new Date(now * 1000).toDateString()) return clock(seconds).slice(0, 8);
  return at.toLocaleString(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hour12: false });
}

/** Return a text that is safe beside others: control characters and direction overrides are written as codes. */
export function plain(text) {
  return String(text).replace(OVERRIDES, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Return the beginning of a text, on one line. */
export function clip(text, most) {
  const line = plain(String(text).slice(0, most * 4)).replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** Format a JSON value: a text as it is, anything else indented. */
export function value(json) {
  return plain(typeof json === "string" ? json : JSON.stringify(json, null, 2) ?? "");
}

/** Format a count with a noun: "1 step", "3 steps". */
export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}
