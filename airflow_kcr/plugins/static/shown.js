// @ts-check
// How values are shown: numbers, times with their ages, conditions, tables, notices.

import { React, UI, h } from "./host.js";

const NONE = "–";

/** @param {number | null | undefined} value */
export function number(value) {
  return value === null || value === undefined ? NONE : value.toLocaleString("en-US");
}

/** @param {number} seconds */
export function span(seconds) {
  const whole = Math.max(Math.round(seconds), 0);
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => whole >= Number(size));
  if (first < 0) return "0 s";
  let left = whole;
  const parts = units.slice(first, first + 2).map(([size, unit]) => {
    const count = Math.floor(left / Number(size));
    left -= count * Number(size);
    return count ? `${count} ${unit}` : "";
  });
  return parts.filter(Boolean).join(" ");
}

/** The time zone that the user has chosen in Airflow; without a choice, the browser's. */
export function zone() {
  try {
    const timeZone = JSON.parse(localStorage.getItem("timezone") ?? "null") ?? undefined;
    return Intl.DateTimeFormat("en", { timeZone }).resolvedOptions().timeZone;
  } catch {
    return Intl.DateTimeFormat().resolvedOptions().timeZone;
  }
}

/** @param {string} at */
export function instant(at) {
  const parts = { year: "numeric", month: "2-digit", day: "2-digit" };
  const time = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZone: zone() };
  return new Intl.DateTimeFormat("sv-SE", /** @type {any} */ ({ ...parts, ...time })).format(new Date(at));
}

/** @param {string} at @param {string} now */
function age(at, now) {
  const ago = (Date.parse(now) - Date.parse(at)) / 1000;
  return ago >= 0 ? `${span(ago)} ago` : `in ${span(-ago)}`;
}

/** @typedef {{at: string | null | undefined, now: string | null | undefined}} Moment */

/** A time, with how long ago it was, or in how long it will be. @param {Moment} props */
export function Time({ at, now }) {
  if (!at) return NONE;
  return h("time", { dateTime: at, title: `${instant(at)} ${zone()}` }, instant(at), now && ` (${age(at, now)})`);
}

/** An age alone, for narrow columns; the time is its title. @param {Moment} props */
export function Age({ at, now }) {
  if (!at || !now) return NONE;
  return h("time", { dateTime: at, title: `${instant(at)} ${zone()}` }, age(at, now));
}

/** What a region is, in a word, and the color of that: what a person chose counts before what follows. @param {any} region @returns {[string, string]} */
export function condition(region) {
  if (region.state === "halted") return ["halted", "red"];
  if (region.state === "stopped") return region.epoch === 0 ? ["new", "gray"] : ["stopped", "gray"];
  if (region.desired_state === "stopped") return ["stopping", "gray"];
  if (region.desired_state === "paused") return ["paused", "yellow"];
  if (region.progress === "stalled") return ["stalled", "red"];
  if (region.state !== "running") return [region.state, "blue"];
  return region.progress === "waiting" ? ["waiting", "blue"] : ["running", "green"];
}

/** @param {{of: [string, string]}} props */
export function Condition({ of: [word, color] }) {
  return h(UI.Badge, { colorPalette: color, variant: "surface", size: "md" }, word);
}

/** Something to know, said at once to who can't see it. @param {{kind?: "error" | "warning" | "info", children?: any}} props */
export function Notice({ kind = "error", children }) {
  return h(UI.Alert.Root, { status: kind, role: kind === "error" ? "alert" : "status", my: 2, alignItems: "start" },
    h(UI.Alert.Indicator),
    h(UI.Alert.Description, { overflowWrap: "anywhere", minW: 0 }, h("span", null, children)));
}

/** What stands in the place of what is read. @param {{data: any, problem: {message: string} | null, what: string}} props */
export function Pending({ data, problem, what }) {
  if (problem) return h(Notice, { kind: "error" }, problem.message);
  return data ? null : h(UI.Text, { color: "fg.muted", role: "status" }, `Reading ${what} …`);
}

/** @typedef {{name: string, head?: any, cell: (row: any) => any, right?: boolean, wide?: boolean}} Column `wide`: not on a phone */

/** A table that scrolls by itself where it is too wide; its first column names the row.
 * @param {{label: string, columns: Column[], rows: any[], id: (row: any) => string, empty: string, chosen?: string, below?: (row: any) => any}} props */
export function Rows({ label, columns, rows, id, empty, chosen, below }) {
  if (!rows.length) return h(UI.Text, { color: "fg.muted", py: 2 }, empty);
  const style = (/** @type {Column} */ one) => ({ textAlign: one.right ? "end" : "start", fontVariantNumeric: "tabular-nums",
    verticalAlign: "top", ...(one.wide ? { hideBelow: "md" } : {}) });
  const head = columns.map((one) => h(UI.Table.ColumnHeader, { key: one.name, scope: "col", ...style(one) }, one.head ?? one.name));
  const body = rows.map((row) => {
    const cells = columns.map((one, place) =>
      h(UI.Table.Cell, { key: one.name, ...(place ? {} : { as: "th", scope: "row", fontWeight: "medium" }), ...style(one) }, one.cell(row)));
    return h(React.Fragment, { key: id(row) }, h(UI.Table.Row, null, ...cells),
      chosen === id(row) && below && h(UI.Table.Row, null, h(UI.Table.Cell, { colSpan: columns.length, bg: "bg.subtle" }, below(row))));
  });
  return h(UI.Box, { overflowX: "auto", tabIndex: 0, role: "region", "aria-label": label },
    h(UI.Table.Root, { size: "sm", variant: "line" },
      h(UI.Table.Header, null, h(UI.Table.Row, null, ...head)), h(UI.Table.Body, null, ...body)));
}

/** The id of a row that is about a partition. @param {any} row */
export const partitionId = (row) => `${row.group} ${row.topic} ${row.partition}`;

/** The column that names it. @type {Column} */
export const PARTITION = { name: "partition", head: "Partition", cell: (row) => `${row.group}: ${row.topic}-${row.partition}` };

/** A page of a region's past, as `usePast` has it, in a table. @param {any} props those of `Rows`, and what was read */
export function Past({ data, problem, turn: { isFirst, older, go }, ...table }) {
  const button = (/** @type {string} */ label, /** @type {number | null} */ before) =>
    h(UI.Button, { size: "xs", variant: "outline", onClick: () => go(before) }, label);
  return h(React.Fragment, null, h(Pending, { data, problem, what: `the ${table.label.toLowerCase()}` }), data && h(Rows, table),
    h(UI.Flex, { gap: 2, mt: 3 }, !isFirst && button("Newest", null), older !== null && button("Older", older)));
}

/** A button that looks like text. */
export const PLAIN = { variant: "plain", px: 0, minW: 0, height: "auto" };

/** The head of a column by which rows can be sorted. @param {{label: string, isChosen: boolean, mark?: string, sort: () => void}} props */
export function Sorter({ label, isChosen, mark = "", sort }) {
  return h(UI.Button, { ...PLAIN, size: "xs", onClick: sort, "aria-pressed": isChosen,
    textDecoration: isChosen ? "underline" : undefined, title: `Sort by ${label.toLowerCase()}` }, isChosen ? label + mark : label);
}

/** @param {{label: string, by: string, value: string, change: (text: string) => void}} props */
export function Filter({ label, by, value, change }) {
  return h(UI.Input, { "aria-label": label, placeholder: `Filter by ${by}`, size: "sm", maxW: "24rem", mb: 3, defaultValue: value,
    onChange: (/** @type {any} */ event) => change(event.target.value) });
}

/** A field of a form. @param {any} props its label, name, value, and `change`, which is given the text; the rest is the input's */
export function Field({ label, change, required = true, ...input }) {
  return h(UI.Field.Root, { mt: 3, required }, h(UI.Field.Label, null, label),
    h(UI.Input, { autoComplete: "off", ...input, onChange: (/** @type {any} */ event) => change(event.target.value) }));
}

/** @param {{name: string, is: boolean, label: string, change: (values: object) => void}} props */
export function Tick({ name, is, label, change }) {
  return h(UI.Checkbox.Root, { mt: 2, display: "flex", checked: is,
    onCheckedChange: (/** @type {any} */ event) => change({ [name]: event.checked === true }) },
  h(UI.Checkbox.HiddenInput, { name }), h(UI.Checkbox.Control), h(UI.Checkbox.Label, null, label));
}

/** Facts, name and value; what is empty is left out. @param {{of: [string, any][]}} props */
export function Facts({ of: facts }) {
  const shown = facts.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return h(UI.Box, { as: "dl", display: "grid", gridTemplateColumns: { base: "1fr", sm: "max-content 1fr" }, columnGap: 4, rowGap: 1 },
    ...shown.flatMap(([name, value]) => [
      h(UI.Box, { as: "dt", color: "fg.muted", key: name }, name),
      h(UI.Box, { as: "dd", key: `${name}=`, m: 0, mb: { base: 2, sm: 0 }, overflowWrap: "anywhere", minW: 0 }, value),
    ]));
}

/** @param {{children?: any}} props */
export function Title({ children }) {
  return h(UI.Heading, { as: "h2", size: "md", mt: 5, mb: 2 }, children);
}
