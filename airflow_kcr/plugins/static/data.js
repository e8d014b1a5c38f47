// @ts-check
// The console's JSON, as the plugin answers it; read again when something is new, as long as the page is visible.

import { React, Router, runPath } from "./host.js";

/** @typedef {Error & {status: number, kind: string}} Problem `kind`: the name of the error, as docs/reference has it */

/** An answer that is no success. @param {number} status @param {string} message @param {string} kind */
const problem = (status, message, kind = "") => Object.assign(new Error(message), { status, kind });

/** Ask this server, in the name of the user who is logged in.
 * @param {string} path relative to where Airflow is @param {"GET" | "POST" | "PATCH"} [method]
 * @param {object} [body] */
export async function ask(path, method = "GET", body = undefined) {
  const sent = body && { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(new URL(path, document.baseURI), { method, ...sent }).catch(() => {
    throw problem(0, "Airflow doesn't answer; this is tried again.");
  });
  const document_ = await answer.json().catch(() => ({}));
  if (answer.ok) return document_;
  if (answer.status === 401) throw problem(401, "Your session has ended: reload the page to log in again.");
  const said = document_.detail;
  const text = typeof said === "string" ? said : JSON.stringify(said?.[0]?.msg ?? said ?? answer.statusText);
  throw problem(answer.status, text, document_.error ?? "");
}

/** The address of a region's JSON. @param {string} store @param {string} region */
export function regionApi(store, region) {
  return `kcr/api/stores/${encodeURIComponent(store)}/regions/${encodeURIComponent(region)}`;
}

/** The address of a DAG run in Airflow's own API; `~` is every run. @param {import("./host.js").Run} run */
export function runApi(run) {
  return `api/v2${runPath(run).replace("/runs/", "/dagRuns/")}`;
}

/** Trigger a DAG, and return its run. @param {string} dag_id @param {object} conf @param {string} [note] */
export async function trigger(dag_id, conf, note) {
  const asked = { conf, note, logical_date: null };
  const run = await ask(`api/v2/dags/${encodeURIComponent(dag_id)}/dagRuns`, "POST", asked);
  return { dag_id, run_id: run.dag_run_id, state: run.state };
}

/** Milliseconds until the server is asked again, where it or its store was away. */
const AGAIN = 2000;

/** @typedef {{path: string, version: unknown, data: any, problem: Problem | null}} Found */

/** Read JSON, again whenever `version` changes; what was read last stays while it is read again, or can't be.
 * @param {string | null} path null: nothing is read @param {unknown} [version] @param {object} [body] of a POST */
export function useJson(path, version = 0, body = undefined) {
  const nothing = /** @type {Found} */ ({ path: "", version, data: null, problem: null });
  const [found, setFound] = React.useState(nothing);
  const [again, setAgain] = React.useState(0);
  const reload = React.useCallback(() => setAgain((n) => n + 1), []);
  React.useEffect(() => {
    if (path === null) return undefined;
    let isWanted = true;
    let timer = 0;
    const fail = (problem) => {
      if (!isWanted) return;
      setFound((old) => ({ ...old, path, version, problem }));
      if (problem.status === 0 || problem.status >= 500) timer = setTimeout(reload, AGAIN);
    };
    const take = (data) => isWanted && setFound({ path, version, data, problem: null });
    ask(path, body ? "POST" : "GET", body).then(take, fail);
    return () => {
      isWanted = false;
      clearTimeout(timer);
    };
  }, [path, version, again]);
  const isNewest = found.path === path && found.version === version;
  return { data: path === null ? null : found.data, problem: found.problem, isNewest, reload };
}

/** Call something every so many seconds while the page is seen, and when it is seen again.
 * @param {() => void} call @param {number} seconds */
export function useWhileVisible(call, seconds) {
  const newest = React.useRef(call);
  newest.current = call;
  React.useEffect(() => {
    const look = () => document.visibilityState === "visible" && newest.current();
    const timer = setInterval(look, seconds * 1000);
    document.addEventListener("visibilitychange", look);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [seconds]);
}

/** How often ages are wrong by less than what they say, and time alone may have changed a verdict. */
const WHOLE = 30;

/** Seconds between two looks at whether anything is new: as Airflow's own pages, or where that can't be read 3. */
export function usePace() {
  return useJson("ui/config").data?.auto_refresh_interval || 3;
}

/** How many rows of a region's past are read at once. */
export const PAGE = 50;

/** A page of a region's past, its newest row first, and what turns it.
 * @param {{store: string, region: string, version: number}} of @param {string} name of the rows
 * @param {(rows: any[]) => number | null} oldest before which older ones are; null: none
 * @param {number | null} from where to begin */
export function usePast({ store, region, version }, name, oldest, from = null) {
  const [before, go] = React.useState(from);
  const start = before === null ? "" : `&before=${before}`;
  const { data, problem } = useJson(`${regionApi(store, region)}/${name}?last=${PAGE}${start}`, version);
  const rows = [...(data?.[name] ?? [])].reverse();
  const turn = { isFirst: before === null, older: rows.length >= PAGE ? oldest(rows) : null, go };
  return { data, problem, rows, turn };
}

/** What the page's address asks for, and what changes that; an empty value is left out of it.
 * @returns {[(name: string, otherwise?: string) => string, (values: Record<string, string>) => void]} */
export function useQuery() {
  const [query, setQuery] = Router.useSearchParams();
  const change = (values) => {
    const kept = Object.entries({ ...Object.fromEntries(query), ...values }).filter(([, value]) => value);
    setQuery(Object.fromEntries(kept), { replace: true });
  };
  return [(name, otherwise = "") => query.get(name) ?? otherwise, change];
}

/** One region, read again as soon as its sign says that something is new, and now and then without.
 * @param {string} store @param {string} region */
export function useRegion(store, region) {
  const [path, seconds] = [regionApi(store, region), usePace()];
  const [version, setVersion] = React.useState(0);
  const sign = React.useRef("");
  const read = useJson(path, version);
  const renew = React.useCallback(() => setVersion((n) => n + 1), []);
  useWhileVisible(() => {
    ask(`${path}/sign`).then(
      (found) => {
        const text = `${found.counter} ${found.leases}`;
        if (sign.current && sign.current !== text) renew();
        sign.current = text;
      },
      () => read.problem === null && renew(),
    );
  }, seconds);
  useWhileVisible(renew, WHOLE);
  return { data: read.data, problem: read.problem, reload: renew, version };
}
