// @ts-check
// Partitions, resets and events of a region, each a page at a time.

import { Pages } from "./checkpoints.js";
import { Undone } from "./clear.js";
import { regionApi, useJson } from "./data.js";
import { React, Router, UI, h } from "./host.js";
import { Pending, Rows, Time, number } from "./shown.js";

const PAGE = 50;

/** @typedef {{store: string, region: string, version: number, now: string, read: any}} Part */

/** @param {Part} props */
export function Partitions({ store, region, version }) {
  const [query, setQuery] = Router.useSearchParams();
  const read = (/** @type {string} */ name, /** @type {string} */ otherwise) => query.get(name) ?? otherwise;
  const start = Number(read("start", "0"));
  const [match, order, direction] = [read("match", ""), read("order", "lag"), read("direction", "down")];
  const asked = new URLSearchParams({ match, order, direction, start: String(start), count: String(PAGE) });
  const { data, problem } = useJson(`${regionApi(store, region)}/partitions?${asked}`, version);
  const change = (/** @type {Record<string, string>} */ values) => {
    const next = new URLSearchParams(query);
    for (const [name, value] of Object.entries(values)) next.set(name, value);
    setQuery(next, { replace: true });
  };
  const head = (/** @type {string} */ name, /** @type {string} */ label) => {
    const arrow = order === name ? (direction === "up" ? " ↑" : " ↓") : "";
    const turned = order === name && direction === "up" ? "down" : "up";
    return h(UI.Button, { variant: "plain", size: "xs", px: 0, minW: 0, height: "auto", title: `Sort by ${label.toLowerCase()}`,
      onClick: () => change({ order: name, direction: turned, start: "0" }) }, label + arrow);
  };
  const more = data ? data.total - start - data.partitions.length : 0;
  return h(
    React.Fragment,
    null,
    h(UI.Text, { color: "fg.muted", mb: 2 },
      "Ends of logs are those that members saw at the newest checkpoint. Offsets are at most as many records."),
    h(UI.Input, { "aria-label": "Filter partitions", placeholder: "Filter by topic, partition or member", size: "sm",
      maxW: "24rem", mb: 3, defaultValue: match,
      onChange: (/** @type {any} */ event) => change({ match: event.target.value, start: "0" }) }),
    h(Pending, { data, problem, what: "the partitions" }),
    data && h(Rows, {
      label: "Partitions", rows: data.partitions, id: (row) => `${row.group} ${row.topic} ${row.partition}`,
      empty: match ? `No partition matches ${match}.` : "No member has claimed a partition yet.",
      columns: [
        { name: "partition", head: head("partition", "Partition"),
          cell: (row) => `${row.group}: ${row.topic}-${row.partition}` },
        { name: "lag", head: head("lag", "Lag, offsets"), right: true, cell: (row) => number(row.lag) },
        { name: "Position", right: true, cell: (row) => number(row.position) },
        { name: "Checkpointed", right: true, wide: true, cell: (row) => number(row.checkpointed) },
        { name: "End of log", right: true, wide: true, cell: (row) => number(row.log_end) },
        { name: "member", head: head("member", "Member"), cell: (row) => row.member_id ?? "no member" },
      ],
    }),
    data && h(UI.Flex, { gap: 2, mt: 3, align: "center" },
      start > 0 && h(UI.Button, { size: "xs", variant: "outline",
        onClick: () => change({ start: String(Math.max(start - PAGE, 0)) }) }, "Before"),
      more > 0 && h(UI.Button, { size: "xs", variant: "outline", onClick: () => change({ start: String(start + PAGE) }) }, "After"),
      h(UI.Text, { color: "fg.muted" },
        data.total ? `${number(start + 1)} to ${number(start + data.partitions.length)} of ${number(data.total)}` : "")),
  );
}

/** @param {Part} props */
export function Resets({ store, region, version, now }) {
  const [before, setBefore] = React.useState(null);
  const older = before === null ? "" : `&before=${before}`;
  const { data, problem } = useJson(`${regionApi(store, region)}/resets?last=${PAGE}${older}`, version);
  const rows = [...(data?.resets ?? [])].reverse();
  const oldest = rows.findLast((row) => row.attempts.length)?.attempts[0].sequence ?? null;
  return h(
    React.Fragment,
    null,
    h(Pending, { data, problem, what: "the resets" }),
    data && h(Rows, {
      label: "Resets", rows, id: (row) => row.id, empty: "The region was never reset or started.",
      columns: [
        { name: "Reset", cell: (row) => row.id.slice(row.region.length + 1) },
        { name: "State", cell: (row) => row.state + (row.failure ? `: ${row.failure}` : "") },
        { name: "Cause", cell: (row) => row.cause, wide: true },
        { name: "Target", cell: (row) => row.target },
        { name: "Who and why", cell: (row) => [row.who, row.reason].filter(Boolean).join(": ") || "–" },
        { name: "Asked", cell: (row) => h(Time, { at: row.asked_at, now }), wide: true },
        { name: "Replayed", right: true, wide: true, cell: (row) => number(row.replayed) },
        { name: "Undone", cell: (row) => h(Undone, { store, region, row }) },
      ],
    }),
    h(Pages, { isFirst: before === null, next: rows.length >= PAGE ? oldest : null, go: setBefore }),
  );
}

/** @param {any} body */
function briefly(body) {
  return Object.entries(body).map(([name, value]) =>
    `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ");
}

/** @param {Part} props */
export function Events({ store, region, version, now }) {
  const [before, setBefore] = React.useState(null);
  const older = before === null ? "" : `&before=${before}`;
  const { data, problem } = useJson(`${regionApi(store, region)}/events?last=${PAGE}${older}`, version);
  const rows = [...(data?.events ?? [])].reverse();
  return h(
    React.Fragment,
    null,
    h(Pending, { data, problem, what: "the events" }),
    data && h(Rows, {
      label: "Events", rows, id: (row) => String(row.number), empty: "Nothing happened.",
      columns: [
        { name: "Number", cell: (row) => row.number },
        { name: "When", cell: (row) => h(Time, { at: row.at, now }) },
        { name: "What", cell: (row) => row.kind },
        { name: "Details", cell: (row) => h(UI.Text, { overflowWrap: "anywhere", lineClamp: 3, title: briefly(row.body) }, briefly(row.body)) },
        { name: "Epoch", right: true, wide: true, cell: (row) => number(row.epoch) },
      ],
    }),
    h(Pages, { isFirst: before === null, next: rows.length === PAGE && rows.at(-1).number > 1 ? rows.at(-1).number : null, go: setBefore }),
  );
}
