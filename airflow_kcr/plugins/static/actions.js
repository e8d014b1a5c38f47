// @ts-check
// What a person does to a region by hand: each action says what it does, takes a reason, and names the epoch seen.

import { ask, regionApi } from "./data.js";
import { React, UI, h } from "./host.js";
import { Reset } from "./reset.js";
import { Field, Muted, Notice, Pending } from "./shown.js";

/** @typedef {{verb: string, label: string, path: string, does: string, isGrave?: boolean,
 *   when: (region: any) => boolean, body?: object, asks?: "name" | "label"}} Action */

/** @param {any} region */
const isUp = (region) => !["stopped", "halted"].includes(region.state) && region.desired_state !== "stopped";

/** @type {Action[]} */
export const VERBS = [
  { verb: "start", label: "Start", path: "verbs/start", when: (r) => ["stopped", "halted"].includes(r.state),
    does: "The region runs once all its members do; it resumes at its restore point." },
  { verb: "resume", label: "Resume", path: "verbs/resume", when: (r) => isUp(r) && r.desired_state === "paused",
    does: "Members start batches again." },
  { verb: "pause", label: "Pause", path: "verbs/pause", when: (r) => isUp(r) && r.desired_state === "running",
    does: "Batches in flight finish and none starts; the members stay in their groups." },
  { verb: "checkpoint", label: "Checkpoint now", path: "checkpoints", when: isUp,
    does: "Members finish their batches and contribute to a checkpoint (a drain); then the region continues." },
  { verb: "stop", label: "Stop", path: "verbs/stop", when: isUp,
    does: "Takes a checkpoint, publishes it and commits it to Kafka; then all members leave." },
  { verb: "kill", label: "Kill", path: "verbs/kill", when: (r) => r.state !== "stopped", isGrave: true, asks: "name",
    does: "Stops without a checkpoint: running batches are discarded, the members leave at once, and the next start "
      + "processes again what came after the restore point. Only if a stop can't drain." },
];

/** Pins a checkpoint, or unpins one that is. @param {any} row @returns {Action} */
export const pinOf = ({ sequence, pinned_as }) => ({
  path: `checkpoints/${sequence}/pin`, when: () => true,
  ...(pinned_as ? { verb: "unpin", label: "Unpin", body: { label: "" },
    does: `Retention applies to checkpoint ${sequence} again.` }
    : { verb: "pin", label: "Pin", asks: "label",
      does: `Keeps checkpoint ${sequence} from retirement, under a label.` }),
});

/** What can be done to a region as it is. @param {{store: string, read: any}} props */
export function Actions({ store, read }) {
  if (!read.data.may_change) return h(Muted, { mt: 2 }, "You may look at this region, but not change it.");
  const acts = (isGrave) => VERBS.filter((one) => Boolean(one.isGrave) === isGrave)
    .map((one) => h(Act, { key: one.verb, action: one, store, read }));
  return h(UI.Flex, { gap: 2, wrap: "wrap", mt: 3, role: "group", "aria-label": "Actions" },
    ...acts(false), h(Reset, { store, read }), ...acts(true));
}

/** A button, and the dialog that it opens; what its submit throws is shown in it.
 * @param {{label: string, title: string, verb: string, press: string, read: any, isGrave?: boolean, isWanted?: boolean,
 *   lacks: boolean, stays?: boolean, open: () => void, submit: () => Promise<any>, children?: any}} props
 *   `isWanted`: where it is not, an open dialog stays, with what was said in it; `stays`: after a success, too */
export function Frame(props) {
  const { label, title, verb, press, read, isGrave, isWanted = true, lacks, stays = false } = props;
  const [isOpen, setIsOpen] = React.useState(false);
  const [trouble, setTrouble] = React.useState("");
  const [isBusy, setIsBusy] = React.useState(false);
  const change = (is) => {
    if (is) props.open();
    setTrouble("");
    setIsOpen(is);
  };
  const send = async (event) => {
    event.preventDefault();
    if (lacks || isBusy) return;
    setIsBusy(true);
    setTrouble("");
    try {
      await props.submit();
      setIsOpen(stays);
    } catch (error) {
      const { kind, message } = error;
      const fresh = "Nothing was changed; the page now shows the region as it is. Close this and decide again.";
      setTrouble(kind === "StaleEpoch" ? `${message}. ${fresh}` : message);
    }
    setIsBusy(false);
    read.reload();
  };
  if (!isWanted && !isOpen) return null;
  const look = { colorPalette: isGrave ? "red" : "brand" };
  const role = isGrave ? "alertdialog" : "dialog";
  return h(UI.Dialog.Root, { open: isOpen, onOpenChange: (event) => change(event.open), role },
    h(UI.Dialog.Trigger, { asChild: true }, h(UI.Button, { size: "sm", variant: "outline", ...look }, label)),
    h(UI.Portal, null, h(UI.Dialog.Backdrop), h(UI.Dialog.Positioner, null,
      h(UI.Dialog.Content, { as: "form", onSubmit: send, mx: 3 },
        h(UI.Dialog.Header, null, h(UI.Dialog.Title, { overflowWrap: "anywhere" }, title)),
        h(UI.Dialog.Body, { minW: 0 }, props.children, trouble && h(Notice, { kind: "error" }, trouble)),
        h(UI.Dialog.Footer, null,
          h(UI.Dialog.ActionTrigger, { asChild: true }, h(UI.Button, { variant: "outline", type: "button" }, "Cancel")),
          h(UI.Button, { type: "submit", disabled: lacks || isBusy, ...look, "data-verb": verb }, press))))));
}

/** What is done at once, with a reason. @param {{action: Action, store: string, read: any}} props */
export function Act({ action, store, read }) {
  const [given, setGiven] = React.useState({ reason: "", name: "", label: "" });
  // As it was when the dialog was opened: what has happened behind it is looked at first.
  const epoch = React.useRef(0);
  const { region } = read.data;
  const { verb, label, path, asks, isGrave } = action;
  const open = () => {
    epoch.current = region.epoch;
    setGiven({ reason: "", name: "", label: "" });
  };
  const submit = () => {
    const more = asks ? { [asks]: given[asks] } : {};
    const body = { epoch: epoch.current, reason: given.reason, ...action.body, ...more };
    return ask(`${regionApi(store, region.region)}/${path}`, "POST", body);
  };
  const lacks = (asks === "name" && given.name !== region.region) || (asks === "label" && !given.label.trim());
  const field = (name, words) =>
    h(Field, { name, label: words, required: name !== "reason", value: given[name],
      maxLength: name === "label" ? 200 : 2000, change: (typed) => setGiven({ ...given, [name]: typed }) });
  return h(Frame, { label, title: `${label}: ${region.region}`, verb, press: label, read, open, submit, isGrave, lacks,
    isWanted: action.when(region) },
  h(UI.Text, null, action.does),
  asks === "name" && field("name", `Type the region's name: ${region.region}`),
  asks === "label" && field("label", "Label"),
  field("reason", "Reason, for the history"));
}

/** A question that Kafka is asked on a button.
 * @param {{label: string, path: string, show: (answer: any) => any}} props */
export function Question({ label, path, show }) {
  const [found, setFound] = React.useState(null);
  const press = () => {
    setFound({ data: null, problem: null });
    const fail = (problem) => setFound({ data: null, problem });
    ask(path, "POST", {}).then((data) => setFound({ data, problem: null }), fail);
  };
  return h(UI.Box, { mt: 3, minW: 0 }, h(UI.Button, { size: "sm", variant: "outline", onClick: press }, label),
    found && h(Pending, { ...found, what: "Kafka" }), found?.data && show(found.data));
}
