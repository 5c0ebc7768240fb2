/** Texts of models as Markdown. Markup in them stays text, images become links, and the rest passes a sanitizer. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { plain, value } from "../core/format.js";

const SIGNS = /^ {0,3}(#{1,6} |[-*+] |\d+[.)] |> |```|\|.*\|)|\*\*\S|`[^`\n]+`|\]\([^)\s]+\)/m;
const ALLOWED = {
  ALLOWED_TAGS: ["a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["href", "title", "align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const MAX_FORMATTED = 5000; // characters; some texts take the parser a second for 20,000

let renderer = null;

/** Return whether a text is formatted: it has signs of Markdown, and is no longer than the parser is given. */
export function isMarkdown(text) {
  return text.length <= MAX_FORMATTED && SIGNS.test(text);
}

/** A JSON value: its texts formatted, those of an object below their names, and the rest as JSON. */
export function Prose({ json }) {
  const isObject = typeof json === "object" && json !== null && !Array.isArray(json);
  const texts = isObject ? Object.entries(json).filter(([, each]) => typeof each === "string" && isMarkdown(each)) : [];
  const names = new Set(texts.map(([name]) => name));
  const rest = isObject ? Object.fromEntries(Object.entries(json).filter(([name]) => !names.has(name))) : json;
  if (typeof json === "string" && isMarkdown(json)) return html`<${Markdown} text=${json} />`;
  return html`${texts.map(([name, text]) => html`<section key=${name}><h3>${plain(name)}</h3><${Markdown} text=${text} /></section>`)}
    ${(!isObject || !texts.length || Object.keys(rest).length > 0) && html`<pre class="text boxed" tabindex="0">${value(rest)}</pre>`}`;
}

/** A text: formatted if it has signs of Markdown, with a button that shows it as it is. `className` is for the text. */
export function Markdown({ text, className = "" }) {
  const box = useRef(null);
  const [isPlain, setPlain] = useState(false);
  const [isFormatted, setFormatted] = useState(false);
  const safe = plain(text);
  const wanted = isMarkdown(safe) && !isPlain;
  useEffect(() => {
    if (!wanted) return setFormatted(false);
    let isCurrent = true;
    formatted(safe).then((fragment) => {
      if (!isCurrent || !box.current) return;
      box.current.replaceChildren(fragment);
      setFormatted(true);
    }, () => {}); // the text stays as it is
    return () => (isCurrent = false);
  }, [safe, wanted]);
  return html`<div class="markdown-box">
    <div class="markdown ${className}" ref=${box} hidden=${!wanted || !isFormatted} />
    ${(!wanted || !isFormatted) && html`<pre class="text ${className}">${safe}</pre>`}
    ${(wanted ? isFormatted : isPlain) && html`<button type="button" class="quiet switch" aria-pressed=${isPlain} onClick=${() => setPlain(!isPlain)}>Plain text</button>`}
  </div>`;
}

/** Return a text as a safe document fragment. The libraries are loaded with the first one. */
async function formatted(text) {
  renderer ??= Promise.all([import("../vendor/marked.js"), import("../vendor/dompurify.js")]);
  const [{ Marked }, { default: purifier }] = await renderer;
  const marked = new Marked({ breaks: true, renderer: { checkbox: ({ checked }) => (checked ? "[x] " : "[ ] "), html: ({ text: markup }) => escaped(markup), image: ({ href, text: label }) => `<a href="${escaped(href)}">${escaped(label || href)}</a>` } });
  const fragment = purifier.sanitize(marked.parse(text), ALLOWED);
  for (const link of fragment.querySelectorAll("a")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer nofollow" });
  for (const part of fragment.querySelectorAll("pre, table")) part.tabIndex = 0; // they scroll
  return fragment;
}

function escaped(text) {
  return text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
}
