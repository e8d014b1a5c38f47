// @ts-check
// What Airflow shows beside its own: a tab of runs and tasks with the run's checkpoint, and regions in trouble at home.

import { regionApi, useJson, useRegion, useWhileVisible } from "./data.js";
import { Go, React, UI, h, regionPath, runPath } from "./host.js";
import { StoresAway } from "./regions.js";
import { Reset } from "./reset.js";
import { Recompute } from "./runs.js";
import { Condition, Facts, Muted, Notice, PartitionRows, Pending, Title, amount, condition, number } from "./shown.js";

/** Seconds between two looks at what has no sign. */
const PACE = 10;

/** The tab of runs, by Airflow's router. */
export const TAB = "plugin/kcr_run";

/** @param {{dagId: string, runId: string}} props */
export function RunTab({ dagId, runId }) {
  const { data, problem, reload } = useJson(`kcr/api/runs?${new URLSearchParams({ dag_id: dagId, run_id: runId })}`);
  useWhileVisible(reload, PACE);
  const isRefused = problem?.status === 403;
  const regions = isRefused ? [] : data?.regions;
  const run = { dag_id: dagId, run_id: runId };
  return h(UI.Box, { as: "section", p: 3, fontSize: "sm", minW: 0, "aria-label": "Checkpoint of the run" },
    !isRefused && h(Pending, { data, problem, what: "the run's checkpoint" }),
    regions?.length === 0 && h(Muted, null, `DAG ${dagId} works on no region that you may see.`),
    ...(regions ?? []).map((one) => h(OfRegion, { key: `${runId} ${one.kcr_conn_id} ${one.region}`, run,
      store: one.kcr_conn_id, region: one.region, sequence: one.checkpoints.at(-1) })));
}

/** @param {{store: string, region: string, sequence?: number, run: import("./host.js").Run}} props */
function OfRegion({ store, region, sequence, run }) {
  const read = useRegion(store, region);
  const path = sequence === undefined ? null : `${regionApi(store, region)}/checkpoints/${sequence}/context`;
  const { data, problem } = useJson(path, read.version);
  const at = regionPath(store, region);
  const isCurrent = data?.context.undone_by === null;
  return h(React.Fragment, null,
    h(UI.Flex, { gap: 3, align: "center", wrap: "wrap" },
      h(UI.Heading, { as: "h2", size: "md", my: 2, overflowWrap: "anywhere" }, h(Go, { to: at }, region)),
      read.data && h(Condition, { of: condition(read.data.region) })),
    h(Pending, { ...read, what: `region ${region}` }),
    path ? h(Pending, { data, problem, what: `checkpoint ${sequence}` })
      : h(UI.Text, null, "This run has no checkpoint yet."),
    data && h(Context, { at, of: data.context, total: data.total }, read.data
      && h(UI.Flex, { gap: 2, mt: 3, wrap: "wrap" },
        h(Reset, { store, read, label: "Go back to before this run …", isOffered: isCurrent,
          first: before(data.context.previous) }),
        isCurrent && h(Recompute, { store, read, sequence: data.context.sequence, runs: [run],
          label: "Recompute this run …" }))));
}

/** @param {any} previous */
function before(previous) {
  return previous ? { target: "to-checkpoint", value: String(previous.sequence) } : { target: "to-initial", value: "" };
}

/** @param {{at: string, of: any, total: number, children?: any}} props */
function Context({ at, of: found, total, children }) {
  const ofCheckpoint = (sequence) => `${at}?tab=checkpoints&checkpoint=${sequence}`;
  const beside = (one) => {
    const [run] = one?.runs ?? [];
    return one && h(Go, { to: run ? `${runPath(run)}/${TAB}` : ofCheckpoint(one.sequence) },
      `${one.sequence}${run ? `, ${run.run_id}` : ""}`);
  };
  const repeat = (one) => `${number(one.offsets)} offsets, by reset ${one.reset_id} (${one.reason ?? one.cause})`;
  return h(React.Fragment, null,
    found.undone_by !== null && h(Notice, { kind: "warning" }, "A reset has undone this checkpoint: ",
      h(Go, { to: `${at}?tab=resets` }, found.undone_by_reset ?? `timeline ${found.undone_by}`), "."),
    h(Facts, { of: [
      ["Checkpoint", h(React.Fragment, null,
        h(Go, { to: ofCheckpoint(found.sequence) }, String(found.sequence)), `, ${found.state}`)],
      ["Before it", beside(found.previous)],
      ["After it", beside(found.next)],
      ["Offsets", number(found.offsets)],
      ["Processed before", found.repeats.map(repeat).join("; ")],
    ] }),
    children,
    h(Title, null,
      total > found.ranges.length ? `The largest ${found.ranges.length} of ${number(total)} ranges` : "Ranges"),
    h(PartitionRows, { label: "Ranges", rows: found.ranges, empty: "It has no records.", columns: [
      amount("From", "from_offset"),
      amount("To", "to_offset"),
      { name: "Offsets", right: true, cell: (row) => number(row.to_offset - row.from_offset) },
    ] }));
}

/** The regions that a person has to see to; nothing, where there is none. */
export function Trouble() {
  const { data, reload } = useJson("kcr/api/regions");
  useWhileVisible(reload, PACE);
  const stores = data?.stores ?? [];
  const inTrouble = (store) => store.regions.filter((row) => row.trouble).map((row) =>
    h(Notice, { key: `${store.kcr_conn_id} ${row.region}`, kind: "error" }, "Region ",
      h(Go, { to: regionPath(store.kcr_conn_id, row.region) }, row.region),
      ` is ${condition(row)[0]}: ${row.trouble}`));
  if (!stores.some((store) => store.problem || store.regions.some((row) => row.trouble))) return null;
  return h(UI.Box, { as: "section", "aria-label": "Regions in trouble" },
    h(StoresAway, { stores }), ...stores.flatMap(inTrouble));
}
