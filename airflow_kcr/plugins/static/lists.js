// @ts-check
// Partitions, resets and events of a region, each a page at a time.

import { PAGE, regionApi, useJson, usePast, useQuery } from "./data.js";
import { React, UI, h } from "./host.js";
import { Undone } from "./runs.js";
import { Filter, PARTITION, Past, Pending, Rows, Sorter, Time, number, partitionId } from "./shown.js";

/** @typedef {{store: string, region: string, version: number, now: string, read: any}} Part */

/** @param {Part} props */
export function Partitions({ store, region, version }) {
  const [read, change] = useQuery();
  const start = Number(read("start", "0"));
  const [match, order, direction] = [read("match"), read("order", "lag"), read("direction", "down")];
  const asked = new URLSearchParams({ match, order, direction, start: String(start), count: String(PAGE) });
  const { data, problem } = useJson(`${regionApi(store, region)}/partitions?${asked}`, version);
  const head = (/** @type {string} */ name, /** @type {string} */ label) => {
    const isChosen = order === name;
    const turned = isChosen && direction === "up" ? "down" : "up";
    return h(Sorter, { label, isChosen, mark: direction === "up" ? " ↑" : " ↓", sort: () => change({ order: name, direction: turned, start: "" }) });
  };
  const turn = (/** @type {string} */ label, /** @type {number} */ to) =>
    h(UI.Button, { size: "xs", variant: "outline", onClick: () => change({ start: String(Math.max(to, 0)) }) }, label);
  const end = start + (data?.partitions.length ?? 0);
  return h(React.Fragment, null,
    h(UI.Text, { color: "fg.muted", mb: 2 },
      "Ends of logs are those that members saw at the newest checkpoint. Offsets are at most as many records."),
    h(Filter, { label: "Filter partitions", by: "topic, partition or member", value: match,
      change: (/** @type {string} */ text) => change({ match: text, start: "" }) }),
    h(Pending, { data, problem, what: "the partitions" }),
    data && h(Rows, {
      label: "Partitions", rows: data.partitions, id: partitionId,
      empty: match ? `No partition matches ${match}.` : "No member has claimed a partition yet.",
      columns: [
        { ...PARTITION, head: head("partition", "Partition") },
        { name: "lag", head: head("lag", "Lag, offsets"), right: true, cell: (row) => number(row.lag) },
        { name: "Position", right: true, cell: (row) => number(row.position) },
        { name: "Checkpointed", right: true, wide: true, cell: (row) => number(row.checkpointed) },
        { name: "End of log", right: true, wide: true, cell: (row) => number(row.log_end) },
        { name: "member", head: head("member", "Member"), cell: (row) => row.member_id ?? "no member" },
      ],
    }),
    data?.total > 0 && h(UI.Flex, { gap: 2, mt: 3, align: "center" },
      start > 0 && turn("Before", start - PAGE), end < data.total && turn("After", start + PAGE),
      h(UI.Text, { color: "fg.muted" }, `${number(start + 1)} to ${number(end)} of ${number(data.total)}`)));
}

/** @param {Part} props */
export function Resets({ store, region, version, now }) {
  const past = usePast({ store, region, version }, "resets", (rows) => rows.findLast((row) => row.attempts.length)?.attempts[0].sequence ?? null);
  return h(Past, { ...past, label: "Resets", id: (row) => row.id, empty: "The region was never reset or started.", columns: [
    { name: "Reset", cell: (row) => row.id.slice(row.region.length + 1) },
    { name: "State", cell: (row) => row.state + (row.failure ? `: ${row.failure}` : "") },
    { name: "Cause", cell: (row) => row.cause, wide: true },
    { name: "Target", cell: (row) => row.target },
    { name: "Who and why", cell: (row) => [row.who, row.reason].filter(Boolean).join(": ") || "–" },
    { name: "Asked", cell: (row) => h(Time, { at: row.asked_at, now }), wide: true },
    { name: "Replayed", right: true, wide: true, cell: (row) => number(row.replayed) },
    { name: "Undone", cell: (row) => h(Undone, { store, region, row }) },
  ] });
}

/** @param {any} body */
function briefly(body) {
  return Object.entries(body).map(([name, value]) =>
    `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ");
}

/** @param {Part} props */
export function Events({ store, region, version, now }) {
  const past = usePast({ store, region, version }, "events", (rows) => rows.at(-1).number > 1 ? rows.at(-1).number : null);
  return h(Past, { ...past, label: "Events", id: (row) => String(row.number), empty: "Nothing happened.", columns: [
    { name: "Number", cell: (row) => row.number },
    { name: "When", cell: (row) => h(Time, { at: row.at, now }) },
    { name: "What", cell: (row) => row.kind },
    { name: "Details", cell: (row) => h(UI.Text, { overflowWrap: "anywhere", lineClamp: 3, title: briefly(row.body) }, briefly(row.body)) },
    { name: "Epoch", right: true, wide: true, cell: (row) => number(row.epoch) },
  ] });
}
