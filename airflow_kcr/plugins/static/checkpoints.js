// @ts-check
// The checkpoints of a region: a timeline drawn to the scale of time, with a branch where a reset went back, and a table.

import { Act, Question, pinOf } from "./actions.js";
import { tick, ticks } from "./charts.js";
import { PAGE, regionApi, useJson, usePast, useQuery } from "./data.js";
import { Go, React, UI, h, runPath } from "./host.js";
import { Reset } from "./reset.js";
import { Recompute, Runs } from "./runs.js";
import { Facts, PARTITION, PLAIN, Past, Pending, Rows, Time, Title, instant, number, partitionId, span } from "./shown.js";

const [BORDER, MUTED] = ["var(--chakra-colors-border-emphasized)", "var(--chakra-colors-fg-muted)"];
const [WIDTH, LANE, LEFT, RIGHT, TOP] = [900, 44, 90, 20, 16];

/** @param {{store: string, region: string, read: any, version: number, now: string}} props */
export function Checkpoints({ store, region, version, now, read }) {
  const [asked, change] = useQuery();
  const chosen = asked("checkpoint");
  const choose = (/** @type {string} */ id) => change({ checkpoint: id });
  const past = usePast({ store, region, version }, "checkpoints", (rows) => rows.at(-1).sequence, chosen ? Number(chosen) + PAGE / 2 : null);
  return h(React.Fragment, null,
    past.rows.length > 0 && h(Timeline, { rows: [...past.rows].reverse(), choose, chosen }),
    h(Past, { ...past,
      label: "Checkpoints", id: (/** @type {any} */ row) => String(row.sequence), chosen,
      below: (/** @type {any} */ row) => h(Detail, { store, region, row, version, now, read }),
      empty: "No checkpoint was made yet; `Checkpoint now` asks for one.",
      columns: [
        { name: "Number", cell: ({ sequence: n }) => h(UI.Button, { ...PLAIN, size: "sm", color: "fg.info", "aria-label": `Checkpoint ${n}`,
          "aria-expanded": chosen === String(n), onClick: () => choose(chosen === String(n) ? "" : String(n)) }, n) },
        { name: "State", cell: (row) => row.state + (row.undone_by === null ? "" : `, undone by timeline ${row.undone_by}`) },
        { name: "Boundary", cell: (row) => (row.boundary ? h(Time, { at: row.boundary, now }) : "–"), wide: true },
        { name: "Complete", cell: (row) => h(Time, { at: row.finished_at, now }) },
        { name: "Took", right: true, wide: true, cell: (row) => took(row.drain_seconds) },
        { name: "DAG run", wide: true, cell: (row) => h(Runs, { runs: row.runs }) },
        { name: "Pinned as", cell: (row) => row.pinned_as ?? "", wide: true },
      ],
    }));
}

const took = (/** @type {number | null} */ seconds) => seconds === null ? "–" : span(seconds);

/** @param {{store: string, region: string, row: any, version: number, now: string, read: any}} props */
function Detail({ store, region, row, version, now, read }) {
  const path = `${regionApi(store, region)}/checkpoints/${row.sequence}`;
  const { data, problem } = useJson(path, version);
  const offsets = data?.checkpoint.offsets ?? [];
  const mayChange = read.data?.may_change && row.finished_at && row.state !== "retired";
  return h(UI.Box, { py: 2, minW: 0 },
    h(Facts, { of: [
      ["Purpose", row.purpose],
      ["Timeline", `${row.timeline}${row.current ? ", current" : ""}`],
      ["Drained in", took(row.drain_seconds)],
      ["Published after", took(row.publish_seconds)],
      ["Published", row.published_at && h(Time, { at: row.published_at, now })],
      ["Revision", row.revision || ""],
      ["Kept because", row.kept_because ?? ""],
      ["Can be gone back to", row.unreachable === null ? "" : row.unreachable ? "no: the logs have moved on"
        : row.overtaken_at ? h(React.Fragment, null, "until ", h(Time, { at: row.overtaken_at, now })) : "yes"],
      ["DAG runs", row.runs.length ? h(Runs, { runs: row.runs }) : ""],
    ] }),
    mayChange && h(UI.Flex, { gap: 2, mt: 3, wrap: "wrap" },
      h(Act, { action: pinOf(row), store, read }),
      row.current && h(Reset, { store, read, label: "Reset to here …",
        first: { target: "to-checkpoint", value: String(row.sequence) } }),
      row.current && row.published_at && h(Recompute, { store, read, sequence: row.sequence, runs: row.runs })),
    mayChange && h(Question, {
      label: "Compare with Kafka", path: `${path}/comparison`, show: (answer) => h(Compared, { answer, sequence: row.sequence }) }),
    h(Title, null, data && data.total > offsets.length ? `The first ${offsets.length} of ${number(data.total)} offsets` : "Offsets"),
    h(Pending, { data, problem, what: "the offsets" }),
    data && h(Rows, {
      label: `Offsets of checkpoint ${row.sequence}`, rows: offsets, empty: "It has no offsets.", id: partitionId,
      columns: [
        PARTITION,
        { name: "Offset", right: true, cell: (one) => number(one.offset) },
        { name: "In Kafka", right: true, cell: (one) => number(one.committed) },
      ],
    }));
}

/** @param {{answer: any, sequence: number}} props */
function Compared({ answer, sequence }) {
  return h(UI.Box, { mt: 2, minW: 0 },
    h(UI.Text, null, `${number(answer.different)} of ${number(answer.total)} committed offsets differ from checkpoint ${sequence}.`),
    h(Rows, { label: "Beside Kafka", rows: answer.comparison, empty: "It has no offsets.", id: partitionId,
      columns: [
        PARTITION,
        { name: "Finding", cell: (one) => one.finding },
        { name: "Offset", right: true, cell: (one) => number(one.offset) },
        { name: "Committed", right: true, cell: (one) => number(one.committed) },
        { name: "Log", right: true, wide: true, cell: (one) => `${number(one.log_start)} to ${number(one.log_end)}` },
      ] }));
}

// Each timeline of the region is a lane, the oldest on top. A new one branches off where a reset went back to.

const at = (/** @type {any} */ row) => Date.parse(row.finished_at ?? row.opened_at);

/** @param {{rows: any[], choose: (id: string) => void, chosen: string}} props */
function Timeline({ rows, choose, chosen }) {
  const lanes = [...new Set(rows.map((row) => row.timeline))].sort((a, b) => a - b);
  const [first, last] = [Math.min(...rows.map(at)), Math.max(...rows.map(at))];
  const x = (/** @type {number} */ time) =>
    last === first ? (LEFT + WIDTH - RIGHT) / 2 : LEFT + ((time - first) / (last - first)) * (WIDTH - LEFT - RIGHT);
  const y = (/** @type {number} */ timeline) => TOP + LANE * (lanes.indexOf(timeline) + 0.5);
  const height = TOP + LANE * lanes.length + 28;
  const marks = rows.map((row) => h(Mark, { key: row.sequence, row, x: x(at(row)), y: y(row.timeline), choose, chosen }));
  return h(UI.Box, { overflowX: "auto", tabIndex: 0, role: "region", "aria-label": "Timeline of the checkpoints", mb: 3 },
    h("svg", { viewBox: `0 0 ${WIDTH} ${height}`, width: "100%", style: { minWidth: 560, maxWidth: 1400 }, fontSize: 11,
      role: "group", "aria-label": `${rows.length} checkpoints on ${lanes.length} timeline(s)` },
    ...lanes.map((lane) => h(Lane, { key: lane, rows, lane, x, y })),
    ...ticks(first, last).map((time) => h("text", { key: `t${time}`, x: x(time), y: height - 8, textAnchor: "middle", fill: MUTED },
      tick(time, last - first))),
    ...marks));
}

/** A timeline, and the way to it from the checkpoint that its reset went back to.
 * @param {{rows: any[], lane: number, x: (time: number) => number, y: (timeline: number) => number}} props */
function Lane({ rows, lane, x, y }) {
  const own = rows.filter((row) => row.timeline === lane);
  const times = own.map(at);
  const stays = (/** @type {any} */ row) => row.finished_at && (row.undone_by === null || row.undone_by > lane);
  const from = rows.filter((row) => row.timeline < lane && row.sequence < own[0].sequence && stays(row)).at(-1);
  const [x1, x2] = [x(Math.min(...times)), x(Math.max(...times))];
  const way = from && `M${x(at(from))},${y(from.timeline)} C${x(at(from))},${y(lane)} ${x(at(from))},${y(lane)} ${x(at(own[0]))},${y(lane)}`;
  return h("g", { "aria-hidden": true },
    h("text", { x: 4, y: y(lane) + 4, fill: MUTED }, `timeline ${lane}`),
    h("line", { x1, x2, y1: y(lane), y2: y(lane), stroke: BORDER, strokeWidth: 2 }),
    way && h("path", { d: way, fill: "none", strokeWidth: 2, strokeDasharray: "4 3", stroke: BORDER }));
}

/** @param {{row: any, x: number, y: number, choose: (id: string) => void, chosen: string}} props */
function Mark({ row, x, y, choose, chosen }) {
  const id = String(row.sequence);
  const color = row.undone_by !== null ? "fg-muted" : row.state === "aborted" ? "red-solid" : "green-solid";
  const fill = row.undone_by === null && row.finished_at ? `var(--chakra-colors-${color})` : "var(--chakra-colors-bg)";
  const words = [`Checkpoint ${id}`, row.state, row.undone_by === null ? "" : "undone by a reset",
    row.pinned_as ? `pinned as ${row.pinned_as}` : "", instant(row.finished_at ?? row.opened_at)].filter(Boolean).join(", ");
  const press = (/** @type {any} */ event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(id);
    }
  };
  return h("g", { role: "button", tabIndex: 0, "aria-label": words, style: { cursor: "pointer" }, onKeyDown: press, onClick: () => choose(id) },
  h("title", null, words),
  h("circle", { cx: x, cy: y, r: chosen === id ? 9 : 6, fill, stroke: `var(--chakra-colors-${color})`, strokeWidth: 2 }),
  row.pinned_as && h("text", { x, y: y - 11, textAnchor: "middle", fill: "var(--chakra-colors-fg)" }, row.pinned_as));
}
