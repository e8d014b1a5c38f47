// @ts-check
// All regions at a glance: what each is, how far it has come, and where to look.

import { useJson, useWhileVisible } from "./data.js";
import { Go, React, Router, UI, h, regionPath } from "./host.js";
import { Age, Condition, Notice, Pending, Rows, condition, number } from "./shown.js";

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
  const [query, setQuery] = Router.useSearchParams();
  const [text, by] = [query.get("match") ?? "", query.get("sort") ?? "condition"];
  useWhileVisible(reload, problem ? 2 : Math.max(PACE, data?.refresh_seconds ?? 0));
  const change = (/** @type {string} */ name, /** @type {string} */ value) => {
    const next = new URLSearchParams(query);
    if (value) next.set(name, value);
    else next.delete(name);
    setQuery(next, { replace: true });
  };
  const stores = data?.stores ?? [];
  const every = stores.flatMap((/** @type {any} */ one) =>
    one.regions.map((/** @type {any} */ row) => ({ ...row, store: one.kcr_conn_id })),
  );
  return h(
    React.Fragment,
    null,
    h(UI.Heading, { as: "h1", size: "xl", mb: 3 }, "Regions"),
    h(Pending, { data, problem, what: "the regions" }),
    data?.not_shown && h(Notice, { kind: "warning" }, data.not_shown),
    ...stores.filter((/** @type {any} */ one) => one.problem).map((/** @type {any} */ one) =>
      h(Notice, { key: one.kcr_conn_id }, `Store ${one.kcr_conn_id}: ${one.problem}`)),
    data && h(UI.Input, {
      "aria-label": "Filter regions", placeholder: "Filter by name, condition or DAG", maxW: "24rem", mb: 3, size: "sm",
      defaultValue: text, onChange: (/** @type {any} */ event) => change("match", event.target.value),
    }),
    data && h(List, { rows: every, text, by, sort: (/** @type {string} */ name) => change("sort", name), now: data.now,
      hasSeveral: stores.length > 1 }),
  );
}

/** @param {{rows: any[], text: string, by: string, sort: (name: string) => void, now: string, hasSeveral: boolean}} props */
function List({ rows, text, by, sort, now, hasSeveral }) {
  const [limit, setLimit] = React.useState(FIRST);
  const wanted = text.toLowerCase();
  const has = (/** @type {any} */ row) =>
    [row.region, row.store, condition(row)[0], ...row.dags].some((one) => one.toLowerCase().includes(wanted));
  const key = KEYS[by] ?? KEYS.condition;
  const compare = (/** @type {any} */ a, /** @type {any} */ b) => {
    const [one, other] = [key(a), key(b)];
    return one < other ? -1 : one > other ? 1 : a.region < b.region ? -1 : 1;
  };
  const head = (/** @type {string} */ name, /** @type {string} */ label) =>
    h(UI.Button, {
      variant: "plain", size: "xs", px: 0, minW: 0, height: "auto", onClick: () => sort(name), "aria-pressed": by === name,
      textDecoration: by === name ? "underline" : undefined, title: `Sort by ${label.toLowerCase()}`,
    }, label);
  /** @type {import("./shown.js").Column[]} */
  const columns = [
    { name: "region", head: head("region", "Region"),
      cell: (row) => h(Go, { to: regionPath(row.store, row.region) }, row.region) },
    ...(hasSeveral ? [{ name: "store", head: "Store", cell: (/** @type {any} */ row) => row.store, wide: true }] : []),
    { name: "condition", head: head("condition", "Condition"), cell: (row) => h(React.Fragment, null, h(Condition, { of: condition(row) }),
      row.trouble && h(UI.Text, { color: "fg.error", maxW: "24rem", lineClamp: 3, title: row.trouble }, row.trouble)) },
    { name: "lag", head: head("lag", "Lag, offsets"), right: true,
      cell: (row) => h("span", { title: row.why || undefined }, number(row.lag)) },
    { name: "checkpoint", head: head("checkpoint", "Checkpoint"),
      cell: (row) => h(Age, { at: row.last_complete_at, now }) },
    { name: "members", head: head("members", "Members"), right: true,
      cell: (row) => `${row.alive} of ${row.members}` },
    { name: "epoch", head: head("epoch", "Epoch"), right: true, wide: true, cell: (row) => number(row.epoch) },
    { name: "dags", head: "DAGs", wide: true, cell: (row) => h(Dags, { ids: row.dags }) },
  ];
  const found = rows.filter(has).sort(compare);
  return h(React.Fragment, null, h(Rows, {
    label: "Regions", columns, rows: found.slice(0, limit), id: (row) => `${row.store} ${row.region}`,
    empty: rows.length
      ? `No region matches ${text}.`
      : "There is no region yet. `kcr region apply`, or KcrApplyRegionOperator in a DAG, makes one from its spec.",
  }), found.length > limit && h(UI.Flex, { mt: 3, gap: 3, align: "center" },
    h("span", null, `${number(limit)} of ${number(found.length)}`),
    h(UI.Button, { size: "xs", variant: "outline", onClick: () => setLimit(limit + 10 * FIRST) }, "Show more")));
}

/** @param {{ids: string[]}} props */
export function Dags({ ids }) {
  return h(UI.Flex, { wrap: "wrap", columnGap: 3 }, ...ids.map((id) => h(Go, { key: id, to: `/dags/${id}` }, id)));
}
