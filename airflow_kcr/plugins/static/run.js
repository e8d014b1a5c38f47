// @ts-check
// What Airflow shows beside its own: a tab of DAG runs and tasks with the run's checkpoint, and the regions in trouble on its home page.

import { regionApi, useJson, useRegion, useWhileVisible } from "./data.js";
import { Go, React, UI, h, regionPath, runPath } from "./host.js";
import { Reset } from "./reset.js";
import { Recompute } from "./runs.js";
import { Condition, Facts, Notice, PARTITION, Pending, Rows, Title, condition, number, partitionId } from "./shown.js";

/** Seconds between two looks at what has no sign. */
const PACE = 10;

/** The tab of runs, by Airflow's router. */
export const TAB = "plugin/kcr_run";

/** @param {{dagId: string, runId: string}} props */
export function RunTab({ dagId, runId }) {
  const { data, problem, reload } = useJson(`kcr/api/runs?${new URLSearchParams({ dag_id: dagId, run_id: runId })}`);
  useWhileVisible(reload, PACE);
  const regions = problem?.status === 403 ? [] : data?.regions;
  return h(UI.Box, { as: "section", p: 3, fontSize: "sm", minW: 0, "aria-label": "Checkpoint of the run" },
    regions ? !regions.length && h(UI.Text, { color: "fg.muted" }, `DAG ${dagId} works on no region that you may see.`)
      : h(Pending, { data, problem, what: "the run's checkpoint" }),
    ...(regions ?? []).map((/** @type {any} */ one) =>
      h(OfRegion, { key: `${runId} ${one.kcr_conn_id} ${one.region}`, store: one.kcr_conn_id, region: one.region, sequence: one.checkpoints.at(-1), dagId, runId })));
}

/** @param {{store: string, region: string, sequence?: number, dagId: string, runId: string}} props */
function OfRegion({ store, region, sequence, dagId, runId }) {
  const read = useRegion(store, region);
  const path = sequence === undefined ? null : `${regionApi(store, region)}/checkpoints/${sequence}/context`;
  const { data, problem } = useJson(path, read.version);
  const at = regionPath(store, region);
  return h(React.Fragment, null,
    h(UI.Flex, { gap: 3, align: "center", wrap: "wrap" }, h(Title, null, h(Go, { to: at }, region)),
      read.data && h(Condition, { of: condition(read.data.region) })),
    h(Pending, { ...read, what: `region ${region}` }),
    path ? h(Pending, { data, problem, what: `checkpoint ${sequence}` }) : h(UI.Text, null, "This run has no checkpoint yet."),
    data && h(Context, { at, of: data.context, total: data.total }),
    data && read.data && h(UI.Flex, { gap: 2, mt: 3, wrap: "wrap" },
      h(Reset, { store, read, label: "Go back to before this run …", first: before(data.context.previous), isOffered: data.context.undone_by === null }),
      data.context.undone_by === null && h(Recompute, { store, read, sequence: data.context.sequence, runs: [{ dag_id: dagId, run_id: runId }], label: "Recompute this run …" })));
}

/** @param {any} previous */
const before = (previous) => previous ? { target: "to-checkpoint", value: String(previous.sequence) } : { target: "to-initial", value: "" };

/** @param {{at: string, of: any, total: number}} props */
function Context({ at, of: found, total }) {
  const beside = (/** @type {any} */ one) => one && h(Go, {
    to: one.runs.length ? `${runPath(one.runs[0])}/${TAB}` : `${at}?tab=checkpoints&checkpoint=${one.sequence}` },
  `${one.sequence}${one.runs.length ? `, ${one.runs[0].run_id}` : ""}`);
  return h(React.Fragment, null,
    found.undone_by !== null && h(Notice, { kind: "warning" }, "A reset has undone this checkpoint: ",
      h(Go, { to: `${at}?tab=resets` }, found.undone_by_reset ?? `timeline ${found.undone_by}`), "."),
    h(Facts, { of: [
      ["Checkpoint", h(React.Fragment, null, h(Go, { to: `${at}?tab=checkpoints&checkpoint=${found.sequence}` }, String(found.sequence)), `, ${found.state}`)],
      ["Before it", beside(found.previous)],
      ["After it", beside(found.next)],
      ["Offsets", number(found.offsets)],
      ["Processed before", found.repeats.map((/** @type {any} */ one) =>
        `${number(one.offsets)} offsets, by reset ${one.reset_id} (${one.reason ?? one.cause})`).join("; ")],
    ] }),
    h(Title, null, total > found.ranges.length ? `The largest ${found.ranges.length} of ${number(total)} ranges` : "Ranges"),
    h(Rows, { label: "Ranges", rows: found.ranges, empty: "It has no records.", id: partitionId,
      columns: [
        PARTITION,
        { name: "From", right: true, cell: (row) => number(row.from_offset) },
        { name: "To", right: true, cell: (row) => number(row.to_offset) },
        { name: "Offsets", right: true, cell: (row) => number(row.to_offset - row.from_offset) },
      ] }));
}

/** The regions that a person has to see to; nothing, where there is none. */
export function Trouble() {
  const { data, reload } = useJson("kcr/api/regions");
  useWhileVisible(reload, PACE);
  const stores = data?.stores ?? [];
  const found = stores.flatMap((/** @type {any} */ store) => store.regions.filter((/** @type {any} */ row) => row.trouble)
    .map((/** @type {any} */ row) => h(Notice, { key: `${store.kcr_conn_id} ${row.region}`, kind: "error" },
      "Region ", h(Go, { to: regionPath(store.kcr_conn_id, row.region) }, row.region), ` is ${condition(row)[0]}: ${row.trouble}`)));
  const away = stores.filter((/** @type {any} */ store) => store.problem)
    .map((/** @type {any} */ store) => h(Notice, { key: store.kcr_conn_id, kind: "error" }, `Store ${store.kcr_conn_id}: ${store.problem}`));
  return found.length + away.length ? h(UI.Box, { as: "section", "aria-label": "Regions in trouble" }, ...away, ...found) : null;
}
