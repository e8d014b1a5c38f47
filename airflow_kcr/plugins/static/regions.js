// @ts-check
// All regions at a glance: what each is, how far it has come, and where to look.

import { useJson, useQuery, useWhileVisible } from "./data.js";
import { Go, React, UI, h, regionPath } from "./host.js";
import { Age, Condition, Filter, Notice, Pending, Rows, Sorter, condition, number } from "./shown.js";

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
  const [text, by] = [asked("match"), asked("sort", "condition")];
  useWhileVisible(reload, problem ? 2 : Math.max(PACE, data?.refresh_seconds ?? 0));
  const stores = data?.stores ?? [];
  const rows = stores.flatMap((/** @type {any} */ one) => one.regions.map((/** @type {any} */ row) => ({ ...row, store: one.kcr_conn_id })));
  const wanted = text.toLowerCase();
  const has = (/** @type {any} */ row) =>
    [row.region, row.store, condition(row)[0], ...row.dags].some((one) => one.toLowerCase().includes(wanted));
  const key = KEYS[by] ?? KEYS.condition;
  const compare = (/** @type {any} */ a, /** @type {any} */ b) => {
    const [one, other] = [key(a), key(b)];
    return one < other ? -1 : one > other ? 1 : a.region < b.region ? -1 : 1;
  };
  const head = (/** @type {string} */ name, /** @type {string} */ label) =>
    h(Sorter, { label, isChosen: by === name, sort: () => change({ sort: name }) });
  /** @type {import("./shown.js").Column[]} */
  const columns = [
    { name: "region", head: head("region", "Region"), cell: (row) => h(Go, { to: regionPath(row.store, row.region) }, row.region) },
    ...(stores.length > 1 ? [{ name: "store", head: "Store", cell: (/** @type {any} */ row) => row.store, wide: true }] : []),
    { name: "condition", head: head("condition", "Condition"), cell: (row) => h(React.Fragment, null, h(Condition, { of: condition(row) }),
      row.trouble && h(UI.Text, { color: "fg.error", maxW: "24rem", lineClamp: 3, title: row.trouble }, row.trouble)) },
    { name: "lag", head: head("lag", "Lag, offsets"), right: true,
      cell: (row) => h("span", { title: row.why || undefined }, h(Sparkline, { of: row.recent_lag }), number(row.lag)) },
    { name: "checkpoint", head: head("checkpoint", "Checkpoint"), cell: (row) => h(Age, { at: row.last_complete_at, now: data.now }) },
    { name: "members", head: head("members", "Members"), right: true, cell: (row) => `${row.alive} of ${row.members}` },
    { name: "epoch", head: head("epoch", "Epoch"), right: true, wide: true, cell: (row) => number(row.epoch) },
    { name: "dags", head: "DAGs", wide: true, cell: (row) => h(Dags, { ids: row.dags }) },
  ];
  const found = rows.filter(has).sort(compare);
  return h(React.Fragment, null,
    h(UI.Heading, { as: "h1", size: "xl", mb: 3 }, "Regions"),
    h(Pending, { data, problem, what: "the regions" }),
    data?.not_shown && h(Notice, { kind: "warning" }, data.not_shown),
    ...stores.filter((/** @type {any} */ one) => one.problem).map((/** @type {any} */ one) =>
      h(Notice, { key: one.kcr_conn_id }, `Store ${one.kcr_conn_id}: ${one.problem}`)),
    data && h(Filter, { label: "Filter regions", by: "name, condition or DAG", value: text, change: (match) => change({ match }) }),
    data && h(Rows, {
      label: "Regions", columns, rows: found.slice(0, limit), id: (row) => `${row.store} ${row.region}`,
      empty: rows.length ? `No region matches ${text}.`
        : "There is no region yet. `kcr region apply`, or KcrApplyRegionOperator in a DAG, makes one from its spec.",
    }),
    found.length > limit && h(UI.Flex, { mt: 3, gap: 3, align: "center" }, h("span", null, `${number(limit)} of ${number(found.length)}`),
      h(UI.Button, { size: "xs", variant: "outline", onClick: () => setLimit(limit + 10 * FIRST) }, "Show more")));
}

/** The lag of the last minutes, to the scale of its own most; the number beside it says how much it is now. @param {{of: (number | null)[]}} props */
function Sparkline({ of: lags }) {
  const known = lags.filter((lag) => lag !== null);
  if (known.length < 2) return null;
  const [most, step] = [Math.max(...known) || 1, 60 / (known.length - 1)];
  const points = known.map((lag, place) => `${(place * step).toFixed(1)},${(15 - (14 * lag) / most).toFixed(1)}`).join(" ");
  const label = `Lag from ${number(known[0])} to ${number(known.at(-1))} offsets, at most ${number(most)}`;
  return h("svg", { role: "img", "aria-label": label, width: 60, height: 16, style: { display: "inline-block", marginRight: 8, verticalAlign: "middle" } },
    h("title", null, label), h("polyline", { points, fill: "none", stroke: "var(--chakra-colors-brand-solid)", strokeWidth: 1.5 }));
}

/** @param {{ids: string[]}} props */
export function Dags({ ids }) {
  return h(UI.Flex, { wrap: "wrap", columnGap: 3 }, ...ids.map((id) => h(Go, { key: id, to: `/dags/${id}` }, id)));
}
