// @ts-check
// The checkpoints of a region: a timeline drawn to the scale of time, with a branch where a reset went back, and a table.

import { Act, Question, pinOf, unpinOf } from "./actions.js";
import { tick, ticks } from "./charts.js";
import { regionApi, useJson } from "./data.js";
import { Go, React, Router, UI, h, runPath } from "./host.js";
import { Recompute } from "./recompute.js";
import { Reset } from "./reset.js";
import { Facts, Pending, Rows, Time, Title, instant, number, span } from "./shown.js";

const PAGE = 50;
const [WIDTH, LANE, LEFT, RIGHT, TOP] = [900, 44, 90, 20, 16];

/** @param {{store: string, region: string, read: any, version: number, now: string}} props */
export function Checkpoints({ store, region, version, now, read }) {
  const [query, setQuery] = Router.useSearchParams();
  const chosen = query.get("checkpoint") ?? "";
  const [before, setBefore] = React.useState(chosen ? Number(chosen) + PAGE / 2 : null);
  const setChosen = (/** @type {string} */ id) => setQuery({ tab: "checkpoints", ...(id ? { checkpoint: id } : {}) }, { replace: true });
  const older = before === null ? "" : `&before=${before}`;
  const { data, problem } = useJson(`${regionApi(store, region)}/checkpoints?last=${PAGE}${older}`, version);
  const rows = data?.checkpoints ?? [];
  const detail = (/** @type {any} */ row) => h(Detail, { store, region, row, version, now, read });
  return h(
    React.Fragment,
    null,
    h(Pending, { data, problem, what: "the checkpoints" }),
    rows.length > 0 && h(Timeline, { rows, choose: setChosen, chosen }),
    data && h(Rows, {
      label: "Checkpoints", rows: [...rows].reverse(), id: (row) => String(row.sequence), chosen, below: detail,
      empty: "No checkpoint was made yet; `Checkpoint now` asks for one.",
      columns: [
        { name: "Number", cell: (row) => h(Open, { row, chosen, choose: setChosen }) },
        { name: "State", cell: (row) => row.state + (row.undone_by === null ? "" : `, undone by timeline ${row.undone_by}`) },
        { name: "Boundary", cell: (row) => (row.boundary ? h(Time, { at: row.boundary, now }) : "–"), wide: true },
        { name: "Complete", cell: (row) => h(Time, { at: row.finished_at, now }) },
        { name: "Took", right: true, wide: true, cell: (row) => took(row.drain_seconds) },
        { name: "DAG run", wide: true, cell: (row) => h(Runs, { runs: row.runs }) },
        { name: "Pinned as", cell: (row) => row.pinned_as ?? "", wide: true },
      ],
    }),
    h(Pages, { isFirst: before === null, next: rows.length === PAGE ? rows[0].sequence : null, go: setBefore }),
  );
}

/** @param {{isFirst: boolean, next: number | null, go: (before: any) => void}} props */
export function Pages({ isFirst, next, go }) {
  return h(UI.Flex, { gap: 2, mt: 3 },
    !isFirst && h(UI.Button, { size: "xs", variant: "outline", onClick: () => go(null) }, "Newest"),
    next !== null && h(UI.Button, { size: "xs", variant: "outline", onClick: () => go(next) }, "Older"));
}

/** @param {{runs: {dag_id: string, run_id: string}[]}} props */
export function Runs({ runs }) {
  return h(UI.Box, null, ...runs.map((run) =>
    h(UI.Box, { key: `${run.dag_id} ${run.run_id}` }, h(Go, { to: runPath(run) }, run.run_id))));
}

/** @param {{row: any, chosen: string, choose: (id: string) => void}} props */
function Open({ row, chosen, choose }) {
  const id = String(row.sequence);
  return h(UI.Button, {
    variant: "plain", size: "sm", px: 0, minW: 0, height: "auto", color: "fg.info", "aria-expanded": chosen === id,
    "aria-label": `Checkpoint ${id}`, onClick: () => choose(chosen === id ? "" : id),
  }, id);
}

/** @param {number | null} seconds */
const took = (seconds) => seconds === null ? "–" : span(seconds);

/** @param {{store: string, region: string, row: any, version: number, now: string, read: any}} props */
function Detail({ store, region, row, version, now, read }) {
  const path = `${regionApi(store, region)}/checkpoints/${row.sequence}`;
  const { data, problem } = useJson(path, version);
  const offsets = data?.checkpoint.offsets ?? [];
  return h(
    UI.Box,
    { py: 2, minW: 0 },
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
    read.data.may_change && row.finished_at && row.state !== "retired" && h(UI.Flex, { gap: 2, mt: 3, wrap: "wrap" },
      h(Act, { action: row.pinned_as ? unpinOf(row.sequence) : pinOf(row.sequence), store, read }),
      row.current && h(Reset, { store, read, label: "Reset to here …",
        first: { target: "to-checkpoint", value: String(row.sequence) } }),
      row.current && row.published_at && h(Recompute, { store, read, sequence: row.sequence, runs: row.runs })),
    read.data.may_change && row.finished_at && row.state !== "retired" && h(Question, {
      label: "Compare with Kafka", path: `${path}/comparison`, show: (answer) => h(Compared, { answer, sequence: row.sequence }) }),
    h(Title, null, data && data.total > offsets.length ? `The first ${offsets.length} of ${number(data.total)} offsets` : "Offsets"),
    h(Pending, { data, problem, what: "the offsets" }),
    data && h(Rows, {
      label: `Offsets of checkpoint ${row.sequence}`, rows: offsets, empty: "It has no offsets.",
      id: (one) => `${one.group} ${one.topic} ${one.partition}`,
      columns: [
        { name: "Partition", cell: (one) => `${one.group}: ${one.topic}-${one.partition}` },
        { name: "Offset", right: true, cell: (one) => number(one.offset) },
        { name: "In Kafka", right: true, cell: (one) => number(one.committed) },
      ],
    }),
  );
}

/** @param {{answer: any, sequence: number}} props */
function Compared({ answer, sequence }) {
  return h(UI.Box, { mt: 2, minW: 0 },
    h(UI.Text, null, `${number(answer.different)} of ${number(answer.total)} committed offsets differ from checkpoint ${sequence}.`),
    h(Rows, { label: "Beside Kafka", rows: answer.comparison, empty: "It has no offsets.", id: (one) => `${one.group} ${one.topic} ${one.partition}`,
      columns: [
        { name: "Partition", cell: (one) => `${one.group}: ${one.topic}-${one.partition}` },
        { name: "Finding", cell: (one) => one.finding },
        { name: "Offset", right: true, cell: (one) => number(one.offset) },
        { name: "Committed", right: true, cell: (one) => number(one.committed) },
        { name: "Log", right: true, wide: true, cell: (one) => `${number(one.log_start)} to ${number(one.log_end)}` },
      ] }));
}

// Each timeline of the region is a lane, the oldest on top. A new one branches off where a reset went back to.

/** @param {any} row */
const at = (row) => Date.parse(row.finished_at ?? row.opened_at);

/** @param {{rows: any[], choose: (id: string) => void, chosen: string}} props */
function Timeline({ rows, choose, chosen }) {
  const lanes = [...new Set(rows.map((row) => row.timeline))].sort((a, b) => a - b);
  const [first, last] = [Math.min(...rows.map(at)), Math.max(...rows.map(at))];
  const x = (/** @type {number} */ time) =>
    last === first ? (LEFT + WIDTH - RIGHT) / 2 : LEFT + ((time - first) / (last - first)) * (WIDTH - LEFT - RIGHT);
  const y = (/** @type {number} */ timeline) => TOP + LANE * (lanes.indexOf(timeline) + 0.5);
  const height = TOP + LANE * lanes.length + 28;
  const marks = rows.map((row) => h(Mark, { key: row.sequence, row, x: x(at(row)), y: y(row.timeline), choose, chosen }));
  return h(
    UI.Box,
    { overflowX: "auto", tabIndex: 0, role: "region", "aria-label": "Timeline of the checkpoints", mb: 3 },
    h("svg", {
      viewBox: `0 0 ${WIDTH} ${height}`, width: "100%", style: { minWidth: 560, maxWidth: 1400 }, fontSize: 11,
      role: "group", "aria-label": `${rows.length} checkpoints on ${lanes.length} timeline(s)`,
    },
    ...lanes.map((lane) => h(Lane, { key: lane, lane, own: rows.filter((row) => row.timeline === lane), x, y: y(lane) })),
    ...lanes.map((lane) => h(Branch, { key: `b${lane}`, rows, lane, x, y })),
    ...ticks(first, last).map((time) => h("text", {
      key: `t${time}`, x: x(time), y: height - 8, textAnchor: "middle", fill: "var(--chakra-colors-fg-muted)",
    }, tick(time, last - first))),
    ...marks),
  );
}

/** @param {{lane: number, own: any[], x: (time: number) => number, y: number}} props */
function Lane({ lane, own, x, y }) {
  const times = own.map(at);
  return h("g", { "aria-hidden": true },
    h("text", { x: 4, y: y + 4, fill: "var(--chakra-colors-fg-muted)" }, `timeline ${lane}`),
    h("line", {
      x1: x(Math.min(...times)), x2: x(Math.max(...times)), y1: y, y2: y,
      stroke: "var(--chakra-colors-border-emphasized)", strokeWidth: 2,
    }));
}

/** From the checkpoint that a timeline's reset went back to, to its own first one.
 * @param {{rows: any[], lane: number, x: (time: number) => number, y: (timeline: number) => number}} props */
function Branch({ rows, lane, x, y }) {
  const own = rows.find((row) => row.timeline === lane);
  const stays = (/** @type {any} */ row) => row.finished_at && (row.undone_by === null || row.undone_by > lane);
  const from = rows.filter((row) => row.timeline < lane && row.sequence < own.sequence && stays(row)).at(-1);
  if (!from) return null;
  const [x1, y1, x2, y2] = [x(at(from)), y(from.timeline), x(at(own)), y(lane)];
  return h("path", {
    d: `M${x1},${y1} C${x1},${y2} ${x1},${y2} ${x2},${y2}`, fill: "none", strokeWidth: 2, strokeDasharray: "4 3",
    stroke: "var(--chakra-colors-border-emphasized)", "aria-hidden": true,
  });
}

/** @param {{row: any, x: number, y: number, choose: (id: string) => void, chosen: string}} props */
function Mark({ row, x, y, choose, chosen }) {
  const id = String(row.sequence);
  const color = row.undone_by !== null ? "fg-muted" : row.state === "aborted" ? "red-solid" : "green-solid";
  const fill = row.undone_by === null && row.finished_at ? `var(--chakra-colors-${color})` : "var(--chakra-colors-bg)";
  const words = [
    `Checkpoint ${id}`, row.state, row.undone_by === null ? "" : "undone by a reset",
    row.pinned_as ? `pinned as ${row.pinned_as}` : "", instant(row.finished_at ?? row.opened_at),
  ].filter(Boolean).join(", ");
  const press = (/** @type {any} */ event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(id);
    }
  };
  return h("g", { role: "button", tabIndex: 0, "aria-label": words, style: { cursor: "pointer" }, onKeyDown: press,
    onClick: () => choose(id) },
  h("title", null, words),
  h("circle", { cx: x, cy: y, r: chosen === id ? 9 : 6, fill, stroke: `var(--chakra-colors-${color})`, strokeWidth: 2 }),
  row.pinned_as && h("text", { x, y: y - 11, textAnchor: "middle", fill: "var(--chakra-colors-fg)" }, row.pinned_as));
}
