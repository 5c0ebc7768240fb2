/** Edges of a displayed graph. */

import { html, useMemo } from "../vendor/htm-preact.js";
import { around, overlap, pathOf } from "../core/geometry.js";

const HIDDEN_LABELS = new Set(["done", "expanded"]); // labels without information: those of successful steps, and of expansions

/** Visible edges, under the nodes. */
export function Edges({ edges, layout, seen, isDown, withLabels }) {
  const drawn = useMemo(() => edges.flatMap((edge) => { // once a layout, not once a scroll
    const points = layout.lines.get(JSON.stringify([edge.source, edge.target]));
    return points ? [{ edge, points, box: around(points), key: JSON.stringify([edge.source, edge.target, edge.label]) }] : [];
  }), [edges, layout]);
  return html`<svg class="edges" width=${layout.width} height=${layout.height} aria-hidden="true">
    <defs>
      ${["taken", "open", "not-taken"].map((kind) => html`<marker id="head-${kind}" class="head ${kind}" viewBox="0 0 8 8" refX="7" refY="4"
        markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" /></marker>`)}
    </defs>
    ${drawn.filter(({ box }) => overlap(box, seen)).map(({ edge, key, points }) => html`<${Edge} key=${key} edge=${edge} isDown=${isDown} points=${points}
      withLabel=${withLabels && !HIDDEN_LABELS.has(edge.label)} />`)}
  </svg>`;
}

function kindOf({ taken }) {
  if (taken === null) return "open";
  return taken ? "taken" : "not-taken";
}

function Edge({ edge, points, isDown, withLabel }) {
  const kind = kindOf(edge);
  const [x, y] = middle(points);
  return html`<g class="edge ${kind} ${edge.wakes ? "" : "orders"}">
    <path d=${pathOf(points, isDown)} marker-end="url(#head-${kind})" />
    ${withLabel && html`<text x=${x} y=${y - 5} text-anchor="middle">${edge.label}</text>`}
  </g>`;
}

function middle(points) {
  const [a, b] = [points[Math.floor((points.length - 1) / 2)], points[Math.ceil((points.length - 1) / 2)]];
  return [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
}
