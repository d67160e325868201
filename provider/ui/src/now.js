// The card on the dashboard: what trains, what waits and why, and the slots of the machine.
import { address, useAnswer } from "./data.js";
import { page } from "./models.js";
import { Badge } from "./parts.js";
import { h } from "./react.js";
import { bytes, number, percent, seconds, spaced, tone } from "./words.js";

export const Now = () => {
  const { value, error } = useAnswer(address("api", "now"), () => 10);
  if (value === null) return error ? h("div", { className: "card" }, h("h2", null, "Trainings"), h("p", { className: "fine" }, `They cannot be shown: ${error}.`)) : null;
  const waits = value.runs.filter((row) => row.held_by).length;
  return h("div", { className: "card" },
    h("div", { className: "title" }, h("h2", null, "Trainings"), h("span", { className: "fine" }, value.runs.length ? `${value.runs.length - waits} running, ${waits} waiting` : "")),
    value.runs.length === 0 && h("p", { className: "fine" }, "Nothing trains now."),
    value.runs.map((row) => h("a", { key: `${row.dag_id} ${row.run_id} ${row.task_id} ${row.map_index}`, className: "row", href: page(row.dag_id, row) },
      h("span", { className: "what" }, h("b", null, row.dag_id), ` ${row.task_id}`, row.map_index >= 0 && ` [${row.map_index}]`),
      h(Badge, { tone: tone(row.state) }, spaced(row.state ?? row.task_state ?? "unknown")),
      h("span", { className: "how" }, row.held_by ?? row.note ?? how(row)),
      row.share !== null && h("span", { className: "progress" }, h("i", { style: { width: `${100 * Math.min(1, row.share)}%` } })))),
    value.slots && h("p", { className: "slots fine" }, "This machine: ", value.slots.amounts.filter((a) => a.used || a.resource === "cpu").map(amount).join(", ")));
};

const how = (row) => [
  row.step !== null && `step ${row.step}${row.total ? `/${row.total}` : ""}`, row.share >= 0.01 && percent(row.share),
  row.seconds !== null && `for ${seconds(row.seconds)}`, row.seconds_left !== null && `${seconds(row.seconds_left)} left`,
].filter(Boolean).join(", ");

const amount = ({ resource, used, limit }) => {
  const show = resource === "memory" ? bytes : number;
  return `${resource} ${show(used)}${limit === null ? "" : ` of ${show(limit)}`}`;
};
