// @ts-check
// The console of the regions, as Airflow loads it: a component for each place that the plugin names.

import { HOME, MISSING, React, Router, UI, h } from "./host.js";
import { Region } from "./region.js";
import { Regions } from "./regions.js";
import { RunTab, Trouble } from "./run.js";

/** The page of the regions without what Airflow lends, as the plugin's server makes it. @param {string} place */
function plainPage(place) {
  const src = new URL(`kcr/${place}`, document.baseURI).href;
  return React.createElement("iframe", { src, title: "Regions", style: { width: "100%", height: "85vh", border: 0 } });
}

function Console() {
  const { pathname } = Router.useLocation();
  const place = pathname.slice(HOME.length).split("/").filter(Boolean).map(decodeURIComponent);
  const store = place[0] === "stores" ? place[1] : "kcr_default";
  const [what, region] = place[0] === "stores" ? place.slice(2) : place;
  const look = { as: "section", p: { base: 3, md: 5 }, fontSize: "sm", w: "full", minW: 0, "aria-label": "Regions" };
  return h(UI.Box, look,
    what === "regions" && region ? h(Region, { key: `${store} ${region}`, store, region }) : h(Regions));
}

const apps = /** @type {any} */ (globalThis);
apps.Checkpoint = MISSING.length ? () => null : RunTab;
apps["Regions in trouble"] = MISSING.length ? () => null : Trouble;
// Without React there is nothing to show by; Airflow says then that the plugin could not be loaded.
apps.Regions = MISSING.length ? () => plainPage(location.pathname.split(`${HOME}/`)[1] ?? "") : Console;
