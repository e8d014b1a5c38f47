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
import {
  Age, Condition, Facts, Notice, Pending, Rows, Time, Title, amount, condition, number, span, text,
} from "./shown.js";

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
  const link = (name, label) => {
    const look = name === tab ? { borderColor: "brand.solid", fontWeight: "bold" } : { borderColor: "transparent" };
    return h(Go, { key: name, to: `${pathname}?tab=${name}`, "aria-current": name === tab ? "page" : undefined },
      h(UI.Text, { as: "span", borderBottomWidth: 2, py: 1, ...look }, label));
  };
  const look = { wrap: "wrap", columnGap: 5, my: 3, borderBottomWidth: 1 };
  return h(UI.Flex, { as: "nav", "aria-label": "Parts of the region", ...look },
    ...TABS.map(([name, label]) => link(name, label)));
}

/** @param {{store: string, read: any, now: string}} props */
function Overview({ store, read, now }) {
  const dags = read.data?.dags ?? [];
  const running = { dag_ids: dags, state: ["running", "deferred"] };
  const found = useJson(dags.length ? "api/v2/dags/~/dagRuns/~/taskInstances/list" : null, read.version, running);
  if (!read.data) return null;
  const { region, summary } = read.data;
  const tasks = found.data?.task_instances ?? [];
  const unknown = "not known; members and `kcr export` take samples";
  const lag = summary.lag === null ? unknown : `${number(summary.lag)} offsets`;
  const members = region.groups.flatMap((group) => group.members);
  const alive = members.filter((one) => one.alive).length;
  const overdue = region.overdue_seconds !== null
    && h(UI.Text, { as: "span", color: "fg.error" }, `, overdue by ${span(region.overdue_seconds)}`);
  return h(React.Fragment, null,
    h(Facts, { of: [
      ["Newest checkpoint", region.last_complete === null ? "none yet"
        : h(React.Fragment, null, `${region.last_complete}, `, h(Time, { at: region.last_complete_at, now }))],
      ["Next boundary", region.next_boundary
        && h(React.Fragment, null, h(Time, { at: region.next_boundary, now }), overdue)],
      ["Restore point", region.restore_point && `checkpoint ${region.restore_point}`],
      ["State", [...new Set([region.state, region.desired_state])].join(", desired ")],
      ["Epoch", number(region.epoch)],
      ["Timeline", number(region.timeline)],
      ["Lag", summary.why ? `${lag}; ${summary.why}` : lag],
      ["Members", `${alive} of ${members.length} present`],
      ["DAGs", dags.length ? h(Dags, { ids: dags }) : ""],
    ] }),
    h(Title, null, "What it waits for"),
    h(Rows, {
      label: "What it waits for", rows: region.waits, id: (wait) => `${wait.rule} ${wait.what}`, empty: "Nothing.",
      columns: [
        text("Rule", "rule"),
        text("What", "what"),
        { name: "Since", wide: true, cell: (wait) => h(Time, { at: wait.since, now }) },
      ],
    }),
    h(Title, null, "Members"),
    h(Rows, {
      label: "Members", rows: members, id: (one) => one.member_id, empty: "The spec has no member.",
      columns: [
        text("Member", "member_id"),
        { name: "State", cell: (one) => (one.alive ? one.state : "absent: no lease") },
        { name: "Lease ends", wide: true, cell: (one) => h(Age, { at: one.lease_until, now }) },
        { name: "Task", cell: (one) => h(Task, { tasks, member: one.member_id }) },
        { name: "Batch in flight", cell: (one) => h(Time, { at: one.batch_since, now }), wide: true },
        amount("Partitions", "partition_count"),
        text("Process", "label", { wide: true, rare: "label" }),
        text("Version", "version", { wide: true, rare: "version" }),
        amount("Incarnation", "incarnation", { wide: true }),
      ],
    }),
    read.data.may_change && h(Question, { label: "Validate groups", show: (answer) => h(Checks, { answer }),
      path: `${regionApi(store, region.region)}/validation` }));
}

/** @param {{answer: any}} props */
function Checks({ answer: { checks } }) {
  const columns = ["group", "check", "verdict", "detail"].map((name) => text(name, name));
  const id = (one) => `${one.group} ${one.check}`;
  return h(Rows, { label: "Checks of the groups", rows: checks, empty: "There is no group.", id, columns });
}

/** The task that hosts a member: a mapped one is labelled with what it hosts, as `region_dags` makes it.
 * @param {{tasks: any[], member: string}} props */
function Task({ tasks, member }) {
  const [, group, index] = /^(.*)\[(\d+)\]$/.exec(member) ?? [];
  const task = tasks.find(({ rendered_map_index: hosts }) =>
    hosts?.startsWith(`${group} `) && hosts.slice(group.length + 1).split(",").includes(index));
  if (!task) return "–";
  const run = runPath({ dag_id: task.dag_id, run_id: task.dag_run_id });
  return h(Go, { to: `${run}/tasks/${encodeURIComponent(task.task_id)}/mapped/${task.map_index}` }, task.task_id);
}
