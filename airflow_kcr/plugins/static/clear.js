// @ts-check
// The DAG runs that a reset has undone, and clearing them: by Airflow's own API, with the rights of who presses.

import { Runs } from "./checkpoints.js";
import { ask, regionApi, useJson } from "./data.js";
import { React, UI, h } from "./host.js";
import { Notice, Pending, number } from "./shown.js";

/** @param {{dag_id: string, run_id: string}} run @param {boolean} isDry */
export function clear(run, isDry) {
  const path = `api/v2/dags/${encodeURIComponent(run.dag_id)}/dagRuns/${encodeURIComponent(run.run_id)}/clear`;
  return ask(path, "POST", { dry_run: isDry, only_failed: false });
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

/** @param {{path: string}} props */
export function UndoneRuns({ path }) {
  const { data, problem } = useJson(path);
  const [tasks, setTasks] = React.useState(/** @type {number | null} */ (null));
  const [said, setSaid] = React.useState(/** @type {["error" | "info", string] | null} */ (null));
  const all = async (/** @type {boolean} */ isDry) => {
    const found = await Promise.allSettled(data.runs.map((/** @type {any} */ run) => clear(run, isDry)));
    const failed = found.flatMap((one, place) =>
      one.status === "rejected" ? [`${data.runs[place].dag_id} / ${data.runs[place].run_id}: ${one.reason.message}`] : []);
    const done = found.length - failed.length;
    const count = found.reduce((sum, one) => sum + (one.status === "fulfilled" ? one.value.total_entries ?? 0 : 0), 0);
    setTasks(isDry && done ? count : null);
    if (failed.length) setSaid(["error", `Not cleared: ${failed.join("; ")}`]);
    else setSaid(isDry ? null : ["info", `${done} run(s) cleared; Airflow runs them again.`]);
  };
  React.useEffect(() => {
    if (data?.runs.length) all(true);
  }, [data]);
  return h(UI.Box, { mt: 2 },
    h(Pending, { data, problem, what: "the DAG runs" }),
    data && (data.runs.length ? h(Runs, { runs: data.runs }) : h(UI.Text, null, "No DAG run had asked for them.")),
    tasks !== null && h(UI.Button, { size: "xs", mt: 2, colorPalette: "red", "data-verb": "clear", onClick: () => all(false) },
      `Clear ${number(tasks)} task instance(s) of ${data.runs.length} run(s)`),
    said && h(Notice, { kind: said[0] }, said[1]));
}
