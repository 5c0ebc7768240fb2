/** Folding of a run's graph: maps, and many steps with the same neighbours, are one counted node until they are opened. Pure. */

import { ofStep } from "./states.js";
import { COUNTED_AS } from "./vocabulary.js";

export const MIN_CROWD = 16; // so many steps with the same neighbours are one group
const COLUMNS = [[4, 2], [24, 3], [80, 5], [Infinity, 8]]; // up to so many members: columns of chips
export const SIZE = { step: [190, 50], group: [190, 68], chip: [140, 26], gap: 6, pad: 10, head: 44 };

/**
 * Return the displayed nodes and edges of a view. A node is {id, size, step} or {id, size, group}; a group {kind, name, count, counts, members,
 * isOpen, hidden} has its members if it is open, and how many of them the API left out. Edges join nodes: {source, target, label, wakes,
 * taken}.
 */
export function fold(view, opened) {
  const groups = [...mapsOf(view, opened), ...crowdsOf(view, opened)];
  const owner = new Map();
  for (const group of groups) for (const member of group.all) owner.set(member.id, group.id);
  const nodes = [];
  const byId = new Map(groups.map((group) => [group.id, group]));
  const shown = new Set();
  for (const step of view.steps.values()) {
    const id = owner.get(step.id) ?? step.id;
    if (shown.has(id)) continue;
    shown.add(id);
    nodes.push(byId.has(id) ? groupNode(byId.get(id), view.steps.get(id)) : { id, size: SIZE.step, step });
  }
  return { nodes, edges: joinEdges(view.edges, owner, shown) };
}

/** Return a text that changes when a new layout is needed. */
export function shapeOf({ nodes, edges }) {
  return JSON.stringify([nodes.map((node) => [node.id, node.size]), edges.map((edge) => [edge.source, edge.target])]);
}

function mapsOf(view, opened) {
  const members = new Map(view.maps.map((map) => [map.id, []]));
  for (const step of view.steps.values()) if (step.map !== null && step.map !== step.id) members.get(step.map)?.push(step);
  for (const items of members.values()) items.sort((a, b) => a.id.localeCompare(b.id, "en", { numeric: true }));
  return view.maps
    .filter((map) => !members.has(view.steps.get(map.id)?.map))
    .map(({ id, name, count, ...counts }) => group(id, "map", name, count, counts, members.get(id), opened));
}

/** Return groups of many steps with the same sources and the same targets. */
function crowdsOf(view, opened) {
  const sources = new Map();
  const targets = new Map();
  for (const { source, target, label } of view.edges) {
    listAt(sources, target).push(`${label}|${source}`);
    listAt(targets, source).push(`${label}|${target}`);
  }
  const maps = new Set(view.maps.map((map) => map.id));
  const crowds = new Map();
  for (const step of view.steps.values()) {
    if (step.map !== null || maps.has(step.id) || !sources.has(step.id)) continue;
    listAt(crowds, JSON.stringify([sources.get(step.id).sort(), (targets.get(step.id) ?? []).sort()])).push(step);
  }
  return [...crowds.values()]
    .filter((steps) => steps.length >= MIN_CROWD)
    .map((steps) => group(`+${steps[0].id}`, "crowd", commonName(steps), steps.length, countStates(steps), steps, opened));
}

function group(id, kind, name, count, counts, members, opened) {
  const isOpen = opened.has(id);
  return { id, kind, name, count, counts, isOpen, all: members, members: isOpen ? members : [], hidden: isOpen ? Math.max(0, count - members.length) : 0 };
}

function groupNode({ all, ...group }, step) {
  return { id: group.id, size: group.isOpen ? openSize(group.members.length, group.hidden) : SIZE.group, group, step };
}

function openSize(count, hidden) {
  const { chip, gap, pad, head } = SIZE;
  const columns = columnsOf(count);
  const rows = Math.ceil(count / columns) + (hidden ? 1 : 0);
  return [2 * pad + columns * (chip[0] + gap) - gap, head + Math.max(1, rows) * (chip[1] + gap) + pad];
}

/** Return the number of columns of chips in an open group. */
export function columnsOf(count) {
  return COLUMNS.find(([max]) => count <= max)[1];
}

function countStates(steps) {
  const counts = { waiting: 0, running: 0, done: 0, failed: 0, skipped: 0 };
  for (const { state, attempt } of steps) counts[COUNTED_AS[state] ?? (attempt ? "running" : "waiting")] += 1;
  return counts;
}

/** Return the state of a group, as the state of a step. */
export function stateOf({ counts, count }) {
  if (counts.failed) return ofStep({ state: "failed" });
  if (counts.running) return ofStep({ state: "running" });
  if (counts.done + counts.skipped >= count) return ofStep({ state: counts.done || !count ? "done" : "skipped" });
  return ofStep({ state: counts.done ? "running" : "waiting" });
}

function commonName(steps) {
  let start = steps[0].name;
  for (const { name } of steps) while (!name.startsWith(start)) start = start.slice(0, -1);
  return start.length === steps[0].name.length ? start : start.length > 1 ? `${start}…` : "Steps";
}

function joinEdges(edges, owner, shown) {
  const found = new Map();
  for (const edge of edges) {
    const [source, target] = [owner.get(edge.source) ?? edge.source, owner.get(edge.target) ?? edge.target];
    if (source === target || !shown.has(source) || !shown.has(target)) continue;
    const key = JSON.stringify([source, target, edge.label]);
    const known = found.get(key);
    const taken = known ? known.taken || edge.taken : edge.taken;
    found.set(key, { ...edge, source, target, taken: taken ?? null, wakes: edge.wakes || Boolean(known?.wakes) });
  }
  return [...found.values()];
}

function listAt(map, key) {
  if (!map.has(key)) map.set(key, []);
  return map.get(key);
}
