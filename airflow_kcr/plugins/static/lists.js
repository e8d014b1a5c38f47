// @ts-check
// Partitions, resets and events of a region, each a page at a time.

import { PAGE, regionApi, useJson, usePast, useQuery } from "./data.js";
import { React, UI, h } from "./host.js";
import { Undone } from "./runs.js";
import { Filter, Muted, PartitionRows, Past, Pending, Small, Sorter, Time, amount, number, text } from "./shown.js";

/** @typedef {{store: string, region: string, version: number, now: string, read: any}} Part */

/** A page of a region's partitions, sorted and filtered by the server.
 * @param {{store: string, region: string, version: number, asked: (name: string, otherwise?: string) => string,
 *   change: (values: Record<string, string>) => void,
 *   columns: (head: (name: string, label: string) => any) => import("./shown.js").Column[]}} props
 *   `asked`, `change`: what is looked at, as `useQuery` has it; `columns`: those beside the partition */
export function PartitionPage({ store, region, version, asked, change, columns }) {
  const [start, match] = [Number(asked("start", "0")), asked("match")];
  const [order, direction] = [asked("order", "lag"), asked("direction", "down")];
  const query = new URLSearchParams({ match, order, direction, start: String(start), count: String(PAGE) });
  const { data, problem } = useJson(`${regionApi(store, region)}/partitions?${query}`, version);
  const head = (name, label) => {
    const [isChosen, mark] = [order === name, direction === "up" ? " ↑" : " ↓"];
    const turned = isChosen && direction === "up" ? "down" : "up";
    return h(Sorter, { label, isChosen, mark, sort: () => change({ order: name, direction: turned, start: "" }) });
  };
  const turn = (label, to) => h(Small, { onClick: () => change({ start: String(Math.max(to, 0)) }) }, label);
  const end = start + (data?.partitions.length ?? 0);
  return h(React.Fragment, null,
    h(Filter, { label: "Filter partitions", by: "topic, partition or member", value: match,
      change: (typed) => change({ match: typed, start: "" }) }),
    h(Pending, { data, problem, what: "the partitions" }),
    data && h(PartitionRows, {
      label: "Partitions", rows: data.partitions, head: head("partition", "Partition"), columns: columns(head),
      empty: match ? `No partition matches ${match}.` : "No member has claimed a partition yet.",
    }),
    data?.total > 0 && h(UI.Flex, { gap: 2, mt: 3, align: "center" },
      start > 0 && turn("Before", start - PAGE), end < data.total && turn("After", start + PAGE),
      h(Muted, null, `${number(start + 1)} to ${number(end)} of ${number(data.total)}`)));
}

/** @param {Part} props */
export function Partitions({ store, region, version }) {
  const [asked, change] = useQuery();
  return h(React.Fragment, null,
    h(Muted, { mb: 2 }, "Ends of logs are those that members saw at the newest checkpoint. "
      + "A partition has at most as many records as offsets."),
    h(PartitionPage, { store, region, version, asked, change, columns: (head) => [
      amount("lag", "lag", { head: head("lag", "Lag, offsets") }),
      amount("Position", "position"),
      amount("Checkpointed", "checkpointed", { wide: true }),
      amount("End of log", "log_end", { wide: true }),
      { name: "member", head: head("member", "Member"), cell: (row) => row.member_id ?? "no member" },
    ] }));
}

/** Who asked for something, and why; as a text it was too long to be shown whole.
 * @param {{who?: string, dag_id?: string, reason?: string} | string} [by] */
const whoAndWhy = (by) => typeof by === "string" ? by : [by?.who || by?.dag_id, by?.reason].filter(Boolean).join(": ");

/** @param {Part} props */
export function Resets({ store, region, version, now }) {
  const oldest = (rows) => rows.findLast((row) => row.attempts.length)?.attempts[0].sequence ?? null;
  const past = usePast({ store, region, version }, "resets", oldest);
  const empty = "The region was never reset or started.";
  return h(Past, { ...past, label: "Resets", id: (row) => row.id, empty, columns: [
    { name: "Reset", cell: (row) => row.id.slice(row.region.length + 1) },
    { name: "State", cell: (row) => row.state + (row.failure ? `: ${row.failure}` : "") },
    text("Cause", "cause", { wide: true }),
    text("Target", "target"),
    { name: "Who and why", cell: (row) => whoAndWhy(row) || "–" },
    { name: "Asked", cell: (row) => h(Time, { at: row.asked_at, now }), wide: true },
    amount("Replayed", "replayed", { wide: true }),
    { name: "Undone", cell: (row) => h(Undone, { store, region, row }) },
  ] });
}

/** What has happened, who asked for it and why, and the details. @param {{row: any}} props */
function Event({ row: { kind, body: { requester, ...body } } }) {
  const { who, reason, ...run } = Object(requester);
  const shown = (value) => typeof value === "string" ? value : JSON.stringify(value);
  const all = { ...body, ...(typeof requester === "string" ? {} : run) };
  const details = Object.entries(all).map(([name, value]) => `${name}=${shown(value)}`).join(" ");
  return h(UI.Box, { overflowWrap: "anywhere", maxW: { base: "10.5rem", md: "none" } },
    h(UI.Text, { fontWeight: "medium" }, kind),
    h(UI.Text, null, whoAndWhy(requester)),
    h(Muted, { lineClamp: 3, title: details }, details));
}

/** @param {Part} props */
export function Events({ store, region, version, now }) {
  const oldest = (rows) => rows.at(-1).number > 1 ? rows.at(-1).number : null;
  const past = usePast({ store, region, version }, "events", oldest);
  return h(Past, { ...past, label: "Events", id: (row) => String(row.number), empty: "Nothing happened.", columns: [
    text("Number", "number", { wide: true }),
    { name: "When", cell: (row) => h(Time, { at: row.at, now }) },
    { name: "Event", cell: (row) => h(Event, { row }) },
    amount("Epoch", "epoch", { wide: true }),
  ] });
}
