// @ts-check
// A checkpoint recomputed, by a run of the region's DAGs: one that takes the checkpoint, or the run of the interval once more.

import { Frame } from "./actions.js";
import { clear } from "./clear.js";
import { ask, regionApi } from "./data.js";
import { Go, React, UI, h, runPath } from "./host.js";
import { Facts, Notice, Pending, number } from "./shown.js";

/** @param {{store: string, read: any, sequence: number, runs: {dag_id: string, run_id: string}[], label?: string}} props */
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
  h(UI.Field.Root, { mt: 3, required: true }, h(UI.Field.Label, null, "Reason"),
    h(UI.Input, { name: "reason", value: reason, onChange: (/** @type {any} */ event) => setReason(event.target.value) })),
  run && h(Notice, { kind: "info" }, "Requested: ", h(Go, { to: runPath(run) }, run.run_id)));
}
