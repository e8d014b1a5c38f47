// @ts-check
// The checkpoints of a region: timelines drawn to the scale of time, a branch where a reset went back, and a table.

import { Act, Question, pinOf } from "./actions.js";
import { SMALL_TEXT, tick, ticks } from "./charts.js";
import { PAGE, regionApi, useJson, usePast, useQuery } from "./data.js";
import { React, UI, h } from "./host.js";
import { Reset } from "./reset.js";
import { Recompute, Runs } from "./runs.js";
import {
  Facts, PartitionRows, Past, Pending, Plain, Time, Title, amount, instant, number, text, themeColor, took,
} from "./shown.js";

const [WIDTH, LANE, LEFT, RIGHT, TOP] = [900, 44, 90, 20, 16];

/** As many marks have the room to be labelled with their numbers. */
const LABELLED = 20;

/** @param {{store: string, region: string, read: any, version: number, now: string}} props */
export function Checkpoints({ store, region, version, now, read }) {
  const [asked, change] = useQuery();
  const chosen = asked("checkpoint");
  const choose = (id) => change({ checkpoint: id });
  const from = chosen ? Number(chosen) + PAGE / 2 : null;
  const past = usePast({ store, region, version }, "checkpoints", (rows) => rows.at(-1).sequence, from);
  const opener = ({ sequence }) => {
    const [id, is] = [String(sequence), chosen === String(sequence)];
    return h(Plain, { color: "fg.info", "aria-label": `Checkpoint ${id}`, "aria-expanded": is,
      onClick: () => choose(is ? "" : id) }, id);
  };
  return h(React.Fragment, null,
    past.rows.length > 0 && h(Timeline, { rows: [...past.rows].reverse(), choose, chosen }),
    h(Past, { ...past,
      label: "Checkpoints", id: (row) => String(row.sequence), chosen,
      below: (row) => h(Detail, { store, region, row, version, now, read }),
      empty: "No checkpoint was made yet; `Checkpoint now` asks for one.",
      columns: [
        { name: "Number", cell: opener },
        { name: "State",
          cell: (row) => row.undone_by === null ? row.state : `${row.state}, undone by timeline ${row.undone_by}` },
        { name: "Boundary", cell: (row) => h(Time, { at: row.boundary, now }), wide: true, rare: "boundary" },
        { name: "Complete", cell: (row) => h(Time, { at: row.finished_at, now }) },
        { name: "Took", right: true, wide: true, cell: (row) => took(row.drain_seconds) },
        { name: "DAG run", wide: true, cell: (row) => h(Runs, { runs: row.runs }) },
        text("Pinned as", "pinned_as", { wide: true, rare: "pinned_as" }),
      ],
    }));
}

/** @param {{store: string, region: string, row: any, version: number, now: string, read: any}} props */
function Detail({ store, region, row, version, now, read }) {
  const path = `${regionApi(store, region)}/checkpoints/${row.sequence}`;
  const { data, problem } = useJson(path, version);
  const { offsets = [], tables = [] } = data?.checkpoint ?? {};
  const mayChange = read.data?.may_change && row.finished_at && row.state !== "retired";
  const output = (one) => `${one.table} at ${one.version}: ${number(one.rows)} rows, ${number(one.files)} files`;
  const until = row.overtaken_at ? h(React.Fragment, null, "until ", h(Time, { at: row.overtaken_at, now })) : "yes";
  const since = ({ offset, position }) => position === null ? null : position - offset;
  return h(UI.Box, { py: 2, minW: 0 },
    h(Facts, { of: [
      ["Purpose", row.purpose],
      ["Timeline", `${row.timeline}${row.current ? ", current" : ""}`],
      ["Drained in", took(row.drain_seconds)],
      ["Published after", took(row.publish_seconds)],
      ["Published", row.published_at && h(Time, { at: row.published_at, now })],
      ["Revision", row.revision || ""],
      ["Outputs", tables.map(output).join("; ")],
      ["Kept because", row.kept_because ?? ""],
      ["Can be gone back to", row.unreachable === null ? "" : row.unreachable ? "no: the logs have moved on" : until],
      ["DAG runs", row.runs.length ? h(Runs, { runs: row.runs }) : ""],
    ] }),
    mayChange && h(UI.Flex, { gap: 2, mt: 3, wrap: "wrap" },
      h(Act, { action: pinOf(row), store, read }),
      row.current && h(Reset, { store, read, label: "Reset to here …",
        first: { target: "to-checkpoint", value: String(row.sequence) } }),
      row.current && row.published_at && h(Recompute, { store, read, sequence: row.sequence, runs: row.runs })),
    mayChange && h(Question, { label: "Compare with Kafka", path: `${path}/comparison`,
      show: (answer) => h(Compared, { answer, sequence: row.sequence }) }),
    h(Title, null,
      data && data.total > offsets.length ? `The first ${offsets.length} of ${number(data.total)} offsets` : "Offsets"),
    h(Pending, { data, problem, what: "the offsets" }),
    data && h(PartitionRows, {
      label: `Offsets of checkpoint ${row.sequence}`, rows: offsets, empty: "It has no offsets.",
      columns: [
        amount("Offset", "offset"),
        amount("Position now", "position", { wide: true }),
        { name: "Since then", right: true, cell: (one) => number(since(one)) },
        amount("In Kafka", "committed"),
      ],
    }));
}

/** @param {{answer: any, sequence: number}} props */
function Compared({ answer: { different, total, comparison }, sequence }) {
  return h(UI.Box, { mt: 2, minW: 0 },
    h(UI.Text, null,
      `${number(different)} of ${number(total)} committed offsets differ from checkpoint ${sequence}.`),
    h(PartitionRows, { label: "Beside Kafka", rows: comparison, empty: "It has no offsets.", columns: [
      text("Finding", "finding"),
      amount("Offset", "offset"),
      amount("Committed", "committed"),
      { name: "Log", right: true, wide: true, cell: (one) => `${number(one.log_start)} to ${number(one.log_end)}` },
    ] }));
}

// Each timeline of the region is a lane, the oldest on top. A new one branches off where a reset went back to.

const at = (row) => Date.parse(row.finished_at ?? row.opened_at);

/** @param {{rows: any[], choose: (id: string) => void, chosen: string}} props */
function Timeline({ rows, choose, chosen }) {
  const lanes = [...new Set(rows.map((row) => row.timeline))].sort((a, b) => a - b);
  const [first, last] = [Math.min(...rows.map(at)), Math.max(...rows.map(at))];
  const scale = (WIDTH - LEFT - RIGHT) / (last - first);
  const x = (time) => last === first ? (LEFT + WIDTH - RIGHT) / 2 : LEFT + (time - first) * scale;
  const y = (timeline) => TOP + LANE * (lanes.indexOf(timeline) + 0.5);
  const height = TOP + LANE * lanes.length + 28;
  const mark = (row) => h(Mark, { key: row.sequence, row, x: x(at(row)), y: y(row.timeline), choose,
    isChosen: chosen === String(row.sequence), isLabelled: rows.length <= LABELLED });
  const time = (one) =>
    h("text", { key: `t${one}`, x: x(one), y: height - 8, textAnchor: "middle" }, tick(one, last - first));
  const label = `${rows.length} checkpoints on ${lanes.length} timeline(s)`;
  const style = { minWidth: 800, maxWidth: 1400, fill: themeColor("fg-muted"), ...SMALL_TEXT };
  const scroller = { overflowX: "auto", tabIndex: 0, role: "region", "aria-label": "Timeline of the checkpoints" };
  return h(UI.Box, { mb: 3, ...scroller },
    h("svg", { viewBox: `0 0 ${WIDTH} ${height}`, width: "100%", style, role: "group", "aria-label": label },
      ...lanes.map((lane) => h(Lane, { key: lane, rows, lane, x, y })),
      ...ticks(first, last).map(time), ...rows.map(mark)));
}

/** A timeline, and the way to it from the checkpoint that its reset went back to.
 * @param {{rows: any[], lane: number, x: (time: number) => number, y: (timeline: number) => number}} props */
function Lane({ rows, lane, x, y }) {
  const own = rows.filter((row) => row.timeline === lane);
  const times = own.map(at);
  const stays = (row) => row.finished_at && (row.undone_by === null || row.undone_by > lane);
  const from = rows.filter((row) => row.timeline < lane && row.sequence < own[0].sequence && stays(row)).at(-1);
  const [x1, x2, height] = [x(Math.min(...times)), x(Math.max(...times)), y(lane)];
  const x0 = from && x(at(from));
  const way = from && `M${x0},${y(from.timeline)} C${x0},${height} ${x0},${height} ${x(at(own[0]))},${height}`;
  const line = { fill: "none", stroke: themeColor("border-emphasized"), strokeWidth: 2 };
  return h("g", { "aria-hidden": true },
    h("text", { x: 4, y: height + 4 }, `timeline ${lane}`),
    h("line", { x1, x2, y1: height, y2: height, ...line }),
    way && h("path", { d: way, strokeDasharray: "4 3", ...line }));
}

/** @param {{row: any, x: number, y: number, choose: (id: string) => void, isChosen: boolean,
 *   isLabelled: boolean}} props */
function Mark({ row, x, y, choose, isChosen, isLabelled }) {
  const { undone_by, finished_at, pinned_as, state } = row;
  const id = String(row.sequence);
  const stroke = themeColor(undone_by !== null ? "fg-muted" : state === "aborted" ? "red-solid" : "green-solid");
  const fill = undone_by === null && finished_at ? stroke : themeColor("bg");
  const words = [`Checkpoint ${id}`, state, undone_by === null ? "" : "undone by a reset",
    pinned_as ? `pinned as ${pinned_as}` : "", instant(finished_at ?? row.opened_at)].filter(Boolean).join(", ");
  const onKeyDown = (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(id);
    }
  };
  const label = [isLabelled ? id : "", pinned_as].filter(Boolean).join(" · ");
  const style = { cursor: "pointer" };
  return h("g", { role: "button", tabIndex: 0, "aria-label": words, style, onKeyDown, onClick: () => choose(id) },
    h("title", null, words),
    h("circle", { cx: x, cy: y, r: isChosen ? 9 : 6, fill, stroke, strokeWidth: 2 }),
    h("text", { x, y: y - 12, textAnchor: "middle" }, label));
}
