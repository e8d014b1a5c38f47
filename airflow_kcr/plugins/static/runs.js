// @ts-check
// DAG runs that a reset has undone, or that recompute a checkpoint: by Airflow's own API, with the user's own rights.

import { Frame } from "./actions.js";
import { ask, regionApi, runApi, trigger, useJson } from "./data.js";
import { Go, React, UI, h, runPath } from "./host.js";
import { Facts, Field, Notice, Pending, Small, Tick, number } from "./shown.js";

/** @typedef {import("./host.js").Run} Run */

/** @param {Run} run */
const runName = (run) => `${run.dag_id} / ${run.run_id}`;

/** @param {Run} run @param {boolean} isDry */
const clear = (run, isDry) => ask(`${runApi(run)}/clear`, "POST", { dry_run: isDry, only_failed: false });

/** @param {{runs: Run[], name?: (run: Run) => string}} props */
export function Runs({ runs, name = (run) => run.run_id }) {
  return h(UI.Box, { overflowWrap: "anywhere" }, ...runs.map((run) =>
    h(UI.Box, { key: runPath(run) }, h(Go, { to: runPath(run) }, name(run)))));
}

/** @param {{store: string, region: string, row: any}} props */
export function Undone({ store, region, row }) {
  const [isOpen, setIsOpen] = React.useState(false);
  if (!row.undone.length) return "–";
  const label = row.undone.length === 1 ? `checkpoint ${row.undone[0]}` : `${row.undone.length} checkpoints`;
  const look = { whiteSpace: "normal", height: "auto", minH: 8, px: { base: 1, md: 2.5 } };
  return h(UI.Box, null,
    h(Small, { ...look, "aria-expanded": isOpen, onClick: () => setIsOpen(!isOpen) }, label),
    isOpen && h(UndoneRuns, { path: `${regionApi(store, region)}/resets/${row.id.split("/").at(-1)}/runs` }));
}

/** The runs that the assets of some runs have triggered, and theirs in turn, as Airflow knows them.
 * @param {Run[]} runs @returns {Promise<Run[]>} */
async function downstream(runs) {
  const found = new Map(runs.map((run) => [runPath(run), run]));
  for (const run of found.values()) { // those that are found meanwhile, too
    const of = new URLSearchParams({ source_dag_id: run.dag_id, source_run_id: run.run_id, limit: "100" });
    const { asset_events } = await ask(`api/v2/assets/events?${of}`);
    for (const { dag_id, run_id } of asset_events.flatMap((event) => event.created_dagruns)) {
      found.set(runPath({ dag_id, run_id }), { dag_id, run_id });
    }
  }
  return [...found.values()].slice(runs.length);
}

/** @param {{path: string}} props */
export function UndoneRuns({ path }) {
  const { data, problem } = useJson(path);
  const [isWider, setIsWider] = React.useState(false);
  const [chosen, setChosen] = React.useState(/** @type {{runs: Run[], tasks: number} | null} */ (null));
  const [said, setSaid] = React.useState(/** @type {["error" | "info", string] | null} */ (null));
  /** Ask Airflow to clear runs, or what that would clear. @param {Run[]} runs @param {boolean} isDry */
  const all = async (runs, isDry) => {
    const found = await Promise.allSettled(runs.map((run) => clear(run, isDry)));
    const failed = found.flatMap((one, place) =>
      one.status === "rejected" ? [`${runName(runs[place])}: ${one.reason.message}`] : []);
    const done = found.length - failed.length;
    const tasks = found.reduce((sum, one) => sum + (one.status === "fulfilled" ? one.value.total_entries ?? 0 : 0), 0);
    if (failed.length) setSaid(["error", `Not cleared: ${failed.join("; ")}`]);
    else setSaid(isDry ? null : ["info", `${done} run(s) cleared; Airflow runs them again.`]);
    return isDry && done ? { runs, tasks } : null;
  };
  React.useEffect(() => {
    if (!data?.runs.length) return undefined;
    let isWanted = true;
    const look = async () => all(isWider ? [...data.runs, ...await downstream(data.runs)] : data.runs, true);
    setChosen(null); // what is shown is what is cleared
    look().then((found) => isWanted && setChosen(found), (error) => isWanted && setSaid(["error", error.message]));
    return () => {
      isWanted = false;
    };
  }, [data, isWider]);
  const runs = chosen?.runs ?? data?.runs ?? [];
  return h(UI.Box, { mt: 2 },
    h(Pending, { data, problem, what: "the DAG runs" }),
    data && (runs.length ? h(Runs, { runs, name: runName }) : h(UI.Text, null, "No DAG run had asked for them.")),
    runs.length > 0 && h(Tick, { name: "downstream", is: isWider, change: (is) => setIsWider(is.downstream),
      label: "And the runs downstream, which their assets have triggered; cleared runs also trigger new ones" }),
    chosen && h(UI.Button, { size: "xs", mt: 2, colorPalette: "red", "data-verb": "clear",
      onClick: async () => setChosen(await all(chosen.runs, false)) },
    `Clear ${number(chosen.tasks)} task instance(s) of ${chosen.runs.length} run(s)`),
    said && h(Notice, { kind: said[0] }, said[1]));
}

/** @param {{store: string, read: any, sequence: number, runs: Run[], label?: string}} props */
export function Recompute({ store, read, sequence, runs, label = "Recompute …" }) {
  const { region, may_change, recompute_dags: [dag], interval_dags } = read.data;
  const interval = runs.find((run) => interval_dags.includes(run.dag_id));
  const [reason, setReason] = React.useState("");
  const [found, setFound] = React.useState({ data: null, problem: null });
  const [run, setRun] = React.useState(/** @type {Run | null} */ (null));
  const epoch = React.useRef(0);
  if (!may_change || !(interval || dag)) return null;
  const path = `${regionApi(store, region.region)}/checkpoints/${sequence}/recomputation`;
  const plan = () => ask(path, "POST", { epoch: epoch.current, reason });
  const open = async () => {
    epoch.current = region.epoch;
    setRun(null);
    const tasks = interval ? clear(interval, true) : null;
    await Promise.all([plan(), tasks]).then(
      ([data, cleared]) => setFound({ data: { ...data.plan, tasks: cleared?.total_entries }, problem: null }),
      (problem) => setFound({ data: null, problem }));
  };
  const submit = async () => {
    await plan(); // as long as the region is what was shown
    if (!interval) return setRun(await trigger(dag, { checkpoint: sequence, reason }, reason));
    await clear(interval, false);
    await ask(`${runApi(interval)}?update_mask=note`, "PATCH", { note: reason });
    return setRun(interval);
  };
  const { data } = found;
  const what = "The pipeline as it is now processes its records again, and the new output replaces the old at once.";
  const ofRun = interval && `run ${interval.run_id}: ${number(data?.tasks)} task instance(s) are cleared`;
  const lacks = !data || !reason.trim() || run !== null;
  return h(Frame, { label, title: `Recompute checkpoint ${sequence}`, verb: "recompute", press: "Recompute", read, open,
    submit, lacks, stays: true },
  h(UI.Text, null, what),
  h(Pending, { ...found, what: "what it would do" }),
  data && h(Facts, { of: [
    ["Offsets processed again", number(data.offsets)], ["Output replaced", data.sinks.join("; ")],
    ["Replaced before", data.revision ? `${data.revision} time(s)` : ""],
    ["Carried out by", ofRun ?? `a run of ${dag}`],
  ] }),
  data?.upserts.length > 0 && h(Notice, { kind: "warning" }, `Of mode upsert, so the DAG has to consent: `
    + `${data.upserts.join(", ")}. What a later checkpoint has overwritten does not come back.`),
  h(Field, { label: "Reason", name: "reason", value: reason, change: setReason }),
  run && h(Notice, { kind: "info" }, "Requested: ", h(Go, { to: runPath(run) }, run.run_id)));
}
