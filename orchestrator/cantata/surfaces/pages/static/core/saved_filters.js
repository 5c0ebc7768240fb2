/** Saved filters of the list of runs: names and queries, bounded. Pure. */

import { filterOf, filterQuery } from "./route.js";

export const MAX_SAVED = 30;
export const MAX_NAME = 60; // characters

/** Return the saved filters in a stored text: [{name, query}]; what is no filter, or beyond the bounds, is left out. */
export function savedIn(text) {
  let found;
  try {
    found = JSON.parse(text ?? "[]");
  } catch {
    return [];
  }
  if (!Array.isArray(found)) return [];
  const known = found.filter((each) => typeof each?.name === "string" && typeof each.query === "string" && each.name.trim() && each.name.length <= MAX_NAME);
  const names = new Set();
  return known.filter(({ name }) => !names.has(name) && names.add(name)).slice(0, MAX_SAVED).map(({ name, query }) => ({ name, query: queryOf(query) }));
}

/** Return the query of a filter in one form, whatever else is in the query. */
export function queryOf(search) {
  return filterQuery(filterOf(search)).toString();
}

/** Return the filters with another one; raises an Error if its name does not do, or there are too many. */
export function withSaved(saved, name, query) {
  if (saved.length >= MAX_SAVED) throw new Error(`${MAX_SAVED} filters are saved; delete one first.`);
  return [...saved, { name: goodName(saved, name), query }];
}

/** Return the filters with another name of one; raises an Error if the name does not do. */
export function renamed(saved, before, name) {
  if (name.trim() === before) return saved;
  const next = goodName(saved, name);
  return saved.map((each) => (each.name === before ? { ...each, name: next } : each));
}

/** Return the filters without one. */
export function withoutSaved(saved, name) {
  return saved.filter((each) => each.name !== name);
}

function goodName(saved, text) {
  const name = text.trim();
  if (!name) throw new Error("Give the filter a name.");
  if (name.length > MAX_NAME) throw new Error(`A name has at most ${MAX_NAME} characters.`);
  if (saved.some((each) => each.name === name)) throw new Error(`There is a saved filter ${name} already.`);
  return name;
}
