// @ts-check
// Charts of a region over time, drawn as SVG, to be kept as SVG or PNG.

import { regionApi, useJson } from "./data.js";
import { React, UI, h } from "./host.js";
import { Pending, instant, number } from "./shown.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [720, 200, 80, 16, 28, 24];
const COLORS = ["brand-solid", "green-solid", "orange-solid", "purple-solid", "red-solid", "gray-solid"];

/** @typedef {{name: string, points: [number, number][]}} Series times in milliseconds, and values */

/** From one time to another along the width, the times that are written below. @param {number} first @param {number} last */
export const ticks = (first, last) => first === last ? [first] : [0.06, 0.36, 0.66, 0.95].map((part) => first + (last - first) * part);

/** A time as it is written below a drawing of this length. @param {number} time @param {number} length in milliseconds */
export const tick = (time, length) => instant(new Date(time).toISOString()).slice(length > 86400000 ? 0 : 11);

/** Let the user keep something as a file. @param {Blob | null} blob @param {string} name */
function keep(blob, name) {
  if (!blob) return;
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** A drawing by itself: with its colors in the place of the page's variables. @param {SVGElement} svg */
function alone(svg) {
  const colors = getComputedStyle(document.documentElement);
  const text = new XMLSerializer().serializeToString(svg);
  return text.replace(/var\((--[\w-]+)\)/g, (_, name) => colors.getPropertyValue(name).trim() || "gray");
}

/** @param {SVGElement} svg @param {string} name */
function keepPng(svg, name) {
  const image = new Image();
  image.onload = () => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 2 * WIDTH, height: 2 * HEIGHT });
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => keep(blob, `${name}.png`));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(alone(svg))}`;
}

/** @param {{name: string, title: string, unit: string, of: Series[], isBars?: boolean}} props */
function Chart({ name, title, unit, of: series, isBars = false }) {
  const svg = React.useRef(/** @type {any} */ (null));
  const every = series.flatMap((one) => one.points);
  if (every.length < (isBars ? 1 : 2)) return h(UI.Text, { color: "fg.muted", my: 3 }, `${title}: nothing to draw yet.`);
  const times = every.map(([time]) => time);
  const [first, last, most] = [Math.min(...times), Math.max(...times), Math.max(...every.map(([, value]) => value)) || 1];
  const x = (/** @type {number} */ time) => LEFT + ((time - first) / Math.max(last - first, 1)) * (WIDTH - LEFT - RIGHT);
  const y = (/** @type {number} */ value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - TOP - BOTTOM);
  const color = (/** @type {number} */ place) => `var(--chakra-colors-${COLORS[place % COLORS.length]})`;
  const text = { fill: "var(--chakra-colors-fg)", fontSize: 11, fontFamily: "sans-serif" };
  const label = `${title}, ${tick(first, 1e9)} to ${tick(last, 1e9)}, at most ${number(most)} ${unit}`;
  const drawn = series.flatMap(({ points }, place) => isBars
    ? points.map(([time, value]) => h("rect", { key: `${place} ${time}`, x: x(time) - 4 + 5 * place, y: y(value), width: 4,
      height: HEIGHT - BOTTOM - y(value), fill: color(place) }, h("title", null, `${number(value)} ${unit}`)))
    : [h("polyline", { key: place, points: points.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
      fill: "none", stroke: color(place), strokeWidth: 1.5 })]);
  return h(UI.Box, { as: "figure", my: 4, minW: 0, overflowX: "auto", tabIndex: 0, "aria-label": title },
    h(UI.Flex, { gap: 2, align: "center", wrap: "wrap" }, h(UI.Heading, { as: "h2", size: "sm" }, title),
      h(UI.Button, { size: "xs", variant: "outline", "aria-label": `${title} as SVG`,
        onClick: () => keep(new Blob([alone(svg.current)], { type: "image/svg+xml" }), `${name}.svg`) }, "SVG"),
      h(UI.Button, { size: "xs", variant: "outline", "aria-label": `${title} as PNG`, onClick: () => keepPng(svg.current, name) }, "PNG")),
    h("svg", { ref: svg, xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img",
      "aria-label": label, style: { minWidth: 560, maxWidth: "100%", height: "auto", background: "var(--chakra-colors-bg)" } },
    h("title", null, label),
    ...[0, most / 2, most].map((value) => h("g", { key: value },
      h("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), stroke: "var(--chakra-colors-border)" }),
      h("text", { ...text, x: LEFT - 6, y: y(value) + 4, textAnchor: "end" }, number(Math.round(value * 100) / 100)))),
    ...ticks(first, last).map((time) => h("text", { ...text, key: `t${time}`, x: x(time), y: HEIGHT - 8, textAnchor: "middle" }, tick(time, last - first))),
    ...series.map((one, place) => h("text", { ...text, key: one.name, x: LEFT + place * 150, y: 14, fill: color(place) }, `${one.name}, ${unit}`)),
    ...drawn));
}

/** Values by the time at which they were; what is not known is left out. @param {any[]} rows @param {(row: any) => any} at @param {(row: any) => any} of */
const points = (rows, at, of) => rows.filter((row) => at(row) && of(row) !== null)
  .map((row) => /** @type {[number, number]} */ ([Date.parse(at(row)), of(row)]));

/** @param {{store: string, region: string, version: number}} props */
export function Charts({ store, region, version }) {
  const path = regionApi(store, region);
  const lag = useJson(`${path}/lag`, version);
  const checkpoints = useJson(`${path}/checkpoints?last=200`, version);
  const resets = useJson(`${path}/resets?last=200`, version);
  const samples = lag.data?.samples ?? [];
  const groups = [...new Set(samples.map((/** @type {any} */ one) => one.group))];
  const byGroup = (/** @type {string} */ field) => groups.map((group) => ({
    name: group, points: points(samples.filter((/** @type {any} */ one) => one.group === group), (one) => one.at, (one) => one[field]) }));
  const ofRows = (/** @type {any[] | undefined} */ rows, /** @type {string} */ at, /** @type {[string, string][]} */ fields) =>
    fields.map(([name, field]) => ({ name, points: points(rows ?? [], (row) => row[at], (row) => row[field]) }));
  return h(React.Fragment, null,
    ...[lag, checkpoints, resets].map((read, place) => h(Pending, { key: place, ...read, what: "the charts" })),
    h(Chart, { name: `${region}-lag`, title: "Lag", unit: "offsets", of: byGroup("lag") }),
    h(Chart, { name: `${region}-rate`, title: "Rate", unit: "offsets/s", of: byGroup("rate") }),
    h(Chart, { name: `${region}-checkpoints`, title: "Duration of checkpoints", unit: "s", isBars: true,
      of: ofRows(checkpoints.data?.checkpoints, "finished_at", [["drain", "drain_seconds"], ["publish", "publish_seconds"]]) }),
    h(Chart, { name: `${region}-replays`, title: "Replay windows of resets", unit: "offsets", isBars: true,
      of: ofRows(resets.data?.resets, "started_at", [["went back over", "rewound"], ["replayed since", "replayed"]]) }));
}
