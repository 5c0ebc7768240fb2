/** The events of a run as a list to read: pieces of a reply are put together, and what does not count is marked. Pure. */

import { EVENTS } from "./vocabulary.js";

const MAX_TEXT = 20_000; // characters of a reply

/** An empty list: `first` and `last` are the lowest and highest offsets in it. */
export const empty = { first: null, last: 0, entries: [] };

/** The list with later events after it; those it has already are left out. */
export function appended(list, events) {
  const fresh = events.filter((event) => event.seq > list.last);
  if (!fresh.length) return list;
  const entries = [...list.entries];
  const open = openReplies(entries);
  for (const event of fresh) take(entries, open, event);
  return { first: list.first ?? fresh[0].seq, last: fresh.at(-1).seq, entries };
}

/** The list with earlier events put before it. */
export function prepended(list, events) {
  const earlier = appended(empty, events.filter((event) => list.first === null || event.seq < list.first));
  if (!earlier.entries.length) return list;
  return { first: earlier.first, last: Math.max(list.last, earlier.last), entries: [...earlier.entries, ...list.entries] };
}

function openReplies(entries) {
  const open = new Map();
  entries.forEach((entry, place) => {
    if (entry.type === "delta" && !entry.void) open.set(keyOf(entry), place);
  });
  return open;
}

const keyOf = (event) => `${event.attempt ?? ""}|${event.step}`;

function take(entries, open, event) {
  if (event.type === "delta") {
    const place = open.get(keyOf(event));
    const text = String(event.text ?? "");
    if (place === undefined) {
      open.set(keyOf(event), entries.length);
      entries.push({ ...event, text, void: false });
    } else {
      entries[place] = { ...entries[place], text: (entries[place].text + text).slice(0, MAX_TEXT) };
    }
    return;
  }
  if (EVENTS[event.type]?.voids) voidReplies(entries, open, event);
  entries.push(event);
}

function voidReplies(entries, open, event) {
  for (const [key, place] of open) {
    const entry = entries[place];
    if (entry.step === event.step && (event.attempt === null || event.attempt === undefined || entry.attempt === event.attempt)) {
      entries[place] = { ...entry, void: true };
      open.delete(key);
    }
  }
}

/** What an event says beside its type, in a line. */
export function summary(event) {
  if (event.type === "expanded") return `${event.steps} more`;
  const { error } = event;
  if (error && typeof error === "object") return `${error.code ?? "error"}: ${error.message ?? ""}`;
  const said = event.message ?? event.reason ?? event.status ?? event.asks ?? "";
  return typeof said === "string" ? said : JSON.stringify(said);
}
