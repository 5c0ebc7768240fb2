/** Views of a run without internal steps, such as its start and the gathers of its maps. Pure. */

const MAX_JOINED = 400; // edges that may take the place of one step; with more the step stays

/**
 * Return the view without its internal steps, and their number: {view, hidden}. Edges past each of them join its sources to its targets.
 * A view of nothing else stays whole.
 */
export function withoutInternal(view) {
  const internal = [...view.steps.values()].filter((step) => step.internal);
  if (!internal.length || internal.length === view.steps.size) return { view, hidden: 0 };
  const steps = new Map(view.steps);
  const [into, from] = [new Map(), new Map()];
  const link = (edge) => {
    for (const [map, id] of [[from, edge.source], [into, edge.target]]) map.set(id, (map.get(id) ?? new Set()).add(edge));
  };
  const unlink = (edge) => [from.get(edge.source), into.get(edge.target)].forEach((known) => known.delete(edge));
  view.edges.forEach(link);
  for (const { id } of internal) {
    const [before, after] = [[...(into.get(id) ?? [])], [...(from.get(id) ?? [])]];
    if (before.length * after.length > MAX_JOINED) continue;
    steps.delete(id);
    [...before, ...after].forEach(unlink);
    for (const one of before) for (const two of after) if (one.source !== two.target) link(joined(one, two));
  }
  return { view: { ...view, steps, edges: unique([...from.values()].flatMap((edges) => [...edges])) }, hidden: view.steps.size - steps.size };
}

/** Return the edge that takes the place of two: open while either is. */
function joined(one, two) {
  const taken = one.taken === false || two.taken === false ? false : one.taken === null ? null : two.taken;
  return { source: one.source, target: two.target, label: two.label === "done" ? one.label : two.label, wakes: two.wakes, taken };
}

function unique(edges) {
  return [...new Map(edges.map((edge) => [JSON.stringify([edge.source, edge.target, edge.label]), edge])).values()];
}

/** Return the display name of a step by its id, which may be of a folded map's item. */
export function nameOf(view, id) {
  return view.steps.get(id)?.name ?? String(id).replace(/\/(\d+)(?=\/|$)/g, " [$1]");
}
