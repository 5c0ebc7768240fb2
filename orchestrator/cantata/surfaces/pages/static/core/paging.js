/** Merging of the pages of a list of runs: newest first, no duplicates, no gaps. Pure. */

/** Newest first, as the API orders them. */
function order(a, b) {
  return b.created_at - a.created_at || (a.run_id > b.run_id ? -1 : 1);
}

/**
 * Return the known runs, with the range that a page covers replaced by the page. `page` is the API's answer; `isFirst` if it starts at
 * the newest run.
 */
export function merge(known, page, { isFirst }) {
  const found = new Map(page.runs.map((run) => [run.run_id, run]));
  const newest = isFirst ? Infinity : (page.runs[0]?.created_at ?? -Infinity);
  const oldest = page.next === null ? -Infinity : (page.runs.at(-1)?.created_at ?? Infinity);
  const kept = known.filter((run) => !found.has(run.run_id) && !(run.created_at < newest && run.created_at > oldest));
  return [...kept, ...page.runs].sort(order);
}

/** Return whether there may be runs between the newest known one and a first page that was read again. */
export function hasGap(known, page) {
  if (!known.length || !page.runs.length || page.next === null) return false;
  return page.runs.at(-1).created_at > known[0].created_at;
}

/** Return the number of runs in a first page that are newer than all known ones. */
export function countNewer(known, page) {
  if (!known.length) return 0;
  const ids = new Set(known.map((run) => run.run_id));
  return page.runs.filter((run) => !ids.has(run.run_id) && run.created_at >= known[0].created_at).length;
}

/** Return the visible rows of a long list: {from, to, before, after}, the last two in pixels of rows outside. */
export function visibleRows({ count, rowHeight, top, height, margin = 10 }) {
  const from = Math.max(0, Math.min(count, Math.floor(top / rowHeight) - margin));
  const to = Math.max(from, Math.min(count, Math.ceil((top + height) / rowHeight) + margin));
  return { from, to, before: from * rowHeight, after: (count - to) * rowHeight };
}
