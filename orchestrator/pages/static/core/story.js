/** The events of a run as a list to read: pieces of a reply are put together, and what does not count is marked. Pure. */

const VOIDS = new Set(["lost", "retry", "released", "fallback", "failed", "late"]);
const MOST_TEXT = 20_000;

/** An empty story. `first` is the lowest offset it tells of. */
export const empty = { first: null, last: 0, entries: [] };

/** The story with some later events; those it has already are passed over. */
export function told(story, events) {
  const fresh = events.filter((event) => event.seq > story.last);
  if (!fresh.length) return story;
  const entries = [...story.entries];
  const open = openReplies(entries);
  for (const event of fresh) take(entries, open, event);
  return { first: story.first ?? fresh[0].seq, last: fresh.at(-1).seq, entries };
}

/** The story with earlier events put before it. */
export function preceded(story, events) {
  const earlier = told(empty, events.filter((event) => story.first === null || event.seq < story.first));
  if (!earlier.entries.length) return story;
  return { first: earlier.first, last: Math.max(story.last, earlier.last), entries: [...earlier.entries, ...story.entries] };
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
    const text = String(event.detail?.text ?? "");
    if (place === undefined) {
      open.set(keyOf(event), entries.length);
      entries.push({ ...event, text, void: false });
    } else {
      entries[place] = { ...entries[place], text: (entries[place].text + text).slice(0, MOST_TEXT) };
    }
    return;
  }
  if (VOIDS.has(event.type)) voidReplies(entries, open, event);
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
  const detail = event.detail ?? {};
  if (event.type === "grown" && typeof detail.steps === "number") return `${detail.steps} more`;
  const error = detail.error;
  if (error && typeof error === "object") return `${error.code ?? "error"}: ${error.message ?? ""}`;
  const said = detail.message ?? detail.reason ?? detail.status ?? detail.asks;
  if (typeof said === "string") return said;
  return Object.keys(detail).length ? JSON.stringify(detail) : "";
}
