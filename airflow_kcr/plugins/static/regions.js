// @ts-check
// All regions at a glance: what each is, how far it has come, and where to look.

import { useJson, useQuery, useWhileVisible } from "./data.js";
import { Go, React, UI, h, regionPath } from "./host.js";
import {
  Age, Condition, Filter, Muted, Notice, Pending, Rows, Small, Sorter, amount, condition, number, themeColor,
} from "./shown.js";

/** Seconds between two readings of the whole list. */
const PACE = 10;

/** How many regions are drawn before the user asks for more. */
const FIRST = 100;

/** @type {Record<string, (row: any) => string | number>} */
const KEYS = {
  region: (row) => row.region,
  condition: (row) => ["red", "yellow", "blue", "gray", "green"].indexOf(condition(row)[1]),
  lag: (row) => -(row.lag ?? -1),
  checkpoint: (row) => row.last_complete_at ?? "",
  members: (row) => row.alive - row.members,
  epoch: (row) => -row.epoch,
};

export function Regions() {
  const { data, problem, reload } = useJson("kcr/api/regions");
  const [limit, setLimit] = React.useState(FIRST);
  const [asked, change] = useQuery();
  const [match, by] = [asked("match"), asked("sort", "condition")];
  useWhileVisible(reload, Math.max(PACE, data?.refresh_seconds ?? 0));
  const stores = data?.stores ?? [];
  const rows = stores.flatMap((one) => one.regions.map((row) => ({ ...row, store: one.kcr_conn_id })));
  const wanted = match.toLowerCase();
  const has = (row) =>
    [row.region, row.store, condition(row)[0], ...row.dags].some((one) => one.toLowerCase().includes(wanted));
  const key = KEYS[by] ?? KEYS.condition;
  const compare = (a, b) => {
    const [one, other] = [key(a), key(b)];
    return one < other ? -1 : one > other ? 1 : a.region < b.region ? -1 : 1;
  };
  const head = (name, label) => h(Sorter, { label, isChosen: by === name, sort: () => change({ sort: name }) });
  /** @type {import("./shown.js").Column[]} */
  const columns = [
    { name: "region", head: head("region", "Region"),
      cell: (row) => h(Go, { to: regionPath(row.store, row.region) }, row.region) },
    ...(stores.length > 1 ? [{ name: "Store", cell: (row) => row.store, wide: true }] : []),
    { name: "condition", head: head("condition", "Condition"), cell: (row) => h(Verdict, { row }) },
    { name: "lag", head: head("lag", "Lag, offsets"), right: true, cell: (row) => h(Lag, { row }) },
    { name: "checkpoint", head: head("checkpoint", "Checkpoint"),
      cell: (row) => h(Age, { at: row.last_complete_at, now: data.now }) },
    { name: "members", head: head("members", "Members"), right: true, cell: (row) => `${row.alive} of ${row.members}` },
    amount("epoch", "epoch", { head: head("epoch", "Epoch"), wide: true }),
    { name: "DAGs", wide: true, cell: (row) => h(Dags, { ids: row.dags }) },
  ];
  const found = rows.filter(has).sort(compare);
  return h(React.Fragment, null,
    h(UI.Heading, { as: "h1", size: "xl", mb: 3 }, "Regions"),
    h(Pending, { data, problem, what: "the regions" }),
    data?.not_shown && h(Notice, { kind: "warning" }, data.not_shown),
    h(StoresAway, { stores }),
    data && h(Filter, { label: "Filter regions", by: "name, condition or DAG", value: match,
      change: (typed) => change({ match: typed }) }),
    data && h(Rows, {
      label: "Regions", columns, rows: found.slice(0, limit), id: (row) => `${row.store} ${row.region}`,
      empty: rows.length ? `No region matches ${match}.`
        : "There is no region yet. `kcr region apply`, or KcrApplyRegionOperator in a DAG, makes one from its spec.",
    }),
    found.length > limit && h(UI.Flex, { mt: 3, gap: 3, align: "center" },
      h(Muted, null, `${number(limit)} of ${number(found.length)}`),
      h(Small, { onClick: () => setLimit(limit + 10 * FIRST) }, "Show more")));
}

/** The stores that can't be read, and why. @param {{stores: any[]}} props */
export function StoresAway({ stores }) {
  return stores.filter((one) => one.problem).map((one) =>
    h(Notice, { key: one.kcr_conn_id }, `Store ${one.kcr_conn_id}: ${one.problem}`));
}

/** What a region is, with what is wrong in a sentence. @param {{row: any}} props */
function Verdict({ row }) {
  const why = row.trouble || (row.verdict === "unknown" ? "" : row.why);
  const color = row.trouble ? "fg.error" : "fg.muted";
  return h(React.Fragment, null, h(Condition, { of: condition(row) }),
    why && h(UI.Text, { color, mt: 1, maxW: "24rem", lineClamp: 3, overflowWrap: "anywhere", title: why }, why));
}

/** How far it is behind, after the way that went in the last minutes, to the scale of its own most.
 * @param {{row: any}} props */
function Lag({ row }) {
  const known = row.recent_lag.filter((lag) => lag !== null);
  if (known.length < 2) return number(row.lag);
  const [most, step] = [Math.max(...known) || 1, 60 / (known.length - 1)];
  const points = known.map((lag, place) => `${(place * step).toFixed(1)},${(15 - (14 * lag) / most).toFixed(1)}`);
  const label = `Lag from ${number(known[0])} to ${number(known.at(-1))} offsets, at most ${number(most)}`;
  return h(UI.Flex, { gap: 2, justify: "end", align: "center" },
    h(UI.Box, { hideBelow: "md" }, h("svg", { role: "img", "aria-label": label, width: 60, height: 16 },
      h("title", null, label),
      h("polyline", { points: points.join(" "), fill: "none", stroke: themeColor("brand-solid"), strokeWidth: 1.5 }))),
    number(row.lag));
}

/** @param {{ids: string[]}} props */
export function Dags({ ids }) {
  return h(UI.Flex, { wrap: "wrap", columnGap: 3 }, ...ids.map((id) => h(Go, { key: id, to: `/dags/${id}` }, id)));
}
