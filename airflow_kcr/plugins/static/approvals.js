// @ts-check
// The plans of resets that wait for an approval, answered in place, by Airflow's own API, as the user who presses.

import { ask, runApi, useJson, usePace, useWhileVisible } from "./data.js";
import { Go, React, UI, h, runPath } from "./host.js";
import { Facts, Notice, Rows } from "./shown.js";

/** Milliseconds for which a plan is only shown: until the process that asked has ended, Airflow loses an answer. */
const READING = 6000;

/** The cells of a table in markdown, as the approval has its plan. @param {string} line */
const cells = (line) => line.split(/(?<!\\)\|/).slice(1, -1).map((cell) =>
  cell.trim().replace(/\\([\\|])/g, "$1").replaceAll("&lt;", "<"));

/** A plan in markdown: tables of two columns are facts, others are tables, the rest is text.
 * @param {{of: string}} props */
function Plan({ of: text }) {
  return text.split("\n\n").map((part, place) => {
    if (!part.startsWith("|")) return h(UI.Text, { key: place, mt: 2 }, part);
    const [head, , ...rows] = part.split("\n").map(cells);
    if (head.length === 2) return h(Facts, { key: place, of: rows });
    const columns = head.map((name, column) => ({ name, cell: (row) => row[column] }));
    const id = (row) => row.slice(0, 3).join(" ");
    return h(Rows, { key: place, label: "Partitions that move most", rows, empty: "", columns, id });
  });
}

/** @param {{dags: string[], run?: string, mayAnswer: boolean}} props */
export function Approvals({ dags, run = "~", mayAnswer }) {
  return dags.map((dag) => h(OfDag, { key: dag, dag, run, mayAnswer }));
}

/** @param {{dag: string, run: string, mayAnswer: boolean}} props */
function OfDag({ dag, run, mayAnswer }) {
  const path = `${runApi({ dag_id: dag, run_id: run })}/hitlDetails?response_received=false`;
  const { data, reload } = useJson(path);
  useWhileVisible(reload, usePace());
  const isWaiting = (one) => ["awaiting_input", "deferred"].includes(one.task_instance.state);
  return (data?.hitl_details ?? []).filter(isWaiting).map((one) =>
    h(Question, { key: one.task_instance.id, one, mayAnswer, reload }));
}

/** @param {{one: any, mayAnswer: boolean, reload: () => void}} props */
function Question({ one, mayAnswer, reload }) {
  const [trouble, setTrouble] = React.useState("");
  const [isRead, setIsRead] = React.useState(false);
  React.useEffect(() => {
    const timer = setTimeout(() => setIsRead(true), READING);
    return () => clearTimeout(timer);
  }, []);
  const { dag_id, dag_run_id, task_id, map_index } = one.task_instance;
  const run = { dag_id, run_id: dag_run_id };
  const path = `${runApi(run)}/taskInstances/${encodeURIComponent(task_id)}/${map_index}/hitlDetails`;
  const params_input = Object.fromEntries(Object.entries(one.params).map(([name, field]) => [name, field.value]));
  const answer = (option) => {
    const answered = ask(path, "PATCH", { chosen_options: [option], params_input });
    return answered.then(reload, (error) => setTrouble(error.message));
  };
  const button = (option, place) => {
    const look = place ? { variant: "outline" } : { colorPalette: "brand" };
    return h(UI.Button, { key: option, size: "sm", "data-answer": option, disabled: !isRead, ...look,
      onClick: () => answer(option) }, option);
  };
  const frame = { borderWidth: 1, borderRadius: "md", p: 3, my: 3, minW: 0 };
  return h(UI.Box, { as: "section", "aria-label": one.subject, ...frame },
    h(UI.Heading, { as: "h2", size: "sm", overflowWrap: "anywhere" }, one.subject),
    h(Go, { to: `${runPath(run)}/required_actions` }, dag_run_id),
    one.params.plan ? h(Plan, { of: one.body ?? "" }) : h(UI.Text, null, "It asks for a choice, on the run's page."),
    one.params.plan && mayAnswer && h(UI.Flex, { gap: 2, mt: 3 }, ...one.options.map(button)),
    trouble && h(Notice, { kind: "error" }, trouble));
}
