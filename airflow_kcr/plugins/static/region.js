// @ts-check
// One region: what it does, its checkpoints, partitions, resets and events.

import { Actions, Question } from "./actions.js";
import { Approvals } from "./approvals.js";
import { Charts } from "./charts.js";
import { Checkpoints } from "./checkpoints.js";
import { regionApi, useJson, useRegion } from "./data.js";
import { Go, HOME, React, Router, UI, h, runPath } from "./host.js";
import { Events, Partitions, Resets } from "./lists.js";
import { Dags } from "./regions.js";
import { Age, Condition, Facts, Notice, Pending, Rows, Time, Title, condition, number, span } from "./shown.js";

/** @type {[string, string, (props: any) => any][]} */
const TABS = [
  ["overview", "Overview", Overview],
  ["checkpoints", "Checkpoints", Checkpoints],
  ["partitions", "Partitions", Partitions],
  ["resets", "Resets", Resets],
  ["events", "Events", Events],
  ["charts", "Charts", Charts],
];

/** @param {{store: string, region: string}} props */
export function Region({ store, region }) {
  const read = useRegion(store, region);
  const [query] = Router.useSearchParams();
  const tab = query.get("tab") ?? "overview";
  const [, , Part] = TABS.find(([name]) => name === tab) ?? TABS[0];
  const { data, problem } = read;
  return h(React.Fragment, null,
    h(Go, { to: HOME }, "All regions"),
    h(UI.Flex, { align: "center", gap: 3, wrap: "wrap", mt: 1 },
      h(UI.Heading, { as: "h1", size: "xl", overflowWrap: "anywhere" }, region),
      data && h(Condition, { of: condition(data.region) })),
    h(Pending, { data, problem, what: `region ${region}` }),
    data?.region.halted && h(Notice, { kind: "error" }, `Halted: ${data.region.halted}`),
    data?.summary.trouble && !data.region.halted && h(Notice, { kind: "error" }, `Stalled: ${data.summary.trouble}`),
    data?.region.note && h(Notice, { kind: "warning" }, data.region.note),
    data && h(Approvals, { dags: data.reset_dags, mayAnswer: data.may_change }),
    data && h(Actions, { store, read }),
    h(Tabs, { tab }),
    h(Part, { store, region, read, version: read.version, now: data?.now }));
}

/** @param {{tab: string}} props */
function Tabs({ tab }) {
  const { pathname } = Router.useLocation();
  return h(UI.Flex, { as: "nav", "aria-label": "Parts of the region", wrap: "wrap", columnGap: 5, my: 3, borderBottomWidth: 1, pb: 1 },
    ...TABS.map(([name, label]) =>
      h(Go, { key: name, to: `${pathname}?tab=${name}`, "aria-current": name === tab ? "page" : undefined },
        h(UI.Text, { as: "span", fontWeight: name === tab ? "bold" : "normal" }, label))));
}

/** @param {{store: string, read: any, now: string}} props */
function Overview({ store, read, now }) {
  const dags = read.data?.dags ?? [];
  const running = { dag_ids: dags, state: ["running", "deferred"] };
  const found = useJson(dags.length ? "api/v2/dags/~/dagRuns/~/taskInstances/list" : null, read.version, running);
  if (!read.data) return null;
  const { region, summary } = read.data;
  const tasks = found.data?.task_instances ?? [];
  const lag = summary.lag === null ? "not known; members and `kcr export` take samples" : `${number(summary.lag)} offsets`;
  const members = region.groups.flatMap((/** @type {any} */ group) => group.members);
  const alive = members.filter((/** @type {any} */ one) => one.alive).length;
  return h(React.Fragment, null,
    h(Facts, { of: [
      ["Newest checkpoint", region.last_complete === null ? "none yet"
        : h(React.Fragment, null, `${region.last_complete}, `, h(Time, { at: region.last_complete_at, now }))],
      ["Next boundary", region.next_boundary && h(React.Fragment, null, h(Time, { at: region.next_boundary, now }),
        region.overdue_seconds !== null && h(UI.Text, { as: "span", color: "fg.error" }, `, overdue by ${span(region.overdue_seconds)}`))],
      ["Restore point", number(region.restore_point)],
      ["State", `${region.state}, desired ${region.desired_state}`],
      ["Epoch and timeline", `${number(region.epoch)} and ${number(region.timeline)}`],
      ["Lag", summary.why ? `${lag}; ${summary.why}` : lag],
      ["Members", `${alive} of ${members.length} present`],
      ["DAGs", dags.length ? h(Dags, { ids: dags }) : ""],
    ] }),
    h(Title, null, "What it waits for"),
    h(Rows, {
      label: "What it waits for", rows: region.waits, id: (/** @type {any} */ wait) => `${wait.rule} ${wait.what}`,
      empty: "Nothing: it works, or has nothing to do.",
      columns: [
        { name: "Rule", cell: (/** @type {any} */ wait) => wait.rule },
        { name: "What", cell: (/** @type {any} */ wait) => wait.what },
        { name: "Since", wide: true, cell: (/** @type {any} */ wait) => h(Time, { at: wait.since, now }) },
      ],
    }),
    read.data.may_change && h(Question, { label: "Validate groups", path: `${regionApi(store, region.region)}/validation`, show: (answer) =>
      h(Rows, { label: "Checks of the groups", rows: answer.checks, empty: "There is no group.", id: (/** @type {any} */ one) => `${one.group} ${one.check}`,
        columns: ["group", "check", "verdict", "detail"].map((name) => ({ name, cell: (/** @type {any} */ one) => one[name] })) }) }),
    h(Title, null, "Members"),
    h(Rows, {
      label: "Members", rows: members, id: (/** @type {any} */ one) => one.member_id, empty: "The spec has no member.",
      columns: [
        { name: "Member", cell: (/** @type {any} */ one) => one.member_id },
        { name: "State", cell: (/** @type {any} */ one) => (one.alive ? one.state : "absent: no lease") },
        { name: "Lease ends", wide: true, cell: (/** @type {any} */ one) => h(Age, { at: one.lease_until, now }) },
        { name: "Task", cell: (/** @type {any} */ one) => h(Task, { tasks, member: one.member_id }) },
        { name: "Batch in flight", cell: (/** @type {any} */ one) => h(Time, { at: one.batch_since, now }), wide: true },
        { name: "Partitions", right: true, cell: (/** @type {any} */ one) => number(one.partition_count) },
        { name: "Process", cell: (/** @type {any} */ one) => one.label, wide: true },
        { name: "Version", cell: (/** @type {any} */ one) => one.version, wide: true },
        { name: "Incarnation", right: true, wide: true, cell: (/** @type {any} */ one) => number(one.incarnation) },
      ],
    }));
}

/** The task that hosts a member: a mapped one is labelled with what it hosts, as `region_dags` makes it. @param {{tasks: any[], member: string}} props */
function Task({ tasks, member }) {
  const [, group, index] = /^(.*)\[(\d+)\]$/.exec(member) ?? [];
  const task = tasks.find(({ rendered_map_index: hosts }) =>
    hosts?.startsWith(`${group} `) && hosts.slice(group.length + 1).split(",").includes(index));
  if (!task) return "–";
  const mapped = `${runPath({ dag_id: task.dag_id, run_id: task.dag_run_id })}/tasks/${encodeURIComponent(task.task_id)}/mapped/${task.map_index}`;
  return h(Go, { to: mapped }, task.task_id);
}
