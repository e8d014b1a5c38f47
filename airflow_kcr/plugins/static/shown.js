// @ts-check
// How values are shown: numbers, times with their ages, conditions, tables, notices.

import { React, UI, h } from "./host.js";

const NONE = "–";

/** How the first letter of a name is written that others have in a sentence. */
const CAPITAL = { textTransform: "uppercase" };

/** @param {number | null | undefined} value */
export function number(value) {
  return value === null || value === undefined ? NONE : value.toLocaleString("en-US");
}

/** A length of time, in its largest unit and, where there are few of those, the next. @param {number} seconds */
export function span(seconds) {
  const whole = Math.max(Math.round(seconds), 0);
  const found = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]
    .find(([size]) => whole >= Number(size));
  if (!found) return `${whole} s`;
  const [size, unit, smaller, part] = found;
  const [count, rest] = [Math.floor(whole / Number(size)), Math.floor((whole % Number(size)) / Number(smaller))];
  return rest && count < 10 ? `${count} ${unit} ${rest} ${part}` : `${count} ${unit}`;
}

/** A duration as it was measured. @param {number | null} seconds */
export function took(seconds) {
  if (seconds === null) return NONE;
  return seconds < 10 ? `${seconds.toFixed(seconds < 1 ? 3 : 1)} s` : span(seconds);
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

/** A color of Airflow's theme, for drawings. @param {string} name */
export const themeColor = (name) => `var(--chakra-colors-${name})`;

/** @typedef {{at: string | null | undefined, now: string | null | undefined}} Moment */

/** A time, with how long ago it was, or in how long it will be. @param {Moment} props */
export function Time({ at, now }) {
  if (!at) return NONE;
  const whole = (text) => h("span", { style: { whiteSpace: "nowrap" } }, text);
  return h("time", { dateTime: at, title: `${instant(at)} ${zone()}` },
    whole(instant(at)), now && " ", now && whole(`(${age(at, now)})`));
}

/** An age alone, for narrow columns; the time is its title. @param {Moment} props */
export function Age({ at, now }) {
  if (!at || !now) return NONE;
  return h("time", { dateTime: at, title: `${instant(at)} ${zone()}` }, age(at, now));
}

/** What a region is, in a word, and the color of that: what a person chose counts before what follows.
 * @param {any} region @returns {[string, string]} */
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

/** Something to know, said at once to who can't see it.
 * @param {{kind?: "error" | "warning" | "info", children?: any}} props */
export function Notice({ kind = "error", children }) {
  const role = kind === "error" ? "alert" : "status";
  return h(UI.Alert.Root, { status: kind, role, my: 2, alignItems: "start" },
    h(UI.Alert.Indicator),
    h(UI.Alert.Description, { overflowWrap: "anywhere", minW: 0 }, h("span", null, children)));
}

/** What is less than the rest. @param {any} props */
export function Muted(props) {
  return h(UI.Text, { color: "fg.muted", ...props });
}

/** What stands in the place of what is read.
 * @param {{data: any, problem: {message: string} | null, what: string}} props */
export function Pending({ data, problem, what }) {
  if (problem) return h(Notice, { kind: "error" }, problem.message);
  return data ? null : h(Muted, { role: "status" }, `Reading ${what} …`);
}

/** @typedef {{name: string, head?: any, cell: (row: any) => any, right?: boolean, wide?: boolean,
 *   rare?: string}} Column `wide`: not on a phone; `rare`: not where no row has this field */

/** A column of numbers. @param {string} name @param {string} field @param {Partial<Column>} [more] @returns {Column} */
export const amount = (name, field, more) => ({ name, right: true, cell: (row) => number(row[field]), ...more });

/** A column of texts. @param {string} name @param {string} field @param {Partial<Column>} [more] @returns {Column} */
export const text = (name, field, more) => ({ name, cell: (row) => row[field] ?? "", ...more });

/** A table that scrolls by itself where it is too wide; its first column names the row.
 * @param {{label: string, columns: Column[], rows: any[], id: (row: any) => string, empty: string,
 *   chosen?: string, below?: (row: any) => any}} props */
export function Rows({ label, columns, rows, id, empty, chosen, below }) {
  if (!rows.length) return h(Muted, { py: 2 }, empty);
  const shown = columns.filter(({ rare }) => !rare || rows.some((row) => row[rare]));
  const style = (one) => ({
    textAlign: one.right ? "end" : "start", fontVariantNumeric: "tabular-nums", verticalAlign: "top",
    px: { base: 1, md: 2 }, ...(one.wide ? { hideBelow: "md" } : {}),
  });
  const head = shown.map((one) =>
    h(UI.Table.ColumnHeader, { key: one.name, scope: "col", ...style(one) }, one.head ?? one.name));
  const named = { as: "th", scope: "row", fontWeight: "medium" };
  const body = rows.map((row) => {
    const cells = shown.map((one, place) =>
      h(UI.Table.Cell, { key: one.name, ...(place ? {} : named), ...style(one) }, one.cell(row)));
    const more = chosen === id(row) && below && h(UI.Table.Row, { bg: "transparent" },
      h(UI.Table.Cell, { colSpan: shown.length, bg: "bg.subtle" }, below(row)));
    return h(React.Fragment, { key: id(row) }, h(UI.Table.Row, { bg: "transparent" }, ...cells), more);
  });
  return h(UI.Box, { overflowX: "auto", tabIndex: 0, role: "region", "aria-label": label },
    h(UI.Table.Root, { size: "sm", variant: "line" },
      h(UI.Table.Header, null, h(UI.Table.Row, { bg: "transparent" }, ...head)), h(UI.Table.Body, null, ...body)));
}

/** The id of a row that is about a partition. @param {any} row */
export const partitionId = (row) => `${row.group} ${row.topic} ${row.partition}`;

/** The name of its partition. @param {any} row */
export const partitionName = (row) => `${row.group}: ${row.topic}-${row.partition}`;

/** A table of partitions. @param {{columns: Column[], label: string, rows: any[], empty: string, head?: any}} props */
export function PartitionRows({ columns, head = "Partition", ...table }) {
  const first = { name: "partition", head, cell: partitionName };
  return h(Rows, { ...table, id: partitionId, columns: [first, ...columns] });
}

/** A page of a region's past, as `usePast` has it, in a table. @param {any} props those of `Rows`, and what was read */
export function Past({ data, problem, turn: { isFirst, older, go }, ...table }) {
  return h(React.Fragment, null,
    h(Pending, { data, problem, what: `the ${table.label.toLowerCase()}` }),
    data && h(Rows, table),
    h(UI.Flex, { gap: 2, mt: 3 },
      !isFirst && h(Small, { onClick: () => go(null) }, "Newest"),
      older !== null && h(Small, { onClick: () => go(older) }, "Older")));
}

/** A small button. @param {any} props */
export function Small(props) {
  return h(UI.Button, { size: "xs", variant: "outline", ...props });
}

/** A button that looks like the text around it. @param {any} props */
export function Plain(props) {
  const text = { fontSize: "inherit", fontWeight: "inherit", lineHeight: "inherit", textAlign: "inherit" };
  const bare = { px: 0, borderWidth: 0, minW: 0, height: "auto", verticalAlign: "baseline", whiteSpace: "normal" };
  return h(UI.Button, { variant: "plain", ...bare, ...text, ...props });
}

/** The head of a column by which rows can be sorted.
 * @param {{label: string, isChosen: boolean, mark?: string, sort: () => void}} props */
export function Sorter({ label, isChosen, mark = "", sort }) {
  const textDecoration = isChosen ? "underline" : undefined;
  return h(Plain, { onClick: sort, "aria-pressed": isChosen, textDecoration, title: `Sort by ${label.toLowerCase()}` },
    isChosen ? label + mark : label);
}

/** @param {{label: string, by: string, value: string, change: (text: string) => void}} props */
export function Filter({ label, by, value, change }) {
  return h(UI.Input, { "aria-label": label, placeholder: `Filter by ${by}`, size: "sm", maxW: "24rem", mb: 3,
    defaultValue: value, onChange: (event) => change(event.target.value) });
}

/** A field of a form.
 * @param {any} props its label, help, name, value, and `change`, which is given the text; the rest is the input's */
export function Field({ label, help = "", change, required = true, ...input }) {
  return h(UI.Field.Root, { mt: 3, required }, h(UI.Field.Label, { _firstLetter: CAPITAL }, label),
    h(UI.Input, { autoComplete: "off", ...input, onChange: (event) => change(event.target.value) }),
    help && h(UI.Field.HelperText, null, help));
}

/** @param {{name: string, is: boolean, label: string, change: (values: object) => void}} props */
export function Tick({ name, is, label, change }) {
  const tick = (event) => change({ [name]: event.checked === true });
  return h(UI.Checkbox.Root, { mt: 2, display: "flex", checked: is, onCheckedChange: tick },
    h(UI.Checkbox.HiddenInput, { name }), h(UI.Checkbox.Control), h(UI.Checkbox.Label, null, label));
}

/** Facts, name and value; what is empty is left out. @param {{of: [string, any][]}} props */
export function Facts({ of: facts }) {
  const shown = facts.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const columns = { base: "1fr", sm: "max-content 1fr" };
  return h(UI.Box, { as: "dl", display: "grid", gridTemplateColumns: columns, columnGap: 4, rowGap: 1 },
    ...shown.flatMap(([name, value]) => [
      h(UI.Box, { as: "dt", color: "fg.muted", key: name, _firstLetter: CAPITAL }, name),
      h(UI.Box, { as: "dd", key: `${name}=`, m: 0, mb: { base: 2, sm: 0 }, overflowWrap: "anywhere", minW: 0 }, value),
    ]));
}

/** @param {{children?: any}} props */
export function Title({ children }) {
  return h(UI.Heading, { as: "h2", size: "md", mt: 5, mb: 2 }, children);
}
