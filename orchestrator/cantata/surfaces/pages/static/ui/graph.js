/** Graph of a run: renders the visible part; scrolled and zoomed by mouse, buttons and keys. */

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { fold, shapeOf } from "../core/folding.js";
import { neighbour, overlap } from "../core/geometry.js";
import { plural } from "../core/format.js";
import { runIsOver } from "../core/states.js";
import { Edges } from "./edges.js";
import { useLayout } from "./layout.js";
import { GroupNode, StepNode } from "./node.js";

const ZOOMS = [0.25, 0.35, 0.5, 0.7, 0.85, 1, 1.25];
const MIN_FIRST_ZOOM = 0.45; // names are unreadable below this, so a larger graph starts with a part of it
const FIRST_ZOOM = 0.85;
const LINES_FROM = 0.75; // below it a node shows only its name, in letters of the same size
const NAME_PX = 10.5;
const LABELS_FROM = 0.5;
const NARROW_PX = 700;
const MIN_HEIGHT = 260;
const BELOW_PX = 26; // pixels of the page below the graph
const ROOM_STEP = 60;
const MARGIN = 320; // pixels that are rendered around the visible part, so that scrolling shows no gaps
const SCROLLED = 160; // pixels after which another part is rendered

/** Graph of `view`, from which `hidden` steps were left out; `opened` are the open groups, `selected` the step whose panel is open. */
export function GraphTab({ view, hidden, opened, onOpen, selected, onSelect, now }) {
  const scroller = useRef(null);
  const [size, setSize] = useState(null);
  const [zoom, setZoom] = useState(null);
  const [home, setHome] = useState(null);
  const isDown = size && size.width < NARROW_PX;
  const graph = useMemo(() => fold(view, opened), [view.steps, view.edges, view.maps, opened]);
  const shape = useMemo(() => shapeOf(graph), [graph]);
  const { layout, failed } = useLayout(graph, shape, isDown, size && !isDown && runIsOver(view.run.status) ? roomIn(size) : null);

  useViewport(scroller, setSize);
  useLayoutEffect(() => {
    if (layout && zoom === null) setZoom(firstZoom(layout, size));
  }, [layout]);
  const scale = zoom ?? 1;
  useFollowing(scroller, view, layout, zoom);
  useEffect(() => {
    if (layout?.boxes.has(selected)) show(scroller.current, layout.boxes.get(selected), scale, null);
  }, [selected, size?.width, layout === null]); // its panel takes space

  const change = (step) => setZoom(ZOOMS[Math.min(ZOOMS.length - 1, Math.max(0, nearest(scale) + step))]);
  const fit = () => setZoom(fitting(layout, size));
  const onKeyDown = (event) => {
    const from = event.target.dataset?.node;
    const next = from !== undefined && layout ? neighbour(layout.boxes, from, event.key) : null;
    if (next === null) return;
    event.preventDefault();
    setHome(next);
    show(scroller.current, layout.boxes.get(next), scale, next);
  };
  return html`<section class="graph" aria-label="Graph">
    <div class="graph-bar">
      <span class="muted">${plural(Math.max(view.run.count - hidden, view.steps.size), "step")}${view.more ? `, of which ${view.steps.size} are shown` : ""}</span>
      <span class="buttons"><button type="button" class="quiet" onClick=${() => change(-1)} aria-label="Smaller">−</button>
        <button type="button" class="quiet" onClick=${fit}>Fit</button>
        <button type="button" class="quiet" onClick=${() => change(1)} aria-label="Larger">+</button></span>
    </div>
    <div class="graph-scroller" ref=${scroller} onKeyDown=${onKeyDown} tabindex="-1"
        style=${{ height: `${heightOf(layout, scale, size)}px` }}>
      ${layout
        ? html`<${Canvas} ...${{ graph, layout, scale, size, isDown, selected, onSelect, onOpen, home, setHome, now }} />`
        : html`<p class="muted pad">${failed ? "This graph cannot be laid out; the time line has all steps." : "Laying out…"}</p>`}
    </div>
  </section>`;
}

function Canvas({ graph, layout, scale, size, isDown, selected, onSelect, onOpen, home, setHome, now }) {
  const seen = {
    x: (size.x - MARGIN) / scale, y: (size.y - MARGIN) / scale,
    width: (size.width + 2 * MARGIN) / scale, height: (size.height + 2 * MARGIN) / scale,
  };
  const joins = useMemo(() => joinsOf(graph.edges), [graph]);
  const shown = graph.nodes.filter(({ id }) => layout.boxes.has(id) && (id === home || overlap(layout.boxes.get(id), seen)));
  const first = shown.some(({ id }) => id === home) ? home : shown[0]?.id;
  const common = { onSelect, onFocus: setHome, now };
  return html`<div class="sheet" style=${{ width: `${layout.width * scale}px`, height: `${layout.height * scale}px` }}>
    <div class="sheet-inner ${scale < LINES_FROM ? "far" : ""}" style=${{ transform: `scale(${scale})`, "--far-name": `${Math.min(19, NAME_PX / scale)}px` }}>
      <${Edges} edges=${graph.edges} layout=${layout} seen=${seen} isDown=${isDown} withLabels=${scale >= LABELS_FROM} />
      ${shown.map((node) => {
        const position = { key: node.id, box: layout.boxes.get(node.id), isHome: node.id === first };
        return node.group
          ? html`<${GroupNode} ...${common} ...${position} node=${node} selected=${selected} onOpen=${onOpen} />`
          : html`<${StepNode} ...${common} ...${position} step=${node.step} joins=${joins.get(node.id) ?? 0} isSelected=${selected === node.id} />`;
      })}
    </div>
  </div>`;
}

function joinsOf(edges) {
  const joins = new Map();
  for (const { target } of edges) joins.set(target, (joins.get(target) ?? 0) + 1);
  return joins;
}

/** Keeps a state equal to the visible part of an element, but for short ways of scrolling. */
function useViewport(scroller, setSize) {
  useEffect(() => {
    const element = scroller.current;
    let frame = 0;
    const read = () => {
      frame = 0;
      const top = element.getBoundingClientRect().top + scrollY;
      const next = { x: element.scrollLeft, y: element.scrollTop, width: element.clientWidth, height: element.clientHeight, top };
      setSize((known) => (known && isNear(known, next) ? known : next));
    };
    const soon = () => (frame ||= requestAnimationFrame(read));
    const watcher = new ResizeObserver(soon);
    watcher.observe(element);
    element.addEventListener("scroll", soon, { passive: true });
    read();
    return () => {
      watcher.disconnect();
      element.removeEventListener("scroll", soon);
      cancelAnimationFrame(frame);
    };
  }, []);
}

function isNear(a, b) {
  return a.width === b.width && a.height === b.height && a.top === b.top && Math.abs(a.x - b.x) < SCROLLED && Math.abs(a.y - b.y) < SCROLLED;
}

/** Keeps the step that started last in view while the run is open, until the user scrolls. A closed run is shown from its start. */
function useFollowing(scroller, view, layout, zoom) {
  const follows = useRef(true);
  const wasOpen = useRef(false);
  useEffect(() => {
    const stop = () => (follows.current = false);
    const signs = ["wheel", "pointerdown", "keydown"];
    signs.forEach((sign) => scroller.current.addEventListener(sign, stop, { passive: true }));
    return () => signs.forEach((sign) => scroller.current?.removeEventListener(sign, stop));
  }, []);
  useLayoutEffect(() => {
    if (!layout || zoom === null || !follows.current) return;
    const isOpen = !runIsOver(view.run.status);
    const steps = [...view.steps.values()].filter((step) => layout.boxes.has(step.id));
    if (isOpen || wasOpen.current) {
      const newest = steps.reduce((best, step) => ((step.started_at ?? 0) >= (best?.started_at ?? 0) ? step : best), null);
      if (newest) show(scroller.current, layout.boxes.get(newest.id), zoom, null);
      wasOpen.current = true;
    } else {
      if (steps.length) show(scroller.current, layout.boxes.get(steps[0].id), zoom, null);
      follows.current = false;
    }
  }, [layout, zoom, view]);
}

/** Scrolls a box into view, and focuses the node if one is given. */
function show(element, box, scale, focused) {
  const behind = (start, length, from, window) => {
    const [a, b] = [start * scale - 40, (start + length) * scale + 40];
    if (a >= from && b <= from + window) return from;
    return Math.max(0, (a + b - window) / 2);
  };
  element.scrollLeft = behind(box.x, box.width, element.scrollLeft, element.clientWidth);
  element.scrollTop = behind(box.y, box.height, element.scrollTop, element.clientHeight);
  if (focused === null) return;
  requestAnimationFrame(() => requestAnimationFrame(() => element.querySelector(`[data-node="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true })));
}

/** Height of the graph, within the available height of the window. */
function heightOf(layout, scale, size) {
  return Math.min(availableHeight(size), layout ? Math.max(MIN_HEIGHT, layout.height * scale + 18) : MIN_HEIGHT);
}

function availableHeight(size) {
  return Math.max(1.4 * MIN_HEIGHT, innerHeight - (size?.top ?? 0) - BELOW_PX);
}

/** Return the room of a whole graph, in steps, so that small changes of the window cause no new layout. */
function roomIn(size) {
  const rounded = (pixels) => Math.floor(pixels / ROOM_STEP) * ROOM_STEP;
  return { width: rounded(size.width), height: rounded(availableHeight(size)) };
}

function fitting(layout, size) {
  return Math.max(ZOOMS[0], Math.min(1, size.width / layout.width, availableHeight(size) / layout.height));
}

function firstZoom(layout, size) {
  const whole = fitting(layout, size);
  return whole >= MIN_FIRST_ZOOM ? whole : FIRST_ZOOM;
}

function nearest(scale) {
  return ZOOMS.reduce((best, zoom, position) => (Math.abs(zoom - scale) < Math.abs(ZOOMS[best] - scale) ? position : best), 0);
}
