// @ts-check
// What Airflow's pages lend to a plugin: React, its router and Chakra, as globals.

const found = /** @type {any} */ (globalThis);

/** The globals that the console needs; where one is missing, the plain page is shown. */
export const MISSING = ["React", "ReactRouterDOM", "ChakraUI"].filter((name) => found[name] === undefined);

export const React = found.React;
export const Router = found.ReactRouterDOM ?? {};
export const UI = found.ChakraUI ?? {};

/** Below this, in Airflow's own router, are the console's pages. */
export const HOME = "/plugin/kcr";

/** Make an element. @param {any} kind @param {object | null} [props] @param {...any} children */
export function h(kind, props, ...children) {
  return React.createElement(kind, props ?? null, ...children);
}

/** A link to another page of Airflow or of the console.
 * @param {{to: string, children?: any, "aria-current"?: string}} props */
export function Go({ to, children, ...rest }) {
  return h(UI.Link, { asChild: true, color: "fg.info", ...rest }, h(Router.Link, { to }, children));
}

/** The way to a region's page. @param {string} store its connection @param {string} region */
export function regionPath(store, region) {
  const place = `regions/${encodeURIComponent(region)}`;
  return store === "kcr_default" ? `${HOME}/${place}` : `${HOME}/stores/${encodeURIComponent(store)}/${place}`;
}

/** @typedef {{dag_id: string, run_id: string}} Run */

/** The way to a DAG run's page. @param {Run} run */
export function runPath(run) {
  return `/dags/${encodeURIComponent(run.dag_id)}/runs/${encodeURIComponent(run.run_id)}`;
}
