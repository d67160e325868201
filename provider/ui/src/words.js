// Numbers, times and states in the words of the pages that `allaboard report` writes. Values in, text out.
export const NONE = "–";

export const number = (value) => {
  if (value === null || value === undefined) return NONE;
  if (typeof value !== "number") return String(value);
  const a = Math.abs(value);
  if (value && a < 1e-3) return value.toExponential(1).replace(".0e", "e");
  for (const [limit, by, letter] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]])
    if (a >= limit) return String(+(value / by).toPrecision(4)) + letter;
  return String(+value.toPrecision(4));
};

const two = (value) => String(value).padStart(2, "0");

export const seconds = (value) => {
  if (value === null || value === undefined) return NONE;
  if (value < 10) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${two(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${two(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d ${two(Math.floor((whole % 86400) / 3600))}h`;
};

export const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
export const spaced = (name) => String(name).replaceAll("_", " ");
/** The zone of the reader: the one chosen in Airflow's own pages, which keep it there, else the browser's. */
export const zone = (store = globalThis.localStorage) => {
  try {
    const chosen = JSON.parse(store.getItem("timezone"));
    new Intl.DateTimeFormat("en", { timeZone: chosen ?? undefined });
    if (chosen) return chosen; // by the reader's own word for it: browsers call Asia/Kolkata by its old name
  } catch {
    // There is no store, or no such zone.
  }
  return Intl.DateTimeFormat().resolvedOptions().timeZone;
};
/** An epoch in the reader's zone: 2026-11-25 15:05:09. */
export const moment = (epoch, timeZone = zone()) => {
  if (epoch === null || epoch === undefined || !Number.isFinite(epoch)) return NONE;
  const how = { timeZone, year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
  const part = Object.fromEntries(new Intl.DateTimeFormat("en", how).formatToParts(epoch * 1000).map(({ type, value }) => [type, value]));
  return `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second}`;
};
/** The same of a time as the server writes it, in UTC. */
export const written = (text, timeZone = zone()) => (text ? moment(Date.parse(text) / 1000, timeZone) : NONE);
/** A sentence of the server with its times in the reader's zone. */
export const inZone = (text, timeZone = zone()) =>
  text && text.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g, (found) => `${written(found, timeZone)} (${timeZone})`);

const TONES = { succeeded: "good", success: "good", failed: "bad", timed_out: "bad", lost: "bad", queued: "warning", suspended: "warning", restarting: "warning" };
export const tone = (state) => TONES[state] ?? "calm";

const OF = { LocalQueue: "queue of Kueue", Queue: "queue of Volcano", ResourceQuota: "quota" };
const ABOVE = { LocalQueue: "ClusterQueue", Queue: "queue" };
/** Whose queue it is and where: queue of Kueue, of ClusterQueue research, namespace team. */
export const origin = ({ kind, parent, where }) =>
  [OF[kind] ?? kind, parent && `of ${ABOVE[kind] ?? ""} ${parent}`, where].filter(Boolean).join(", ");
/** How much of its limit is used, 0 to 1; borrowers use more than all of it. */
export const filled = ({ used, limit }) => (limit > 0 ? Math.min(1, used / limit) : 1);
export const isFull = ({ used, limit }) => used >= limit;
/** The rows that only their DAG run tells apart. */
export const alike = (rows) => {
  const key = (row) => `${row.dag_id} ${row.task_id} ${row.map_index}`;
  const count = new Map();
  for (const row of rows) count.set(key(row), (count.get(key(row)) ?? 0) + 1);
  return new Set(rows.filter((row) => count.get(key(row)) > 1));
};
