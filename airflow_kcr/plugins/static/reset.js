// @ts-check
// A reset, from the choice of its target to the run of the region's reset DAG, in which it is approved and applied.

import { Approvals } from "./approvals.js";
import { regionApi, runApi, trigger, useJson, usePace, useWhileVisible } from "./data.js";
import { Go, React, UI, h, runPath } from "./host.js";
import { PartitionPage } from "./lists.js";
import { UndoneRuns } from "./runs.js";
import {
  Facts, Field, Muted, Notice, PartitionRows, Pending, Small, Tick, Title, amount, instant, number, partitionId,
  partitionName, zone,
} from "./shown.js";

/** Milliseconds without another change, after which a plan is computed. */
const PAUSE = 400;

/** How the offsets of single partitions are given, by the target that takes them. */
const BY_PARTITION = {
  option: "by-partition", target: "from-file", label: "An offset for each partition", metavar: "OFFSETS",
  wanted: "the offset of one partition or more", form_field: "file", schema: {},
};

const EMPTY = {
  target: "to-checkpoint", value: "", offsets: {}, groups: [], topics: "", forward: false, allow_partial: false,
  forced: false, consent: false, reason: "",
};

/** The offset of the user's zone at a moment, in milliseconds. @param {number} moment */
function zoneOffset(moment) {
  return Date.parse(`${instant(new Date(moment).toISOString()).replace(" ", "T")}Z`) - Math.floor(moment / 1000) * 1000;
}

/** A time as a date picker has it, in the user's zone, as an instant. @param {string} local */
export function instantOf(local) {
  const naive = Date.parse(`${local}Z`);
  const near = naive - zoneOffset(naive);
  return new Date(naive - zoneOffset(near)).toISOString();
}

/** A line of a reset CSV for each partition that has an offset.
 * @param {Record<string, {row: any, offset: string}>} offsets by partition */
function linesOf(offsets) {
  const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
  const line = ({ row, offset }) => [quoted(row.group), row.topic, row.partition, offset].join(",");
  return Object.values(offsets).map(line).join("\n");
}

/** What a plan is asked for; null: something is still to be filled in. @param {any} given @param {any} kind */
function asked(given, kind) {
  const typed = kind === BY_PARTITION ? linesOf(given.offsets) : given.value.trim();
  if (kind?.metavar && !typed) return null;
  const value = !kind?.metavar ? null : given.target === "to-datetime" ? instantOf(typed) : typed;
  const topics = given.topics.split(/\s+/).filter(Boolean);
  const { groups, forward, allow_partial, forced } = given;
  return { target: kind?.target ?? given.target, value, groups, topics, forward, allow_partial, forced };
}

/** A button that opens the drawer of a reset. Where it is no longer offered, an open drawer stays: it may be what has
 * undone that.
 * @param {{store: string, read: any, first?: {target: string, value: string}, label?: string,
 *   isOffered?: boolean}} props */
export function Reset({ store, read, first, label = "Reset …", isOffered = true }) {
  const [isOpen, setIsOpen] = React.useState(false);
  const { may_change, reset_dags } = read.data;
  if (!may_change || !reset_dags.length) return null;
  // With a target, only the reason is missing.
  const focus = first ? { initialFocusEl: () => document.querySelector("form input[name=reason]") } : {};
  const onOpenChange = (change) => setIsOpen(change.open);
  const look = { size: "sm", variant: "outline", colorPalette: "brand" };
  return h(UI.Drawer.Root, { open: isOpen, onOpenChange, size: { base: "full", md: "lg" }, ...focus },
    isOffered && h(UI.Drawer.Trigger, { asChild: true }, h(UI.Button, look, label)),
    h(UI.Portal, null, h(UI.Drawer.Backdrop), h(UI.Drawer.Positioner, null, h(UI.Drawer.Content, null,
      isOpen && h(Form, { store, read, first, close: () => setIsOpen(false) })))));
}

/** The plan of what is chosen, a moment after the last change. @param {string} path @param {any} request */
function usePlan(path, request) {
  const text = request && JSON.stringify(request);
  const [settled, settle] = React.useState(null);
  React.useEffect(() => {
    const timer = setTimeout(() => settle(text), PAUSE);
    return () => clearTimeout(timer);
  }, [text]);
  const { data, problem, isNewest } = useJson(settled && path, settled, settled && JSON.parse(settled));
  const isOfThis = settled === text && isNewest;
  return { plan: isOfThis && !problem ? data : null, problem: isOfThis ? problem : null };
}

/** @param {{store: string, read: any, first?: {target: string, value: string}, close: () => void}} props */
function Form({ store, read, first, close }) {
  const { region, reset_dags: [dag] } = read.data;
  const targets = [...read.data.targets, BY_PARTITION];
  const [given, setGiven] = React.useState({ ...EMPTY, ...first });
  const [run, setRun] = React.useState(null);
  const [trouble, setTrouble] = React.useState("");
  const [isBusy, setIsBusy] = React.useState(false);
  const kind = targets.find((one) => one.option === given.target);
  const request = asked(given, kind);
  const { plan, problem } = usePlan(`${regionApi(store, region.region)}/plan`, request);
  const change = (values) => setGiven((old) => ({ ...old, ...values }));
  const upserts = plan?.plan.upserts ?? [];
  const isReady = plan && !plan.plan.totals.unreachable && given.reason.trim() && (!upserts.length || given.consent);
  const submit = async (event) => {
    event.preventDefault();
    if (!isReady || !request) return;
    setIsBusy(true);
    setTrouble("");
    const { forced, groups, topics, value, ...rest } = request;
    const field = kind.metavar && { [kind.form_field]: kind.schema.type === "integer" ? Number(value) : value };
    const conf = {
      ...rest, ...field, groups: groups.length ? groups : null, topics: topics.length ? topics : null, force: forced,
      consent_upsert: given.consent, reason: given.reason.trim(),
    };
    await trigger(dag, conf).then(setRun, (error) => setTrouble(error.message));
    setIsBusy(false);
  };
  return h("form", { onSubmit: submit, style: { display: "contents" } },
    h(UI.Drawer.Header, null, h(UI.Drawer.Title, { overflowWrap: "anywhere" }, `Reset ${region.region}`)),
    h(UI.Drawer.Body, { fontSize: "sm" }, run ? h(Requested, { store, read, run }) : h(React.Fragment, null,
      h(Choice, { label: "Target", name: "target", value: given.target,
        options: targets.map((one) => [one.option, one.label]), change: (target) => change({ target, value: "" }) }),
      h(Value, { store, read, kind, given, change }),
      h(Scope, { groups: region.groups.map((one) => one.group_id), given, change }),
      h(Field, { label: "Reason", name: "reason", value: given.reason, placeholder: "Others find it in the history",
        change: (reason) => change({ reason }) }),
      upserts.length > 0 && h(Tick, { name: "consent", is: given.consent, change,
        label: "I accept that tables of mode upsert keep no history and can't be restored" }),
      h(Title, null, "What it would do"),
      request ? h(Pending, { data: plan, problem, what: "the logs for a plan" })
        : h(Muted, null, `Give ${kind?.wanted ?? "a value"}.`),
      plan && h(Plan, { plan }),
      trouble && h(Notice, { kind: "error" }, trouble))),
    h(UI.Drawer.Footer, null,
      h(UI.Button, { variant: "outline", type: "button", onClick: close }, run ? "Close" : "Cancel"),
      !run && h(UI.Button, { type: "submit", colorPalette: "brand", disabled: !isReady || isBusy }, `Trigger ${dag}`)));
}

/** @param {{label: string, name: string, value: string, options: string[][], change: (value: string) => void}} props */
function Choice({ label, name, value, options, change }) {
  return h(UI.Field.Root, { mt: 3 }, h(UI.Field.Label, null, label),
    h(UI.NativeSelect.Root, null,
      h(UI.NativeSelect.Field, { name, value, onChange: (event) => change(event.target.value) },
        ...options.map(([one, words]) => h("option", { key: one, value: one }, words))),
      h(UI.NativeSelect.Indicator)));
}

/** The field that fits the target. @param {{store: string, read: any, kind: any, given: any,
 *   change: (values: object) => void}} props */
function Value({ store, read, kind, given, change }) {
  const region = read.data.region.region;
  const write = (value) => change({ value });
  const field = { name: "value", value: given.value, change: write, help: kind?.help };
  if (!kind?.metavar) return null;
  switch (kind.option) {
    case "to-checkpoint": return h(Checkpoint, { store, region, value: given.value, change: write });
    case "by-partition": return h(Offsets, { store, region, version: read.version, offsets: given.offsets, change });
    case "from-file": return h(File, { text: given.value, change: write });
    case "to-datetime": return h(Field, { ...field, label: `Time in ${zone()}`, type: "datetime-local", step: 1 });
    default: return h(Field, { ...field, label: kind.form_field, placeholder: kind.wanted });
  }
}

/** @param {{store: string, region: string, value: string, change: (value: string) => void}} props */
function Checkpoint({ store, region, value, change }) {
  const { data, problem } = useJson(`${regionApi(store, region)}/checkpoints?last=50`);
  const usable = [...(data?.checkpoints ?? [])].reverse().filter((one) => one.current && one.unreachable === false);
  const label = (one) => [
    one.sequence, one.boundary ? `boundary ${instant(one.boundary)}` : `made ${instant(one.finished_at)}`,
    one.runs.map((run) => run.run_id).join(", "), one.pinned_as ? `pinned as ${one.pinned_as}` : "",
  ].filter(Boolean).join(" · ");
  const options = [["", "Choose one"], ...usable.map((one) => [String(one.sequence), label(one)])];
  return h(React.Fragment, null, h(Pending, { data, problem, what: "the checkpoints" }),
    h(Choice, { label: "Checkpoint", name: "value", value, change, options }));
}

/** @param {{text: string, change: (text: string) => void}} props */
function File({ text, change }) {
  const lines = text.split("\n").filter((line) => line.trim()).length;
  const read = async (event) => change((await event.target.files[0]?.text()) ?? "");
  return h(UI.Field.Root, { mt: 3 }, h(UI.Field.Label, null, "A file of offsets"),
    h(UI.Input, { type: "file", name: "value", accept: ".csv,.txt,text/*", p: 1, onChange: read }),
    h(UI.Field.HelperText, null, lines ? `${number(lines)} line(s)`
      : "Lines of GROUP,TOPIC,PARTITION,OFFSET, as `kcr reset plan -o csv` and Kafka's own tool write them"));
}

/** A field for the offset of each partition; those on other pages keep theirs.
 * @param {{store: string, region: string, version: number, offsets: Record<string, {row: any, offset: string}>,
 *   change: (values: object) => void}} props */
function Offsets({ store, region, version, offsets, change }) {
  const [query, setQuery] = React.useState({ order: "partition", direction: "up" });
  const write = (row, typed) => {
    const { [partitionId(row)]: _, ...others } = offsets;
    change({ offsets: /^\d+$/.test(typed) ? { ...others, [partitionId(row)]: { row, offset: typed } } : others });
  };
  const count = Object.keys(offsets).length;
  const field = (row) => h(UI.Input, { type: "number", min: 0, step: 1, size: "xs", w: "9rem", my: -1, textAlign: "end",
    "aria-label": `Offset of ${partitionName(row)}`, placeholder: row.position ?? "",
    value: offsets[partitionId(row)]?.offset ?? "", onChange: (event) => write(row, event.target.value) });
  return h(UI.Box, { as: "fieldset", mt: 3 },
    h(UI.Box, { as: "legend", fontWeight: "medium", mb: 2 }, "Offsets; where there is none, a partition stays"),
    h(PartitionPage, { store, region, version, asked: (name, otherwise = "") => query[name] ?? otherwise,
      change: (values) => setQuery({ ...query, ...values }), columns: () => [
        amount("Position", "position"),
        amount("End of log", "log_end", { wide: true }),
        { name: "Offset", right: true, cell: field },
      ] }),
    count > 0 && h(UI.Flex, { gap: 3, mt: 2, align: "center" }, h("span", null, `${number(count)} partition(s) chosen`),
      h(Small, { type: "button", onClick: () => change({ offsets: {} }) }, "Clear")));
}

/** @param {{groups: string[], given: any, change: (values: object) => void}} props */
function Scope({ groups, given, change }) {
  const others = (group) => given.groups.filter((one) => one !== group);
  const pick = (group, is) => change({ groups: is ? [...others(group), group] : others(group) });
  const tick = (name, label) => h(Tick, { name, is: given[name], change, label });
  return h(UI.Box, { as: "details", mt: 3 }, h("summary", null, "Scope and exceptions"),
    groups.length > 1 && h(UI.Box, { as: "fieldset", mt: 2 }, h("legend", null, "Only these groups; none ticked: all"),
      ...groups.map((group) => h(Tick, { key: group, name: group, label: group, is: given.groups.includes(group),
        change: (values) => pick(group, values[group]) }))),
    h(Field, { label: "Only these topics or partitions; empty: all", name: "topics", value: given.topics,
      required: false, placeholder: "flights flights:0,1", change: (topics) => change({ topics }) }),
    tick("forward", "Forward: allow a checkpoint of another timeline"),
    tick("allow_partial", "Allow an incomplete checkpoint"),
    tick("forced", "Force: don't drain first, for a halted or starting region"));
}

/** @param {{plan: any}} props */
function Plan({ plan }) {
  const { totals, entries } = plan.plan;
  const gone = "The logs don't have this target any more; choose a later one.";
  return h(React.Fragment, null,
    totals.unreachable > 0 && h(Notice, { kind: "error" }, gone),
    !totals.moved && h(Notice, { kind: "info" }, "It moves nothing: all partitions are there already."),
    h(Facts, { of: Object.entries(plan.notes) }),
    entries.length > 0 && h(UI.Box, { mt: 3 }, h(PartitionRows, {
      label: "Partitions that move most", rows: entries, empty: "", columns: [
        amount("From", "current"), amount("To", "target"), amount("Replayed", "replay"),
        amount("Skipped", "skip", { wide: true }),
      ],
    })));
}

/** From the request to the runs that it has undone.
 * @param {{store: string, read: any, run: import("./host.js").Run & {state: string}}} props */
function Requested({ store, read, run }) {
  const { dag_id, run_id } = run;
  const path = regionApi(store, read.data.region.region);
  const { data } = useJson(`api/v2/dags/${encodeURIComponent(dag_id)}`);
  const now = useJson(runApi(run));
  useWhileVisible(now.reload, usePace());
  const state = now.data?.state ?? run.state;
  const resets = useJson(`${path}/resets?last=5`, `${read.version} ${state}`);
  const row = resets.data?.resets.find((one) => one.dag_id === dag_id && one.run_id === run_id && one.state === "done");
  return h(React.Fragment, null,
    h(Notice, { kind: state === "failed" ? "error" : "info" },
      row ? `The reset ${row.id} is done. ` : `The reset is requested; its DAG run is ${state}. `,
      h(Go, { to: runPath(run) }, run_id)),
    data?.is_paused && h(Notice, { kind: "warning" }, `DAG ${dag_id} is paused: unpause it, or the run doesn't start.`),
    h(Approvals, { dags: [dag_id], run: run_id, mayAnswer: true }),
    row && h(Title, null, "DAG runs undone"),
    row && h(UndoneRuns, { path: `${path}/resets/${row.id.split("/").at(-1)}/runs` }));
}
