/** Events of a run as a list for display: deltas of a reply are joined, void replies are marked. Pure. */

import { EVENTS } from "./vocabulary.js";

const MAX_TEXT = 20_000; // characters of a reply

/** An empty list: `first` and `last` are the lowest and highest offsets in it. */
export const empty = { first: null, last: 0, entries: [] };

/** Return the list with later events appended; known events are skipped. */
export function append(list, events) {
  const fresh = events.filter((event) => event.seq > list.last);
  if (!fresh.length) return list;
  const entries = [...list.entries];
  const open = openReplies(entries);
  for (const event of fresh) addEvent(entries, open, event);
  return { first: list.first ?? fresh[0].seq, last: fresh.at(-1).seq, entries };
}

/** Return the list with earlier events prepended. */
export function prepend(list, events) {
  const earlier = append(empty, events.filter((event) => list.first === null || event.seq < list.first));
  if (!earlier.entries.length) return list;
  return { first: earlier.first, last: Math.max(list.last, earlier.last), entries: [...earlier.entries, ...list.entries] };
}

function openReplies(entries) {
  const open = new Map();
  entries.forEach((entry, index) => {
    if (entry.type === "delta" && !entry.void) open.set(keyOf(entry), index);
  });
  return open;
}

const keyOf = (event) => `${event.attempt ?? ""}|${event.step}`;

function addEvent(entries, open, event) {
  if (event.type === "delta") {
    const index = open.get(keyOf(event));
    const text = String(event.text ?? "");
    if (index === undefined) {
      open.set(keyOf(event), entries.length);
      entries.push({ ...event, text, void: false });
    } else {
      entries[index] = { ...entries[index], text: (entries[index].text + text).slice(0, MAX_TEXT) };
    }
    return;
  }
  if (EVENTS[event.type]?.voids) voidReplies(entries, open, event);
  entries.push(event);
}

function voidReplies(entries, open, event) {
  for (const [key, index] of open) {
    const entry = entries[index];
    if (entry.step === event.step && (event.attempt === null || event.attempt === undefined || entry.attempt === event.attempt)) {
      entries[index] = { ...entry, void: true };
      open.delete(key);
    }
  }
}

const GOES_ON = new Set(["running", "waiting_signal"]);

/** Return the seconds that attempts took, by the offset of the event that ended them. */
export function durationsOf(entries) {
  const begun = new Map();
  const found = new Map();
  for (const { seq, type, step, at_ms: at } of entries) {
    const state = EVENTS[type]?.state ?? null;
    if (type === "started") begun.set(step, at);
    else if (state !== null && !GOES_ON.has(state) && begun.has(step)) {
      found.set(seq, (at - begun.get(step)) / 1000);
      begun.delete(step);
    }
  }
  return found;
}

/** Return why a step of the run was refused by its worker, until it starts; "" if none is. */
export function refusalIn(entries) {
  const refused = new Map();
  for (const { type, step, message } of entries) {
    if (type === "closed") refused.clear();
    else if (type === "refused") refused.set(step, message ?? "");
    else if (EVENTS[type]?.state) refused.delete(step);
  }
  return [...refused.values()].at(-1) ?? "";
}

/** Return the details of an event in one line, with who caused it; a name that nothing proves is marked as a claim. */
export function summary(event) {
  return [detail(event), event.by && `by ${event.by}${event.verified === false ? " (claimed)" : ""}`].filter(Boolean).join(" ");
}

function detail(event) {
  if (event.type === "expanded") return `${event.steps} more`;
  const { error } = event;
  if (error && typeof error === "object") return `${error.code ?? "error"}: ${error.message ?? ""}`;
  const text = event.message ?? event.reason ?? event.status ?? event.asks ?? "";
  return typeof text === "string" ? text : JSON.stringify(text);
}
