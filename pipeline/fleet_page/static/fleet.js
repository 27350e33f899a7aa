// The fleet page: asks for the state every ten seconds and draws it. Text from machines is
// only ever set as text, never as HTML.
"use strict";

const POLL_MS = 10000;
const wanted = new URLSearchParams(location.search).get("incident");
let csrf = "";
let canChange = false;
let shown = "";

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

const byId = (id) => document.getElementById(id);
const words = (text) => String(text || "").replaceAll("_", " ");

function amount(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "share") { value = 100 * value; unit = "%"; }
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  const text = value.toLocaleString("en-US", { maximumFractionDigits: digits });
  return unit ? `${text} ${unit}` : text;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.round(hours / 24)} days`;
}

const ago = (iso, now) => duration((Date.parse(now) - Date.parse(iso)) / 1000);
const clock = (iso) => `${iso.slice(11, 16)} UTC`;
const day = (iso) => `${iso.slice(5, 10)} ${iso.slice(11, 16)}`;

function place(location) {
  const plain = new Set(["rack", "host", "leaf", "cdu", "spine", "switch"]);
  const told = new Set(["switch_name", "node", "fan", "peer"]);  // in the name, or ids for programs
  return Object.entries(location)
    .filter(([key, value]) => value !== null && value !== "" && typeof value !== "object" && !told.has(key))
    .map(([key, value]) => (plain.has(key) ? value : `${words(key)} ${value}`))
    .join(" · ");
}

function chip(value, label, mood = "") {
  return el("div", { class: `chip ${mood}` }, el("b", {}, value), el("span", {}, label));
}

function sum(items, name) {
  return items.reduce((total, item) => total + (item[name] || 0), 0);
}

function drawChips(state) {
  const real = state.incidents.filter((item) => !item.drill);
  const gpus = sum(state.racks, "gpus");
  const expected = sum(state.racks, "gpus_expected");
  const newest = state.detectors.map((d) => d.run && d.run.window_end).filter(Boolean).sort().pop();
  const chips = [
    chip(real.length, real.length === 1 ? "open incident" : "open incidents", real.length ? "bad" : "good"),
    chip(state.racks.length, "racks"),
    chip(`${gpus.toLocaleString("en-US")} / ${expected.toLocaleString("en-US")}`, "GPUs reporting",
      gpus < expected ? "bad" : ""),
    chip(`${amount(sum(state.racks, "gpu_power_kw"), "kW")}`, "GPU power"),
    chip(newest ? ago(newest, state.now) : "never", "since the last scored window"),
    chip(`${state.alerts.delivered}`, "alerts sent today"),
  ];
  if (state.alerts.failed + state.alerts.gave_up) {
    chips.push(chip(state.alerts.failed + state.alerts.gave_up, "alerts not taken", "bad"));
  }
  byId("chips").replaceChildren(...chips);
  byId("cluster").textContent = state.cluster;
}

function evidenceTable(item) {
  if (!item.evidence.length) return null;
  const rows = item.evidence.map((fact) => {
    const percent = fact.peer_median && fact.value !== null && !["share", "%", "K"].includes(fact.unit)
      ? `${(100 * (fact.value - fact.peer_median) / Math.abs(fact.peer_median)).toFixed(0)} %` : "";
    return el("tr", {},
      el("td", {}, fact.label || words(fact.feature)),
      el("td", { class: "right" }, el("b", {}, amount(fact.value, fact.unit))),
      el("td", { class: "right quiet" }, amount(fact.peer_median, fact.unit)),
      el("td", { class: "right" }, percent.startsWith("-") || !percent ? percent.replace("-", "−") : `+${percent}`),
      el("td", { class: "right quiet" }, fact.minutes ? `${Math.round(fact.minutes)} min` : ""));
  });
  return el("table", {},
    el("thead", {}, el("tr", {}, el("th", {}, "evidence"), el("th", { class: "right" }, "value"),
      el("th", { class: "right" }, "peers"), el("th", {}), el("th", { class: "right" }, "for"))),
    el("tbody", {}, rows));
}

function incidentCard(item) {
  const name = item.name;
  const size = item.peers.size ? `${item.peers.size} peers: ${item.peers.group || ""}` : item.peers.group;
  const members = item.members.map((m) => (typeof m === "object" && m ? m.name || m.id : m));
  const side = el("div", { class: "side" },
    item.action ? el("p", { class: "do" }, item.action) : null,
    place(item.location) ? el("p", {}, el("span", { class: "quiet" }, "where "), place(item.location)) : null,
    size ? el("p", {}, el("span", { class: "quiet" }, "compared with "), size) : null,
    members.length ? el("p", {}, el("span", { class: "quiet" }, `with ${members.length}: `),
      members.slice(0, 8).join(", ") + (members.length > 8 ? " …" : "")) : null,
    el("p", { class: "quiet" }, `${words(item.detector)} · model ${item.model || "–"} · ${item.id.slice(0, 12)}`));
  const open = item.state === "open";
  const node = el("article", { class: `incident ${open ? item.severity : "ok"}`, id: `i-${item.id}` },
    el("div", { class: "top" },
      open ? el("span", { class: "badge" }, item.severity) : el("span", { class: "badge" }, "resolved"),
      item.drill ? el("span", { class: "badge drill" }, "drill") : null,
      el("h3", {}, name),
      el("span", { class: "when" }, open ? `open for ${duration(item.age_s)} · since ${clock(item.opened_at)}`
        : `${day(item.opened_at)} UTC · lasted ${duration(item.age_s)}`)),
    el("p", { class: "cause" }, item.cause ? `${words(item.cause)} · ${Math.round(100 * item.confidence)} % sure`
      : "cause not known"),
    el("div", { class: "facts" }, evidenceTable(item) || el("p", { class: "side" }, item.summary), side));
  if (item.id === wanted) node.classList.add("target");
  return node;
}

function drawIncidents(state) {
  const cards = state.incidents.map(incidentCard);
  if (!cards.length) {
    const blind = state.detectors.filter((d) => d.state !== "live").map((d) => words(d.detector));
    const calm = blind.length < state.detectors.length;
    if (calm) cards.push(el("p", { class: "calm" }, "Nothing is wrong that we can see."));
    if (blind.length) {
      cards.push(el("p", { class: "empty" }, calm ? `Not judged, for want of a live model: ${blind.join(", ")}.`
        : "No model is live yet: training starts by itself once an hour of telemetry is there."));
    }
  }
  byId("incidents").replaceChildren(...cards);
}

function rackTile(rack) {
  const missing = rack.gpus_expected - rack.gpus;
  const fact = (name, value, mood) => [el("dt", {}, name), el("dd", { class: mood || "" }, value)];
  return el("article", { class: `rack ${rack.status}` },
    el("div", { class: "top" }, el("h3", {}, rack.rack),
      rack.status === "ok" ? null : el("span", { class: "badge" }, rack.status),
      rack.silenced ? el("span", { class: "badge silent" }, "silenced") : null),
    el("dl", {},
      ...fact("GPUs", missing > 0 ? `${rack.gpus} of ${rack.gpus_expected}` : rack.gpus, missing > 0 ? "bad" : ""),
      ...fact("GPU power", amount(rack.gpu_power_kw, "kW")),
      ...fact("SM active", amount(rack.sm_active_percent, "%")),
      ...fact("hottest GPU", amount(rack.hottest_c, "°C")),
      ...fact("supply", amount(rack.supply_c, "°C")),
      ...fact("rise", amount(rack.delta_k, "K")),
      ...fact("flow", amount(rack.flow_lpm, "L/min")),
      ...fact("job", rack.jobs.length > 2 ? `${rack.jobs.length} jobs` : rack.jobs.join(", ") || "idle")));
}

function drawRacks(state) {
  const tiles = state.racks.map(rackTile);
  byId("racks").replaceChildren(...(tiles.length ? tiles
    : [el("p", { class: "empty" }, "No rack has reported in the last hour.")]));
  byId("rack-names").replaceChildren(...state.racks.map((rack) => el("option", { value: rack.rack })));
}

function table(heads, rows) {
  return el("div", { class: "scroll" }, el("table", { class: "list" },
    el("thead", {}, el("tr", {}, heads.map(([text, kind]) => el("th", { class: kind || "" }, text)))),
    el("tbody", {}, rows)));
}

function cell(value, kind = "") { return el("td", { class: kind }, value); }

function drawDetectors(state) {
  const rows = state.detectors.map((item) => {
    const tone = item.state === "live" ? "ok" : item.state === "candidate" ? "warning" : "silent";
    const run = item.run;
    return el("tr", { title: item.reason || "" },
      cell(el("b", {}, words(item.detector))),
      cell(el("span", { class: `badge ${tone}` }, item.state)),
      cell(item.trained_until ? `${day(item.trained_until)} UTC` : "–"),
      cell(run ? clock(run.window_end) : "never", "right"),
      cell(run ? `${run.verdicts.toLocaleString("en-US")} of ${run.entities.toLocaleString("en-US")}` : "–", "right"),
      cell(run ? run.findings : "–", "right"),
      cell(run ? `${run.lag_s} s` : "–", "right"));
  });
  const list = rows.length ? table([["detector"], ["model"], ["trained until"], ["last window", "right"],
    ["judged", "right"], ["findings", "right"], ["delay", "right"]], rows)
    : el("p", { class: "empty" }, "Nothing was trained yet.");
  const links = el("p", {},
    el("a", { href: "../dags/train_detectors", target: "_top" }, "Retrain"), " · ",
    el("a", { href: "../dags/score_fleet", target: "_top" }, "Scoring runs"));
  byId("detectors").replaceChildren(list, links);
}

function drawSilences(state) {
  const rows = state.silences.map((item) => el("tr", {},
    cell(el("b", {}, item.scope === "all" ? "everything" : item.entity)),
    cell(item.detector ? words(item.detector) : "all detectors"),
    cell(item.active ? `until ${day(item.ends_at)} UTC` : `from ${day(item.starts_at)} UTC`),
    cell(`${item.reason} (${item.by})`, "free"),
    cell(canChange ? el("button", { type: "button", onclick: () => lift(item.id) }, "Lift") : "", "right")));
  byId("silences").replaceChildren(rows.length
    ? table([["what"], ["of"], ["when"], ["why"], [""]], rows)
    : el("p", { class: "empty" }, "Nothing is silenced."));
}

function drawResolved(state) {
  const rows = state.resolved.map((item) => el("tr", { title: item.summary },
    cell(clock(item.resolved_at)), cell(el("b", {}, item.name)), cell(words(item.cause) || "cause not known"),
    cell(`lasted ${duration(item.age_s)}`, "right"), cell(item.drill ? "drill" : "")));
  byId("resolved").replaceChildren(rows.length
    ? table([["at"], ["what"], ["cause"], ["", "right"], [""]], rows)
    : el("p", { class: "empty" }, "None."));
}

function drawStreams(state) {
  const rows = state.streams.map((item) => el("tr", {},
    cell(el("b", {}, item.stream)),
    cell(`${item.rows_per_s.toLocaleString("en-US")} rows/s`, "right"),
    cell(item.age_s === null ? "no rows in the last minute" : `${duration(item.age_s)} old`, "right quiet")));
  byId("streams").replaceChildren(table([["stream"], ["stored", "right"], ["newest sample", "right"]], rows));
}

function trouble(text) {
  const box = byId("trouble");
  box.hidden = !text;
  box.textContent = text || "";
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { credentials: "same-origin", ...options });
  if (answer.status === 401) throw new Error("Your session is over: log in again.");
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(typeof body.detail === "string" ? body.detail : `The server answered ${answer.status}.`);
  return body;
}

async function load() {
  try {
    const state = await ask("api/fleet");
    csrf = state.csrf;
    canChange = state.can_change;
    byId("silence-box").hidden = !canChange;
    drawChips(state);
    drawIncidents(state);
    drawRacks(state);
    drawDetectors(state);
    drawSilences(state);
    drawResolved(state);
    drawStreams(state);
    await showWanted(state);
    trouble("");
  } catch (error) {
    trouble(`${error.message} What is below may be old.`);
  }
}

// An address from an alert names an incident; it may be over by now.
async function showWanted(state) {
  if (!wanted) return;
  if (!state.incidents.some((item) => item.id === wanted)) {
    const item = await ask(`api/incidents/${encodeURIComponent(wanted)}`).catch(() => null);
    if (item) byId("incidents").prepend(incidentCard(item));
  }
  if (shown !== wanted) {
    shown = wanted;
    const node = document.getElementById(`i-${wanted}`);
    if (node) node.scrollIntoView({ block: "center" });
  }
}

async function change(path, method, body) {
  return ask(path, {
    method,
    headers: { "content-type": "application/json", "x-rackpulse-csrf": csrf },
    body: JSON.stringify(body || {}),
  });
}

async function lift(id) {
  try { await change(`api/silences/${encodeURIComponent(id)}`, "DELETE"); await load(); }
  catch (error) { trouble(error.message); }
}

byId("silence-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const answer = byId("silence-answer");
  try {
    await change("api/silences", "POST", {
      scope: form.scope.value, entity: form.entity.value.trim(),
      minutes: Number(form.minutes.value), reason: form.reason.value.trim(),
    });
    form.reason.value = "";
    answer.textContent = "Silenced.";
    await load();
  } catch (error) { answer.textContent = error.message; }
});

// The page looks as the Airflow around it does.
function theme() {
  let name = null;
  try { name = localStorage.getItem("theme"); } catch { /* storage may be off */ }
  if (name !== "dark" && name !== "light") {
    name = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }
  document.documentElement.dataset.theme = name;
}

theme();
addEventListener("storage", theme);
load();
setInterval(() => { if (!document.hidden) load(); }, POLL_MS);
document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
