// The tab of a DAG: the metrics of its runs, and what was promoted.
import { Chart } from "./chart.js";
import { address, useAnswer } from "./data.js";
import { Badge, Fine, Nothing, Section, Table } from "./parts.js";
import { h } from "./react.js";
import { NONE, counted, inZone, moment, number, seconds, spaced, tone, written, zone } from "./words.js";

const COLUMNS = 4, PICTURES = 12;

export const Models = ({ dagId }) => {
  const { value, error } = useAnswer(address("api", "dag", dagId, "models"), () => 30);
  if (value === null)
    return error ? h(Nothing, { title: "This cannot be shown", text: `${error}.` }) : h("p", { className: "fine loading" }, "Loading …");
  if (!value.runs.length && !value.promotions.length)
    return h(Nothing, { title: "No models here yet", text: "Once a task of this DAG trains, evaluates or promotes with allaboard, its metrics show here, one DAG run after another." });
  return h("article", null,
    h("header", { className: "calm" },
      h("p", { className: "kicker" }, "models"),
      h("h1", null, value.dag_id),
      h("p", { className: "lead" }, `${counted(value.runs.length, "run")} of trainings and evaluations, ${counted(value.promotions.length, "promotion")}`)),
    value.champions.map((one) => h(Champion, { key: one.store, one })),
    h(Trends, { value }),
    h(Promotions, { value }),
    h(Runs, { value }),
    value.notes.length > 0 && h("ul", { className: "fine" }, value.notes.map((note, n) => h("li", { key: n }, inZone(note)))));
};

const namesOf = (value) => new Set(value.champions.map((one) => one.run));

const Champion = ({ one }) => h("div", { className: "reason good" },
  h("h3", null, `★ The champion: ${one.run ?? one.checkpoint}`),
  h("p", null, [
    `promotion ${one.number} of ${one.store}`, one.step !== null && `step ${one.step}`,
    one.metric !== null && `${one.metric_name ?? "metric"} ${number(one.metric)}`, one.at && `since ${written(one.at)}`,
    one.restores !== null && `a rollback to promotion ${one.restores}`,
  ].filter(Boolean).join(", "), "."),
  h("p", { className: "fine" }, h("code", null, one.checkpoint)));

/** A picture for each metric of each task, over the DAG runs. */
const Trends = ({ value }) => {
  const dagRuns = [...new Set(value.runs.map((run) => run.dag_run))];
  const tasks = [...new Set(value.runs.map((run) => run.task_id))];
  // The other tasks of the DAG run that trained the champion measured that very model.
  const names = namesOf(value);
  const champions = new Set(value.runs.filter((run) => names.has(run.run)).map((run) => run.dag_run));
  const pictures = [];
  for (const task of tasks)
    for (const name of value.metrics) {
      const found = value.runs.filter((run) => run.task_id === task && typeof run.metrics[name] === "number");
      if (found.length) pictures.push({ task, name, found });
    }
  if (!pictures.length) return null;
  const axis = { unit: "DAG run, oldest first", low: dagRuns.length > 1 ? 1 : 0, high: Math.max(2, dagRuns.length) };
  const place = (run) => dagRuns.indexOf(run.dag_run) + 1;
  return h(Section, { title: "From run to run" }, h("div", { className: "pair" },
    pictures.slice(0, PICTURES).map(({ task, name, found }) => {
      const points = found.map((run) => [place(run), run.metrics[name]]), best = found.find((run) => champions.has(run.dag_run));
      return h("figure", { key: `${task} ${name}`, className: "small" },
        h("figcaption", null, h("b", null, spaced(name), h("span", { className: "fine" }, ` of ${task}`)), h("span", { className: "value" }, number(points[points.length - 1][1]))),
        h(Chart, { title: `${name} of ${task}`, line: { name, points }, axis, star: best ? [place(best), best.metrics[name]] : null,
          name: (x) => (Number.isInteger(x) && x > 0 ? `#${x}` : "") }));
    })), pictures.length > PICTURES && h(Fine, null, `${counted(pictures.length - PICTURES, "more metric")} left out here.`));
};

const Promotions = ({ value }) => value.promotions.length > 0 && h(Section, { title: "Promotions and rollbacks" },
  h(Table, {
    heads: ["", `when (${zone()})`, "what", "run", "step", "metric", "by"],
    rows: value.promotions.map((one) => [
      `${one.number}${value.champions.some((c) => c.store === one.store && c.number === one.number) ? " ★" : ""}`,
      written(one.at),
      one.restores === null ? "promoted" : h("span", { className: "warning" }, `rolled back to ${one.restores}`),
      one.run ?? NONE, one.step ?? NONE, number(one.metric), one.by ?? NONE,
    ]),
  }));

const Runs = ({ value }) => {
  const names = value.metrics.slice(0, COLUMNS);
  const order = [...new Set(value.runs.map((run) => run.dag_run))];
  const swept = value.runs.some((run) => run.point);
  return value.runs.length > 0 && h(Section, { title: "Runs" }, h(Table, {
    heads: ["", `due (${zone()})`, "task", ...(swept ? ["values"] : []), "run", "state", ...names.map(spaced), "took", "promotion"],
    rows: [...value.runs].reverse().map((run) => [
      `#${order.indexOf(run.dag_run) + 1}`, moment(run.after),
      h("a", { href: page(value.dag_id, run) }, run.map_index >= 0 ? `${run.task_id} [${run.map_index}]` : run.task_id),
      ...(swept ? [run.point || NONE] : []),
      h("span", { className: "name" }, run.run), run.state ? h(Badge, { tone: tone(run.state) }, spaced(run.state)) : spaced(run.task_state ?? NONE),
      ...names.map((name) => number(run.metrics[name])), seconds(run.seconds), run.promotion === null ? NONE : `${run.promotion}${namesOf(value).has(run.run) ? " ★" : ""}`,
    ]),
  }));
};

export const page = (dagId, { dag_run, run_id, task_id, map_index }) => {
  const part = encodeURIComponent, mapped = map_index >= 0 ? `/mapped/${map_index}` : "";
  return new URL(`dags/${part(dagId)}/runs/${part(dag_run ?? run_id)}/tasks/${part(task_id)}${mapped}/plugin/allaboard`, document.baseURI).href;
};
