// @ts-check
// DAG runs that a reset has undone, or that recompute a checkpoint: by Airflow's own API, with the rights of who presses.

import { Frame } from "./actions.js";
import { ask, regionApi, useJson } from "./data.js";
import { Go, React, UI, h, runPath } from "./host.js";
import { Facts, Field, Notice, Pending, Tick, number } from "./shown.js";

/** @typedef {{dag_id: string, run_id: string}} Run */

/** @param {Run} run @param {boolean} isDry */
function clear(run, isDry) {
  const path = `api/v2/dags/${encodeURIComponent(run.dag_id)}/dagRuns/${encodeURIComponent(run.run_id)}/clear`;
  return ask(path, "POST", { dry_run: isDry, only_failed: false });
}

/** @param {{runs: Run[], name?: (run: Run) => string}} props */
export function Runs({ runs, name = (run) => run.run_id }) {
  return h(UI.Box, null, ...runs.map((run) => h(UI.Box, { key: runPath(run) }, h(Go, { to: runPath(run) }, name(run)))));
}

/** @param {{store: string, region: string, row: any}} props */
export function Undone({ store, region, row }) {
  const [isOpen, setIsOpen] = React.useState(false);
  if (!row.undone.length) return "–";
  const label = row.undone.length === 1 ? `checkpoint ${row.undone[0]}` : `${row.undone.length} checkpoints`;
  return h(UI.Box, null,
    h(UI.Button, { size: "xs", variant: "outline", "aria-expanded": isOpen, onClick: () => setIsOpen(!isOpen) }, label),
    isOpen && h(UndoneRuns, { path: `${regionApi(store, region)}/resets/${row.id.split("/").at(-1)}/runs` }));
}

/** The runs that the assets of some runs have triggered, and theirs in turn, as Airflow knows them. @param {Run[]} runs @returns {Promise<Run[]>} */
async function downstream(runs) {
  const found = new Map(runs.map((run) => [runPath(run), run]));
  for (const run of found.values()) { // those that are found meanwhile, too
    const of = new URLSearchParams({ source_dag_id: run.dag_id, source_run_id: run.run_id, limit: "100" });
    const { asset_events } = await ask(`api/v2/assets/events?${of}`);
    for (const { dag_id, run_id } of asset_events.flatMap((/** @type {any} */ event) => event.created_dagruns)) {
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
      one.status === "rejected" ? [`${runs[place].dag_id} / ${runs[place].run_id}: ${one.reason.message}`] : []);
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
    data && (runs.length ? h(Runs, { runs, name: (run) => `${run.dag_id} / ${run.run_id}` }) : h(UI.Text, null, "No DAG run had asked for them.")),
    runs.length > 0 && h(Tick, { name: "downstream", is: isWider, change: (/** @type {any} */ is) => setIsWider(is.downstream),
      label: "And the runs downstream, which their assets have triggered; runs that are cleared also trigger new ones" }),
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
  const [found, setFound] = React.useState(/** @type {any} */ ({ data: null, problem: null }));
  const [run, setRun] = React.useState(/** @type {any} */ (null));
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
    if (interval) {
      await clear(interval, false);
      await ask(`api/v2${runPath(interval).replace("/runs/", "/dagRuns/")}?update_mask=note`, "PATCH", { note: reason });
      return setRun(interval);
    }
    const conf = { checkpoint: sequence, reason };
    const made = await ask(`api/v2/dags/${encodeURIComponent(dag)}/dagRuns`, "POST", { conf, logical_date: null, note: reason });
    return setRun({ dag_id: dag, run_id: made.dag_run_id });
  };
  const { data } = found;
  return h(Frame, { label, title: `Recompute checkpoint ${sequence}`, verb: "recompute", press: "Recompute", read, open, submit,
    lacks: !data || !reason.trim() || run !== null, stays: true },
  h(UI.Text, null, "Its records are processed again by the pipeline as it is now, and the new output replaces the old one at once."),
  h(Pending, { ...found, what: "what it would do" }),
  data && h(Facts, { of: [
    ["Offsets processed again", number(data.offsets)], ["Output replaced", data.sinks.join("; ")],
    ["Replaced before", data.revision ? `${data.revision} time(s)` : ""],
    ["Carried out by", interval ? `run ${interval.run_id}: ${number(data.tasks)} task instance(s) are cleared` : `a run of ${dag}`],
  ] }),
  data?.upserts.length > 0 && h(Notice, { kind: "warning" },
    `Of mode upsert, so the DAG has to consent: ${data.upserts.join(", ")}. What a later checkpoint has overwritten does not come back.`),
  h(Field, { label: "Reason", name: "reason", value: reason, change: setReason }),
  run && h(Notice, { kind: "info" }, "Requested: ", h(Go, { to: runPath(run) }, run.run_id)));
}
