// @ts-check
// Charts of a region over time, drawn as SVG, to be kept as SVG or PNG.

import { regionApi, useJson } from "./data.js";
import { React, UI, h } from "./host.js";
import { Muted, Pending, Small, instant, number, themeColor } from "./shown.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [720, 200, 80, 16, 28, 24];
const COLORS = ["brand-solid", "green-solid", "orange-solid", "purple-solid", "red-solid", "gray-solid"];

/** The text in drawings, whatever their own scale; as a style, since the page's rules are stronger than attributes. */
export const SMALL_TEXT = { fontSize: 11, fontFamily: "sans-serif" };

/** @typedef {{name: string, points: [number, number][]}} Series times in milliseconds, and values */

/** From one time to another along the width, the times that are written below.
 * @param {number} first @param {number} last */
export function ticks(first, last) {
  return first === last ? [first] : [0.06, 0.36, 0.66, 0.95].map((part) => first + (last - first) * part);
}

/** A time as it is written below a drawing of some length in milliseconds.
 * @param {number} time @param {number} length */
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

/** @param {SVGElement} svg @param {string} name */
const keepSvg = (svg, name) => keep(new Blob([alone(svg)], { type: "image/svg+xml" }), `${name}.svg`);

/** @param {{name: string, title: string, unit: string, of: Series[], isBars?: boolean}} props */
function Chart({ name, title, unit, of: series, isBars = false }) {
  const svg = React.useRef(null);
  const every = series.flatMap((one) => one.points);
  if (every.length < (isBars ? 1 : 2)) return h(Muted, { my: 3 }, `${title}: nothing to draw yet.`);
  const times = every.map(([time]) => time);
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const most = Math.max(...every.map(([, value]) => value)) || 1;
  const x = (time) => LEFT + ((time - first) / Math.max(last - first, 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - TOP - BOTTOM);
  const color = (place) => themeColor(COLORS[place % COLORS.length]);
  const bar = (place, [time, value]) =>
    h("rect", { key: `${place} ${time}`, x: x(time) - 4 + 5 * place, y: y(value), width: 4,
      height: HEIGHT - BOTTOM - y(value), fill: color(place) }, h("title", null, `${number(value)} ${unit}`));
  const line = (place, points) => h("polyline", { key: place, fill: "none", stroke: color(place), strokeWidth: 1.5,
    points: points.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`).join(" ") });
  const level = (value) => h("g", { key: value },
    h("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), stroke: themeColor("border") }),
    h("text", { x: LEFT - 6, y: y(value) + 4, textAnchor: "end" }, number(Math.round(value * 1000) / 1000)));
  const time = (one) =>
    h("text", { key: `t${one}`, x: x(one), y: HEIGHT - 8, textAnchor: "middle" }, tick(one, last - first));
  const legend = (one, place) =>
    h("text", { key: one.name, x: LEFT + place * 160, y: 14, fill: color(place) }, `${one.name}, ${unit}`);
  const label = `${title}, ${tick(first, 1e9)} to ${tick(last, 1e9)}, at most ${number(most)} ${unit}`;
  const style = { minWidth: 560, maxWidth: "100%", height: "auto", background: themeColor("bg"), ...SMALL_TEXT };
  const keeper = (kind, save) =>
    h(Small, { "aria-label": `${title} as ${kind}`, onClick: () => save(svg.current, name) }, kind);
  return h(UI.Box, { as: "figure", my: 4, minW: 0, overflowX: "auto", tabIndex: 0, "aria-label": title },
    h(UI.Flex, { gap: 2, align: "center", wrap: "wrap" },
      h(UI.Heading, { as: "h2", size: "sm" }, title), keeper("SVG", keepSvg), keeper("PNG", keepPng)),
    h("svg", { ref: svg, xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH,
      height: HEIGHT, fill: themeColor("fg"), role: "img", "aria-label": label, style },
    h("title", null, label), ...[0, most / 2, most].map(level), ...ticks(first, last).map(time), ...series.map(legend),
    ...series.flatMap(({ points }, place) =>
      isBars ? points.map((point) => bar(place, point)) : [line(place, points)])));
}

/** Values by the time at which they were; what is not known is left out.
 * @param {any[]} rows @param {string} at @param {string} of the fields of both @returns {[number, number][]} */
const points = (rows, at, of) => rows.filter((row) => row[at] && row[of] !== null)
  .map((row) => [Date.parse(row[at]), row[of]]);

/** @param {{store: string, region: string, version: number}} props */
export function Charts({ store, region, version }) {
  const path = regionApi(store, region);
  const lag = useJson(`${path}/lag`, version);
  const checkpoints = useJson(`${path}/checkpoints?last=200`, version);
  const resets = useJson(`${path}/resets?last=200`, version);
  const samples = lag.data?.samples ?? [];
  const groups = [...new Set(samples.map((one) => one.group))];
  const byGroup = (field) => groups.map((group) =>
    ({ name: group, points: points(samples.filter((one) => one.group === group), "at", field) }));
  const ofRows = (rows, at, fields) => fields.map(([name, field]) => ({ name, points: points(rows ?? [], at, field) }));
  const phases = [["drain", "drain_seconds"], ["publish", "publish_seconds"]];
  const windows = [["went back over", "rewound"], ["replayed since", "replayed"]];
  return h(React.Fragment, null,
    ...[lag, checkpoints, resets].map((read, place) => h(Pending, { key: place, ...read, what: "the charts" })),
    h(Chart, { name: `${region}-lag`, title: "Lag", unit: "offsets", of: byGroup("lag") }),
    h(Chart, { name: `${region}-rate`, title: "Rate", unit: "offsets/s", of: byGroup("rate") }),
    h(Chart, { name: `${region}-checkpoints`, title: "Duration of checkpoints", unit: "s", isBars: true,
      of: ofRows(checkpoints.data?.checkpoints, "finished_at", phases) }),
    h(Chart, { name: `${region}-replays`, title: "Replay windows of resets", unit: "offsets", isBars: true,
      of: ofRows(resets.data?.resets, "started_at", windows) }));
}
