// @ts-check
// What a person does to a region by hand: each action says what it does, takes a reason, and names the epoch that was seen.

import { ask, regionApi } from "./data.js";
import { React, UI, h } from "./host.js";
import { Reset } from "./reset.js";
import { Field, Notice, Pending } from "./shown.js";

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
  ...(pinned_as ? { verb: "unpin", label: "Unpin", body: { label: "" }, does: `Retention applies to checkpoint ${sequence} again.` }
    : { verb: "pin", label: "Pin", asks: "label", does: `Keeps checkpoint ${sequence} from retirement, under a label.` }),
});

/** What can be done to a region as it is. @param {{store: string, read: any}} props */
export function Actions({ store, read }) {
  if (!read.data.may_change) return h(UI.Text, { color: "fg.muted", mt: 2 }, "You may look at this region, but not change it.");
  return h(UI.Flex, { gap: 2, wrap: "wrap", mt: 3, role: "group", "aria-label": "Actions" },
    ...VERBS.map((one) => h(Act, { key: one.verb, action: one, store, read })),
    h(Reset, { store, read }));
}

/** A button, and the dialog that it opens; what its submit throws is shown in it.
 * @param {{label: string, title: string, verb: string, press: string, read: any, isGrave?: boolean, isWanted?: boolean,
 *   lacks: boolean, stays?: boolean, open: () => void, submit: () => Promise<any>, children?: any}} props
 *   `isWanted`: where it is not, an open dialog stays, with what was said in it; `stays`: after a success, too */
export function Frame({ label, title, verb, press, read, isGrave, isWanted = true, lacks, stays = false, open, submit, children }) {
  const [isOpen, setIsOpen] = React.useState(false);
  const [trouble, setTrouble] = React.useState("");
  const [isBusy, setIsBusy] = React.useState(false);
  const change = (/** @type {boolean} */ is) => {
    if (is) open();
    setTrouble("");
    setIsOpen(is);
  };
  const send = async (/** @type {any} */ event) => {
    event.preventDefault();
    if (lacks || isBusy) return;
    setIsBusy(true);
    setTrouble("");
    try {
      await submit();
      setIsOpen(stays);
    } catch (error) {
      const { kind, message } = /** @type {any} */ (error);
      setTrouble(kind === "StaleEpoch"
        ? `${message}. Nothing was changed; the page now shows the region as it is. Close this and decide again.` : message);
    }
    setIsBusy(false);
    read.reload();
  };
  if (!isWanted && !isOpen) return null;
  const color = { colorPalette: isGrave ? "red" : "brand" };
  const role = isGrave ? "alertdialog" : "dialog";
  return h(UI.Dialog.Root, { open: isOpen, onOpenChange: (/** @type {any} */ event) => change(event.open), role },
    h(UI.Dialog.Trigger, { asChild: true }, h(UI.Button, { size: "sm", variant: "outline", ...color }, label)),
    h(UI.Portal, null, h(UI.Dialog.Backdrop), h(UI.Dialog.Positioner, null,
      h(UI.Dialog.Content, { as: "form", onSubmit: send, mx: 3 },
        h(UI.Dialog.Header, null, h(UI.Dialog.Title, null, title)),
        h(UI.Dialog.Body, { minW: 0 }, children, trouble && h(Notice, { kind: "error" }, trouble)),
        h(UI.Dialog.Footer, null,
          h(UI.Dialog.ActionTrigger, { asChild: true }, h(UI.Button, { variant: "outline", type: "button" }, "Cancel")),
          h(UI.Button, { type: "submit", disabled: lacks || isBusy, ...color, "data-verb": verb }, press))))));
}

/** What is done at once, with a reason. @param {{action: Action, store: string, read: any}} props */
export function Act({ action, store, read }) {
  const [given, setGiven] = React.useState({ reason: "", name: "", label: "" });
  // As it was when the dialog was opened: what has happened behind it is looked at first.
  const epoch = React.useRef(0);
  const { region } = read.data;
  const open = () => {
    epoch.current = region.epoch;
    setGiven({ reason: "", name: "", label: "" });
  };
  const submit = () => {
    const body = { epoch: epoch.current, reason: given.reason, ...action.body };
    if (action.asks) Object.assign(body, { [action.asks]: given[action.asks] });
    return ask(`${regionApi(store, region.region)}/${action.path}`, "POST", body);
  };
  const field = (/** @type {"reason" | "name" | "label"} */ name, /** @type {string} */ label) =>
    h(Field, { name, label, required: name !== "reason", value: given[name], maxLength: name === "label" ? 200 : 2000,
      change: (/** @type {string} */ text) => setGiven({ ...given, [name]: text }) });
  return h(Frame, { label: action.label, title: `${action.label}: ${region.region}`, verb: action.verb, press: action.label, read, open, submit,
    isGrave: action.isGrave, isWanted: action.when(region),
    lacks: (action.asks === "name" && given.name !== region.region) || (action.asks === "label" && !given.label.trim()) },
  h(UI.Text, null, action.does),
  action.asks === "name" && field("name", `Type the region's name: ${region.region}`),
  action.asks === "label" && field("label", "Label"),
  field("reason", "Reason, for the history"));
}

/** A question that Kafka is asked on a button. @param {{label: string, path: string, show: (answer: any) => any}} props */
export function Question({ label, path, show }) {
  const [found, setFound] = React.useState(/** @type {any} */ (null));
  const press = () => {
    setFound({ data: null, problem: null });
    ask(path, "POST", {}).then((data) => setFound({ data, problem: null }), (problem) => setFound({ data: null, problem }));
  };
  return h(UI.Box, { mt: 3, minW: 0 }, h(UI.Button, { size: "sm", variant: "outline", onClick: press }, label),
    found && h(Pending, { ...found, what: "Kafka" }), found?.data && show(found.data));
}
