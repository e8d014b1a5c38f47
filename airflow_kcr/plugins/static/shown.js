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
    const chosen = JSON.parse(localStorage.getItem("timezone") ?? "null");
    new Intl.DateTimeFormat("en", { timeZone: chosen ?? undefined });
    return chosen ?? Intl.DateTimeFormat().resolvedOptions().timeZone;
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

/**
 * A time, with how long ago it was, or in how long it will be.
 * @param {{at: string | null | undefined, now: string | null | undefined}} props
 */
export function Time({ at, now }) {
  if (!at) return NONE;
  const ago = now ? (Date.parse(now) - Date.parse(at)) / 1000 : null;
  const age = ago === null ? "" : ago >= 0 ? `${span(ago)} ago` : `in ${span(-ago)}`;
  return h("time", { dateTime: at, title: `${instant(at)} ${zone()}` }, instant(at), age && ` (${age})`);
}

/**
 * An age alone, for narrow columns; the time is its title.
 * @param {{at: string | null | undefined, now: string | null | undefined}} props
 */
export function Age({ at, now }) {
  if (!at || !now) return NONE;
  const title = `${instant(at)} ${zone()}`;
  return h("time", { dateTime: at, title }, `${span((Date.parse(now) - Date.parse(at)) / 1000)} ago`);
}

/**
 * What a region is, in a word, and the color of that word: what a person chose counts before what follows from it.
 * @param {any} region
 * @returns {[string, string]}
 */
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

/**
 * Something to know, said at once to who can't see it.
 * @param {{kind?: "error" | "warning" | "info", children?: any}} props
 */
export function Notice({ kind = "error", children }) {
  return h(
    UI.Alert.Root,
    { status: kind, role: kind === "error" ? "alert" : "status", my: 2, alignItems: "start" },
    h(UI.Alert.Indicator),
    h(UI.Alert.Description, { overflowWrap: "anywhere", minW: 0 }, h("span", null, children)),
  );
}

/**
 * What stands in the place of something that is read: that it is, or that it can't be.
 * @param {{data: any, problem: {message: string} | null, what: string}} props
 */
export function Pending({ data, problem, what }) {
  if (problem) return h(Notice, { kind: "error" }, problem.message);
  return data ? null : h(UI.Text, { color: "fg.muted", role: "status" }, `Reading ${what} …`);
}

/**
 * @typedef {{name: string, head?: any, cell: (row: any) => any, right?: boolean, wide?: boolean}} Column
 * `wide`: left out on a phone.
 */

/**
 * A table that scrolls by itself where it is too wide; its first column names the row.
 * @param {{label: string, columns: Column[], rows: any[], id: (row: any) => string, empty: string,
 *   chosen?: string, below?: (row: any) => any}} props
 */
export function Rows({ label, columns, rows, id, empty, chosen, below }) {
  if (!rows.length) return h(UI.Text, { color: "fg.muted", py: 2 }, empty);
  const style = (/** @type {Column} */ one) => ({
    textAlign: one.right ? "end" : "start",
    fontVariantNumeric: "tabular-nums",
    verticalAlign: "top",
    ...(one.wide ? { hideBelow: "md" } : {}),
  });
  const head = columns.map((one) =>
    h(UI.Table.ColumnHeader, { key: one.name, scope: "col", ...style(one) }, one.head ?? one.name),
  );
  const body = rows.map((row) => {
    const cells = columns.map((one, place) =>
      h(UI.Table.Cell, { key: one.name, ...(place ? {} : { as: "th", scope: "row", fontWeight: "medium" }), ...style(one) },
        one.cell(row)),
    );
    const more = chosen === id(row) && below
      ? h(UI.Table.Row, null, h(UI.Table.Cell, { colSpan: columns.length, bg: "bg.subtle" }, below(row)))
      : null;
    return h(React.Fragment, { key: id(row) }, h(UI.Table.Row, null, ...cells), more);
  });
  return h(
    UI.Box,
    { overflowX: "auto", tabIndex: 0, role: "region", "aria-label": label },
    h(UI.Table.Root, { size: "sm", variant: "line" },
      h(UI.Table.Header, null, h(UI.Table.Row, null, ...head)), h(UI.Table.Body, null, ...body)),
  );
}

/**
 * Facts, name and value; what is empty is left out.
 * @param {{of: [string, any][]}} props
 */
export function Facts({ of: facts }) {
  const shown = facts.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return h(
    UI.Box,
    { as: "dl", display: "grid", gridTemplateColumns: { base: "1fr", sm: "max-content 1fr" }, columnGap: 4, rowGap: 1 },
    ...shown.flatMap(([name, value]) => [
      h(UI.Box, { as: "dt", color: "fg.muted", key: name }, name),
      h(UI.Box, { as: "dd", key: `${name}=`, m: 0, mb: { base: 2, sm: 0 }, overflowWrap: "anywhere", minW: 0 }, value),
    ]),
  );
}

/** @param {{children?: any}} props */
export function Title({ children }) {
  return h(UI.Heading, { as: "h2", size: "md", mt: 5, mb: 2 }, children);
}
