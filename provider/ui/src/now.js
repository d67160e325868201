// The card on the dashboard: what trains, what waits and why, and how full the queues of these places are.
import { address, useAnswer } from "./data.js";
import { page } from "./models.js";
import { Badge } from "./parts.js";
import { h } from "./react.js";
import { alike, filled, inZone, isFull, origin, spaced, tone } from "./words.js";

export const Now = () => {
  const { value, error } = useAnswer(address("api", "now"), () => 10);
  if (value === null) return error ? h("div", { className: "card" }, h("h2", null, "Trainings"), h("p", { className: "fine" }, `They cannot be shown: ${error}.`)) : null;
  const twins = alike(value.runs);
  const waits = value.runs.filter((row) => row.held_by).length;
  return h("div", { className: "card" },
    h("div", { className: "title" }, h("h2", null, "Trainings"), h("span", { className: "fine" }, value.runs.length ? `${value.runs.length - waits} running, ${waits} waiting` : "")),
    value.runs.length === 0 && h("p", { className: "fine" }, "Nothing trains now."),
    value.runs.map((row) => h("a", { key: `${row.dag_id} ${row.run_id} ${row.task_id} ${row.map_index}`, className: "row", href: page(row.dag_id, row) },
      h("span", { className: "what" }, h("b", null, row.dag_id), ` ${row.task_id}`, row.map_index >= 0 && ` [${row.map_index}]`, twins.has(row) && h("span", { className: "fine" }, ` ${row.run_id}`)),
      h(Badge, { tone: tone(row.state) }, spaced(row.state ?? row.task_state ?? "unknown")),
      h("span", { className: "how" }, inZone(row.held_by ?? row.note) ?? row.how),
      row.share !== null && h("span", { className: "progress" }, h("i", { style: { width: `${100 * Math.min(1, row.share)}%` } })))),
    value.queues.map((queue) => h(Queue, { key: `${queue.server} ${queue.where} ${queue.kind} ${queue.name}`, ...queue })));
};

const Queue = (queue) =>
  h("section", { className: "queue" },
    h("div", { className: "title" },
      h("span", { title: queue.server ?? undefined }, h("b", null, queue.kind === "machine" ? "This machine" : queue.name), queue.kind !== "machine" && h("span", { className: "fine" }, ` ${origin(queue)}`)),
      h("span", { className: "fine" }, queue.running !== null && `${queue.running} running, ${queue.waiting ?? 0} waiting`)),
    queue.closed && h("p", { className: "fine bad" }, `Closed: ${queue.closed}`),
    h("div", { className: "meters" }, queue.amounts.map((amount) =>
      h("div", { key: `${amount.resource} ${amount.flavor}`, className: "meter" },
        h("span", null, amount.resource, amount.flavor && ` (${amount.flavor})`), h("span", null, amount.words),
        amount.limit !== null && h("div", { className: "progress" }, h("i", { className: isFull(amount) ? "full" : "", style: { width: `${100 * filled(amount)}%` } }))))));
