// @ts-check
// One region: what it does, its checkpoints, partitions, resets and events.

import { Actions } from "./actions.js";
import { Checkpoints } from "./checkpoints.js";
import { regionApi, useJson, useRegion } from "./data.js";
import { Go, HOME, React, Router, UI, h } from "./host.js";
import { Events, Partitions, Resets } from "./lists.js";
import { Dags } from "./regions.js";
import { Condition, Facts, Notice, Pending, Rows, Time, Title, condition, number, span } from "./shown.js";

/** @type {[string, string, (props: any) => any][]} */
const TABS = [
  ["overview", "Overview", Overview],
  ["checkpoints", "Checkpoints", Checkpoints],
  ["partitions", "Partitions", Partitions],
  ["resets", "Resets", Resets],
  ["events", "Events", Events],
];

/** Seconds between two looks at whether anything is new, where Airflow's own pace can't be read. */
const PACE = 3;

/** @param {{store: string, region: string}} props */
export function Region({ store, region }) {
  const settings = useJson("ui/config");
  const read = useRegion(store, region, settings.data?.auto_refresh_interval || PACE);
  const [query] = Router.useSearchParams();
  const tab = query.get("tab") ?? "overview";
  const [, , Part] = TABS.find(([name]) => name === tab) ?? TABS[0];
  const { data, problem } = read;
  return h(
    React.Fragment,
    null,
    h(Go, { to: HOME }, "All regions"),
    h(UI.Flex, { align: "center", gap: 3, wrap: "wrap", mt: 1 },
      h(UI.Heading, { as: "h1", size: "xl", overflowWrap: "anywhere" }, region),
      data && h(Condition, { of: condition(data.region) })),
    h(Pending, { data, problem, what: `region ${region}` }),
    data && h(State, { region: data.region }),
    data && h(Actions, { store, read }),
    h(Tabs, { tab }),
    data && h(Part, { store, region, read, version: read.version, now: data.now }),
  );
}

/** @param {{tab: string}} props */
function Tabs({ tab }) {
  const { pathname } = Router.useLocation();
  return h(
    UI.Flex,
    { as: "nav", "aria-label": "Parts of the region", wrap: "wrap", columnGap: 5, my: 3, borderBottomWidth: 1, pb: 1 },
    ...TABS.map(([name, label]) =>
      h(Go, { key: name, to: `${pathname}?tab=${name}`, "aria-current": name === tab ? "page" : undefined },
        h(UI.Text, { as: "span", fontWeight: name === tab ? "bold" : "normal" }, label))),
  );
}

/** What a person has to know first. @param {{region: any}} props */
function State({ region }) {
  const stalled = region.progress === "stalled";
  return h(
    React.Fragment,
    null,
    region.halted && h(Notice, { kind: "error" }, `Halted: ${region.halted}`),
    stalled && !region.halted && h(Notice, { kind: "error" },
      `Stalled: ${region.waits.map((/** @type {any} */ wait) => wait.what).join("; ")}`),
    region.note && h(Notice, { kind: "warning" }, region.note),
  );
}

/** The lag with its verdict, and its history where some is kept.
 * @param {{store: string, region: string, version: number, summary: any}} props */
function Lag({ store, region, version, summary }) {
  const { data } = useJson(`${regionApi(store, region)}/lag`, version);
  const samples = data?.samples ?? [];
  const groups = [...new Set(samples.map((/** @type {any} */ one) => one.group))];
  const said = summary.lag === null ? "not known; members and `kcr export` take samples" : `${number(summary.lag)} offsets`;
  return h(UI.Box, null, `${said}${summary.why ? `; ${summary.why}` : ""}`,
    ...groups.map((group) => h(Spark, { key: group, group, of: samples.filter((/** @type {any} */ one) => one.group === group) })));
}

/** A line of one group's lag to the scale of time, from 0 to its largest. @param {{group: string, of: any[]}} props */
function Spark({ group, of: samples }) {
  const known = samples.filter((one) => one.lag !== null);
  if (known.length < 2) return null;
  const times = known.map((one) => Date.parse(one.at));
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const most = Math.max(...known.map((one) => one.lag), 1);
  const points = known.map((one, place) =>
    `${(((times[place] - first) / Math.max(last - first, 1)) * 240).toFixed(1)},${(30 - (one.lag / most) * 28).toFixed(1)}`);
  const label = `Lag of group ${group} over ${span((last - first) / 1000)}, at most ${number(most)} offsets`;
  return h("svg", { viewBox: "0 0 240 32", width: 240, height: 32, role: "img", "aria-label": label },
    h("title", null, label),
    h("polyline", { points: points.join(" "), fill: "none", stroke: "var(--chakra-colors-brand-solid)", strokeWidth: 1.5 }));
}

/** @param {{store: string, read: any, now: string, version: number}} props */
function Overview({ store, read, now, version }) {
  const { region, dags } = read.data;
  const members = region.groups.flatMap((/** @type {any} */ group) => group.members);
  const alive = members.filter((/** @type {any} */ one) => one.alive).length;
  return h(
    React.Fragment,
    null,
    h(Facts, { of: [
      ["Newest checkpoint", region.last_complete === null ? "none yet"
        : h(React.Fragment, null, `${region.last_complete}, `, h(Time, { at: region.last_complete_at, now }))],
      ["Next boundary", region.next_boundary && h(React.Fragment, null, h(Time, { at: region.next_boundary, now }),
        region.overdue_seconds !== null && h(UI.Text, { as: "span", color: "fg.error" },
          `, overdue by ${span(region.overdue_seconds)}`))],
      ["Restore point", number(region.restore_point)],
      ["State", `${region.state}, desired ${region.desired_state}`],
      ["Epoch and timeline", `${number(region.epoch)} and ${number(region.timeline)}`],
      ["Lag", h(Lag, { store, region: region.region, version, summary: read.data.summary })],
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
    h(Title, null, "Members"),
    h(Rows, {
      label: "Members", rows: members, id: (/** @type {any} */ one) => one.member_id, empty: "The spec has no member.",
      columns: [
        { name: "Member", cell: (/** @type {any} */ one) => one.member_id },
        { name: "State", cell: (/** @type {any} */ one) => (one.alive ? one.state : "absent: no lease") },
        { name: "Batch in flight", cell: (/** @type {any} */ one) => h(Time, { at: one.batch_since, now }), wide: true },
        { name: "Partitions", right: true, cell: (/** @type {any} */ one) => number(one.partitions.length) },
        { name: "Process", cell: (/** @type {any} */ one) => one.label, wide: true },
        { name: "Version", cell: (/** @type {any} */ one) => one.version, wide: true },
        { name: "Incarnation", right: true, wide: true, cell: (/** @type {any} */ one) => number(one.incarnation) },
      ],
    }),
  );
}
