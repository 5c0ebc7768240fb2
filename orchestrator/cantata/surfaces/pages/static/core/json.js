/** JSON as others wrote it. Pure. */

const LONG_INTEGER = /\d{16}/;

/**
 * Return the value of a JSON text. An integer that no number of JavaScript holds keeps its digits, for JSON.stringify to write: a person approves
 * what was asked. Browsers without JSON.rawJSON (before Chrome 114, Firefox 135, Safari 18.4) round it.
 */
export function parse(text) {
  return JSON.rawJSON && LONG_INTEGER.test(text) ? JSON.parse(text, withDigits) : JSON.parse(text);
}

function withDigits(_, value, { source = "" }) {
  return Math.abs(value) > Number.MAX_SAFE_INTEGER && /^-?\d+$/.test(source) ? JSON.rawJSON(source) : value;
}
