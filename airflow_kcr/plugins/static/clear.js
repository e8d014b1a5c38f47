// @ts-check
// The DAG runs that a reset has undone, and clearing them: by Airflow's own API, with the rights of who presses.

import { Runs } from "./checkpoints.js";
import { ask, regionApi, useJson } from "./data.js";
import { React, UI, h } from "./host.js";
import { Notice, Pending, number } from "./shown.js";

/** @param {{dag_id: string, run_id: string}} run @param {boolean} isDry */
function clear(run, isDry) {
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
function UndoneRuns({ path }) {
  const { data, problem } = useJson(path);
  const [tasks, setTasks] = React.useState(/** @type {number | null} */ (null));
  const [said, setSaid] = React.useState(/** @type {["error" | "info", string] | null} */ (null));
  const all = async (/** @type {boolean} */ isDry) => {
    let count = 0;
    const failed = [];
    for (const run of data.runs) {
      try {
        count += (await clear(run, isDry)).total_entries ?? 0;
      } catch (error) {
        failed.push(`${run.dag_id} / ${run.run_id}: ${/** @type {any} */ (error).message}`);
      }
    }
    const done = data.runs.length - failed.length;
    setTasks(isDry && done ? count : null);
    if (failed.length) setSaid(["error", `Not cleared: ${failed.join("; ")}`]);
    else setSaid(isDry ? null : ["info", `${done} run(s) cleared; Airflow runs them again.`]);
  };
  return h(UI.Box, { mt: 2 },
    h(Pending, { data, problem, what: "the DAG runs" }),
    data && (data.runs.length ? h(Runs, { runs: data.runs }) : h(UI.Text, null, "No DAG run had asked for them.")),
    data?.runs.length > 0 && (tasks === null
      ? h(UI.Button, { size: "xs", mt: 2, onClick: () => all(true) }, "Clear them …")
      : h(UI.Button, { size: "xs", mt: 2, colorPalette: "red", onClick: () => all(false) },
        `Clear ${number(tasks)} task instance(s) of ${data.runs.length} run(s)`)),
    said && h(Notice, { kind: said[0] }, said[1]));
}
