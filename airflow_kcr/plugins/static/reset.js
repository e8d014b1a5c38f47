// @ts-check
// A reset, from the choice of its target to the run of the region's reset DAG, in which it is approved and applied.

import { Approvals } from "./approvals.js";
import { ask, regionApi, useJson, usePace, useWhileVisible } from "./data.js";
import { Go, React, UI, h, runPath } from "./host.js";
import { UndoneRuns } from "./runs.js";
import { Facts, Field, Notice, PARTITION, Pending, Rows, Tick, Title, instant, number, partitionId, zone } from "./shown.js";

/** Milliseconds without another change, after which a plan is computed. */
const PAUSE = 400;

const EMPTY = {
  target: "to-checkpoint", value: "", groups: /** @type {string[]} */ ([]), topics: "", forward: false,
  allow_partial: false, forced: false, consent: false, reason: "",
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

/** What a plan is asked for; null: something is still to be filled in. @param {any} given @param {any} kind */
function asked(given, kind) {
  const text = given.value.trim();
  if (kind?.metavar && !text) return null;
  const value = !kind?.metavar ? null : given.target === "to-datetime" ? instantOf(text) : text;
  const topics = given.topics.split(/\s+/).filter(Boolean);
  const { target, groups, forward, allow_partial, forced } = given;
  return { target, value, groups, topics, forward, allow_partial, forced };
}

/** A button that opens the drawer of a reset. Where it is no longer offered, an open drawer stays: it may be what has undone that.
 * @param {{store: string, read: any, first?: {target: string, value: string}, label?: string, isOffered?: boolean}} props */
export function Reset({ store, read, first, label = "Reset …", isOffered = true }) {
  const [isOpen, setIsOpen] = React.useState(false);
  const { may_change, reset_dags } = read.data;
  if (!may_change || !reset_dags.length) return null;
  return h(UI.Drawer.Root,
    { open: isOpen, onOpenChange: (/** @type {any} */ change) => setIsOpen(change.open), size: { base: "full", md: "lg" },
      // With a target, only the reason is missing.
      ...(first ? { initialFocusEl: () => document.querySelector("form input[name=reason]") } : {}) },
    isOffered && h(UI.Drawer.Trigger, { asChild: true }, h(UI.Button, { size: "sm", variant: "outline", colorPalette: "brand" }, label)),
    h(UI.Portal, null, h(UI.Drawer.Backdrop), h(UI.Drawer.Positioner, null, h(UI.Drawer.Content, null,
      isOpen && h(Form, { store, read, first, close: () => setIsOpen(false) })))));
}

/** The plan of what is chosen, a moment after the last change. @param {string} path @param {any} request */
function usePlan(path, request) {
  const [found, setFound] = React.useState({ text: "", plan: /** @type {any} */ (null), problem: /** @type {any} */ (null) });
  const text = request && JSON.stringify(request);
  React.useEffect(() => {
    if (!text) return undefined;
    let isWanted = true;
    const timer = setTimeout(() => {
      ask(path, "POST", JSON.parse(text)).then(
        (plan) => isWanted && setFound({ text, plan, problem: null }),
        (problem) => isWanted && setFound({ text, plan: null, problem }),
      );
    }, PAUSE);
    return () => {
      isWanted = false;
      clearTimeout(timer);
    };
  }, [path, text]);
  return found.text === text && text ? found : { text, plan: null, problem: null };
}

/** @param {{store: string, read: any, first?: {target: string, value: string}, close: () => void}} props */
function Form({ store, read, first, close }) {
  const { region, targets, reset_dags } = read.data;
  const [given, setGiven] = React.useState({ ...EMPTY, ...first });
  const [run, setRun] = React.useState(/** @type {any} */ (null));
  const [trouble, setTrouble] = React.useState("");
  const [isBusy, setIsBusy] = React.useState(false);
  const kind = targets.find((/** @type {any} */ one) => one.option === given.target);
  const request = asked(given, kind);
  const { plan, problem } = usePlan(`${regionApi(store, region.region)}/plan`, request);
  const change = (/** @type {any} */ values) => setGiven({ ...given, ...values });
  const upserts = plan?.plan.upserts ?? [];
  const isReady = plan && !plan.plan.totals.unreachable && given.reason.trim() && (!upserts.length || given.consent);
  const [dag] = reset_dags;
  const submit = async (/** @type {any} */ event) => {
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
    try {
      setRun(await ask(`api/v2/dags/${encodeURIComponent(dag)}/dagRuns`, "POST", { conf, logical_date: null }));
    } catch (error) {
      setTrouble(/** @type {any} */ (error).message);
    }
    setIsBusy(false);
  };
  return h("form", { onSubmit: submit, style: { display: "contents" } },
    h(UI.Drawer.Header, null, h(UI.Drawer.Title, null, `Reset ${region.region}`)),
    h(UI.Drawer.Body, { fontSize: "sm" }, run ? h(Requested, { store, read, dag, run }) : h(React.Fragment, null,
      h(Choice, { label: "Target", name: "target", value: given.target,
        options: targets.map((/** @type {any} */ one) => [one.option, one.label]),
        change: (/** @type {string} */ target) => change({ target, value: "" }) }),
      kind?.metavar && h(Value, { store, region: region.region, kind, value: given.value, change: (value) => change({ value }) }),
      h(Scope, { groups: region.groups.map((/** @type {any} */ one) => one.group_id), given, change }),
      h(Field, { label: "Reason", name: "reason", value: given.reason, placeholder: "Others find it in the history",
        change: (/** @type {string} */ reason) => change({ reason }) }),
      upserts.length > 0 && h(Tick, { name: "consent", is: given.consent, change,
        label: "I accept that tables of mode upsert keep no history and can't be restored" }),
      h(Title, null, "What it would do"),
      request ? h(Pending, { data: plan, problem, what: "the logs for a plan" })
        : h(UI.Text, { color: "fg.muted" }, `Give ${kind?.wanted ?? "a value"}.`),
      plan && h(Plan, { plan }),
      trouble && h(Notice, { kind: "error" }, trouble))),
    h(UI.Drawer.Footer, null,
      h(UI.Button, { variant: "outline", type: "button", onClick: close }, run ? "Close" : "Cancel"),
      !run && h(UI.Button, { type: "submit", colorPalette: "brand", disabled: !isReady || isBusy }, `Request by ${dag}`)));
}

/** @param {{label: string, name: string, value: string, options: [string, string][], change: (value: string) => void}} props */
function Choice({ label, name, value, options, change }) {
  return h(UI.Field.Root, { mt: 3 }, h(UI.Field.Label, null, label),
    h(UI.NativeSelect.Root, null,
      h(UI.NativeSelect.Field, { name, value, onChange: (/** @type {any} */ event) => change(event.target.value) },
        ...options.map(([one, words]) => h("option", { key: one, value: one }, words))),
      h(UI.NativeSelect.Indicator)));
}

/** The field that fits the target. @param {{store: string, region: string, kind: any, value: string, change: (value: string) => void}} props */
function Value({ store, region, kind, value, change }) {
  const { data, problem } = useJson(kind.option === "to-checkpoint" ? `${regionApi(store, region)}/checkpoints?last=50` : null);
  const write = (/** @type {any} */ event) => change(event.target.value);
  if (kind.option === "to-checkpoint") {
    const usable = [...(data?.checkpoints ?? [])].reverse().filter((one) => one.current && one.unreachable === false);
    const label = (/** @type {any} */ one) => [
      one.sequence, one.boundary ? `boundary ${instant(one.boundary)}` : `made ${instant(one.finished_at)}`,
      one.runs.map((/** @type {any} */ run) => run.run_id).join(", "), one.pinned_as ? `pinned as ${one.pinned_as}` : "",
    ].filter(Boolean).join(" · ");
    const options = usable.map((one) => /** @type {[string, string]} */ ([String(one.sequence), label(one)]));
    return h(React.Fragment, null, h(Pending, { data, problem, what: "the checkpoints" }),
      h(Choice, { label: "Checkpoint", name: "value", value, change, options: [["", "Choose one"], ...options] }));
  }
  const file = async (/** @type {any} */ event) => change((await event.target.files[0]?.text()) ?? "");
  const field = kind.option === "to-datetime" ? h(UI.Input, { name: "value", type: "datetime-local", step: 1, value, onChange: write })
    : kind.option === "from-file" ? h(UI.Textarea, { name: "value", rows: 5, value, onChange: write, placeholder: kind.wanted })
      : h(UI.Input, { name: "value", value, onChange: write, placeholder: kind.wanted });
  return h(UI.Field.Root, { mt: 3 },
    h(UI.Field.Label, null, kind.option === "to-datetime" ? `Time in ${zone()}` : kind.metavar.toLowerCase()), field,
    kind.option === "from-file" && h("input", { type: "file", "aria-label": "A file of offsets", onChange: file }),
    h(UI.Field.HelperText, null, kind.help));
}

/** @param {{groups: string[], given: any, change: (values: object) => void}} props */
function Scope({ groups, given, change }) {
  const pick = (/** @type {string} */ group, /** @type {boolean} */ is) =>
    change({ groups: is ? [...given.groups, group] : given.groups.filter((/** @type {string} */ one) => one !== group) });
  return h(UI.Box, { as: "details", mt: 3 }, h("summary", null, "Scope and exceptions"),
    groups.length > 1 && h(UI.Box, { as: "fieldset", mt: 2 }, h("legend", null, "Only these groups; none ticked: all"),
      ...groups.map((group) => h(Tick, { key: group, name: group, label: group, is: given.groups.includes(group),
        change: (/** @type {any} */ values) => pick(group, values[group]) }))),
    h(Field, { label: "Only these topics or partitions; empty: all", name: "topics", value: given.topics, required: false,
      placeholder: "flights flights:0,1", change: (/** @type {string} */ topics) => change({ topics }) }),
    h(Tick, { name: "forward", is: given.forward, change, label: "Forward: allow a checkpoint of another timeline" }),
    h(Tick, { name: "allow_partial", is: given.allow_partial, change, label: "Allow an incomplete checkpoint" }),
    h(Tick, { name: "forced", is: given.forced, change, label: "Force: don't drain first, for a halted or starting region" }));
}

/** @param {{plan: any}} props */
function Plan({ plan }) {
  const { totals, entries } = plan.plan;
  return h(React.Fragment, null,
    totals.unreachable > 0 && h(Notice, { kind: "error" }, "The logs don't have this target any more; choose a later one."),
    !totals.moved && h(Notice, { kind: "info" }, "It moves nothing: all partitions are there already."),
    h(Facts, { of: Object.entries(plan.notes) }),
    entries.length > 0 && h(UI.Box, { mt: 3 }, h(Rows, {
      label: "Partitions that move most", rows: entries, empty: "", id: partitionId,
      columns: [
        PARTITION,
        { name: "From", right: true, cell: (row) => number(row.current) },
        { name: "To", right: true, cell: (row) => number(row.target) },
        { name: "Replayed", right: true, cell: (row) => number(row.replay) },
        { name: "Skipped", right: true, cell: (row) => number(row.skip), wide: true },
      ],
    })));
}

/** From the request to the runs that it has undone. @param {{store: string, read: any, dag: string, run: any}} props */
function Requested({ store, read, dag, run }) {
  const path = regionApi(store, read.data.region.region);
  const to = runPath({ dag_id: dag, run_id: run.dag_run_id });
  const { data } = useJson(`api/v2/dags/${encodeURIComponent(dag)}`);
  const now = useJson(`api/v2${to.replace("/runs/", "/dagRuns/")}`);
  useWhileVisible(now.reload, usePace());
  const state = now.data?.state ?? run.state;
  const resets = useJson(`${path}/resets?last=5`, `${read.version} ${state}`);
  const row = resets.data?.resets.find((/** @type {any} */ one) => one.dag_id === dag && one.run_id === run.dag_run_id && one.state === "done");
  return h(React.Fragment, null,
    h(Notice, { kind: state === "failed" ? "error" : "info" }, row ? `The reset ${row.id} is done. ` : `The reset is requested; its DAG run is ${state}. `,
      h(Go, { to }, run.dag_run_id)),
    data?.is_paused && h(Notice, { kind: "warning" }, `DAG ${dag} is paused: unpause it, or the run doesn't start.`),
    h(Approvals, { dags: [dag], run: run.dag_run_id, mayAnswer: true }),
    row && h(Title, null, "DAG runs undone"),
    row && h(UndoneRuns, { path: `${path}/resets/${row.id.split("/").at(-1)}/runs` }));
}
