/** Fields of the form of an answer, by its JSON schema, and the answer that they make. Pure. */

import { parse } from "./json.js";

const TYPES = { string: "text", number: "number", integer: "integer", boolean: "boolean" };

/**
 * Return the field of a schema: {key, label, help, kind, isRequired, options, fields}. `kind` is text, number, integer, boolean, choice, lines
 * (texts, one a line), group, or json for all else. Groups in a group, and lists of other things than texts, are json.
 */
export function fieldOf(schema, { key = "", label = "", isRequired = true, depth = 0, root = schema } = {}) {
  const own = resolved(schema, root);
  const field = { key, label: own.title ?? label, help: own.description ?? "", kind: "json", isRequired, options: [], fields: [] };
  if (Array.isArray(own.enum)) return { ...field, kind: "choice", options: own.enum };
  if (own.type in TYPES) return { ...field, kind: TYPES[own.type] };
  if (own.type === "array" && resolved(own.items ?? {}, root).type === "string" && !resolved(own.items, root).enum) return { ...field, kind: "lines" };
  if (own.type !== "object" || !own.properties || depth > 1) return field;
  const needed = new Set(own.required ?? []);
  const fields = Object.entries(own.properties).map(([name, each]) =>
    fieldOf(each, { key: key ? `${key}.${name}` : name, label: name, isRequired: isRequired && needed.has(name), depth: depth + 1, root }));
  return { ...field, kind: "group", fields };
}

/** Return a schema behind its reference, and without an alternative that is null. */
function resolved(schema, root, hops = 10) {
  const { $ref, ...own } = schema ?? {};
  if ($ref?.startsWith("#/") && hops) {
    const target = $ref.slice(2).split("/").reduce((part, name) => part?.[name], root);
    return { ...resolved(target, root, hops - 1), ...own };
  }
  const others = own.anyOf?.filter((each) => each.type !== "null") ?? [];
  return others.length === 1 ? { ...resolved(others[0], root, hops), ...own } : own;
}

/** Return the answer of a field, from the texts that were typed by key; undefined for one that was left empty. */
export function answerOf(field, typed) {
  if (field.kind === "group") {
    const parts = field.fields.map((each) => [each.key.split(".").at(-1), answerOf(each, typed)]).filter(([, part]) => part !== undefined);
    return parts.length || field.isRequired ? Object.fromEntries(parts) : undefined;
  }
  const text = typed[field.key] ?? "";
  if (text.trim() === "") return field.kind === "lines" && field.isRequired ? [] : field.kind === "text" && field.isRequired ? text : undefined;
  if (field.kind === "text") return text;
  if (field.kind === "lines") return text.split("\n").map((line) => line.trim()).filter(Boolean);
  return valueOf(text);
}

/** Return the value of a text: its JSON, or the text. */
export function valueOf(text) {
  try {
    return parse(text);
  } catch {
    return text;
  }
}

/** Return a text's first line with words, without the marks of Markdown: a title of a question. */
export function titleOf(text) {
  const lines = text.split("\n").map((line) => line.replace(/^[\s#>*+-]+|[*_`]/g, "").trim());
  return lines.find((line) => /[\p{L}\p{N}]/u.test(line)) ?? text;
}

/** Return the question in the context of a wait, or "". */
export function questionOf(context) {
  const found = context?.question ?? context?.prompt ?? context;
  return typeof found === "string" ? found : "";
}
